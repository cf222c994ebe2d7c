//! Tokens.

use super::error::{ParseError, ParseProblem, excerpt};

/// A place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) offset: usize,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) fn error(self, problem: ParseProblem) -> ParseError {
        ParseError { line: self.line, column: self.column, offset: self.offset, problem }
    }

    pub(super) fn unexpected(self, expected: impl Into<String>, found: impl Into<String>) -> ParseError {
        self.error(ParseProblem::Unexpected { expected: expected.into(), found: found.into(), suggestion: None })
    }
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// Letters, digits and underscores, a letter first.
    Word(&'a str),
    /// `%` and what names the node.
    Label(&'a str),
    /// The contents of a string.
    Text(String),
    /// A whole number.
    Integer(usize),
    /// Any other number.
    Float(f64),
    /// One of `{}[]=,:.@`.
    Sign(char),
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// For messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Word(word) => excerpt(word),
            Token::Label(label) => excerpt(&format!("%{label}")),
            Token::Text(text) => excerpt(&format!("{text:?}")),
            Token::Integer(value) => excerpt(&value.to_string()),
            Token::Float(value) => excerpt(&format!("{value:?}")),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

/// Cuts the text into tokens, on demand. A copy looks ahead.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: Position,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: Position { offset: 0, line: 1, column: 1 } }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at.offset..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at.offset += next.len_utf8();
        if next == '\n' {
            self.at.line += 1;
            self.at.column = 1;
        } else {
            self.at.column += 1;
        }
        Some(next)
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let start = self.at.offset;
        while self.peek().is_some_and(&accept) {
            self.bump();
        }
        &self.text[start..self.at.offset]
    }

    /// The next token and where it starts. Blanks and comments (`//` to the end of the line) lie between tokens.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, Position), ParseError> {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest().starts_with("//") {
                break;
            }
            self.take_while(|c| c != '\n');
        }
        let at = self.at;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let token = match self.peek() {
            None => Token::End,
            Some('%') => {
                self.bump();
                let label = self.take_while(is_name);
                if label.is_empty() {
                    return Err(at.unexpected("the number or name of a value behind `%`", self.found()));
                }
                Token::Label(label)
            }
            Some('"') => {
                self.bump();
                Token::Text(self.string(at)?)
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => Token::Word(self.take_while(is_name)),
            Some(c) if c.is_ascii_digit() || c == '-' => self.number(at)?,
            Some(c) if "{}[]=,:.@".contains(c) => {
                self.bump();
                Token::Sign(c)
            }
            Some(c) => return Err(at.unexpected("a token", format!("the character {c:?}"))),
        };
        Ok((token, at))
    }

    fn found(&self) -> String {
        self.peek().map_or("the end of the text".to_owned(), |c| format!("the character {c:?}"))
    }

    fn number(&mut self, at: Position) -> Result<Token<'a>, ParseError> {
        let start = self.at.offset;
        let digit = |c: char| c.is_ascii_digit();
        let mut whole = self.peek() != Some('-');
        if !whole {
            self.bump();
        }
        self.take_while(digit);
        let behind = |lexer: &Lexer, place: usize| lexer.rest().chars().nth(place);
        if self.peek() == Some('.') && behind(self, 1).is_some_and(digit) {
            whole = false;
            self.bump();
            self.take_while(digit);
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            whole = false;
            self.bump();
            if matches!(self.peek(), Some('+' | '-')) {
                self.bump();
            }
            self.take_while(digit);
        }
        let literal = &self.text[start..self.at.offset];
        if whole {
            return match literal.parse() {
                Ok(value) => Ok(Token::Integer(value)),
                Err(_) => Err(at.unexpected(format!("a whole number up to {}", usize::MAX), excerpt(literal))),
            };
        }
        match literal.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Token::Float(value)),
            _ => Err(at.unexpected("a finite number", excerpt(literal))),
        }
    }

    /// The rest of a string, up to and with the closing quote, with Rust's escapes.
    fn string(&mut self, start: Position) -> Result<String, ParseError> {
        let mut contents = String::new();
        loop {
            let at = self.at;
            match self.bump() {
                None | Some('\n') => return Err(start.unexpected("a string closed on its line", "no closing `\"`")),
                Some('"') => return Ok(contents),
                Some('\\') => contents.push(self.escape(at)?),
                Some(c) => contents.push(c),
            }
        }
    }

    fn escape(&mut self, at: Position) -> Result<char, ParseError> {
        let escaped = match self.bump() {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('0') => Some('\0'),
            Some(c @ ('\\' | '"' | '\'')) => Some(c),
            Some('u') if self.peek() == Some('{') => {
                self.bump();
                let digits = self.take_while(|c| c.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                if self.bump() == Some('}') { code } else { None }
            }
            _ => None,
        };
        escaped.ok_or_else(|| {
            at.unexpected(
                r#"one of the escapes \n \r \t \0 \\ \" \' \u{...}"#,
                excerpt(&self.text[at.offset..self.at.offset]),
            )
        })
    }
}
