//! Tokens of a rule file.

use std::collections::BTreeMap;

use super::error::RuleError;

/// A position in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column in characters.
    pub column: usize,
}

/// A token: one of `( ) [ ] , :` or a word, which is anything else up to a space or one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The text of the token.
    pub text: String,
    /// Where it starts.
    pub place: Place,
}

/// A file cut into tokens.
pub struct Tokens {
    /// The tokens in order.
    pub tokens: Vec<Token>,
    /// Comments that have a line to themselves, without the mark, by line.
    pub comments: BTreeMap<usize, String>,
    /// Where the file ends.
    pub end: Place,
}

const DELIMITERS: &str = "()[],:";

/// Cuts a file into tokens; `#` starts a comment.
pub fn cut(text: &str) -> Tokens {
    let mut tokens: Vec<Token> = Vec::new();
    let mut comments = BTreeMap::new();
    let mut end = Place { line: 1, column: 1 };
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let (code, comment) = line.split_once('#').map_or((line, None), |(code, comment)| (code, Some(comment)));
        if let Some(comment) = comment.filter(|_| code.trim().is_empty()) {
            comments.insert(number, comment.trim_start_matches('#').trim().to_owned());
        }
        let mut open_word = false;
        for (column, c) in code.chars().enumerate() {
            let place = Place { line: number, column: column + 1 };
            if c.is_whitespace() {
                open_word = false;
            } else if DELIMITERS.contains(c) {
                tokens.push(Token { text: c.to_string(), place });
                open_word = false;
            } else {
                match tokens.last_mut().filter(|_| open_word) {
                    Some(word) => word.text.push(c),
                    None => tokens.push(Token { text: c.to_string(), place }),
                }
                open_word = true;
            }
        }
        end = Place { line: number, column: code.chars().count() + 1 };
    }
    Tokens { tokens, comments, end }
}

/// A reader of tokens that knows where it is.
pub struct Cursor<'a> {
    file: &'a str,
    tokens: &'a Tokens,
    next: usize,
}

impl<'a> Cursor<'a> {
    /// A reader at the start of a file.
    pub fn new(file: &'a str, tokens: &'a Tokens) -> Cursor<'a> {
        Cursor { file, tokens, next: 0 }
    }

    /// The next token, if there is one.
    pub fn peek(&self) -> Option<&'a Token> {
        self.tokens.tokens.get(self.next)
    }

    /// The token after the next one.
    pub fn peek_second(&self) -> Option<&'a Token> {
        self.tokens.tokens.get(self.next + 1)
    }

    /// Whether the next token is this text.
    pub fn at(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.text == text)
    }

    /// Where the next token starts.
    pub fn place(&self) -> Place {
        self.peek().map_or(self.tokens.end, |token| token.place)
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// At the end of the file.
    pub fn take(&mut self, expected: &str) -> Result<&'a Token, RuleError> {
        let token = self.peek().ok_or_else(|| self.error(format!("expected {expected}, found the end of the file")))?;
        self.next += 1;
        Ok(token)
    }

    /// Takes the next token if it is this text.
    pub fn accept(&mut self, text: &str) -> bool {
        let found = self.at(text);
        self.next += usize::from(found);
        found
    }

    /// Takes the next token, which must be this text.
    ///
    /// # Errors
    /// When it is another.
    pub fn expect(&mut self, text: &str) -> Result<(), RuleError> {
        if self.accept(text) {
            return Ok(());
        }
        let found = self.peek().map_or("the end of the file".to_owned(), |token| format!("`{}`", token.text));
        Err(self.error(format!("expected `{text}`, found {found}")))
    }

    /// An error at the next token.
    pub fn error(&self, message: impl Into<String>) -> RuleError {
        self.error_at(self.place(), message)
    }

    /// An error at a place.
    pub fn error_at(&self, place: Place, message: impl Into<String>) -> RuleError {
        RuleError { file: self.file.to_owned(), line: place.line, column: place.column, message: message.into() }
    }

    /// The comment that stands directly above a line.
    pub fn comment_above(&self, line: usize) -> String {
        let first = (1..line).rev().take_while(|number| self.tokens.comments.contains_key(number)).last();
        let Some(first) = first else { return String::new() };
        let lines: Vec<&str> = self.tokens.comments.range(first..line).map(|(_, comment)| comment.as_str()).collect();
        lines.join("\n")
    }
}
