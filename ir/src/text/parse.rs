//! Parsing. The grammar nests twice at most (a graph, the body of a region), so the stack is bounded.

use std::collections::BTreeMap;

use super::Written;
use super::error::{ParseError, ParseProblem, nearest};
use super::lex::{Lexer, Position, Token};
use crate::attribute::Attribute;
use crate::error::IrError;
use petgraph::graph::NodeIndex;

use crate::graph::{Graph, Value};
use crate::op::{Op, Signature, TABLE};
use crate::region::Region;
use crate::types::{Binding, DType, Type};

/// Parses a graph and verifies it.
///
/// # Errors
/// The first place where the text is not a valid graph.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut lexer = Lexer::new(text);
    let (token, at) = lexer.next()?;
    let mut parser = Parser { lexer, token, at };
    parser.keyword("graph")?;
    let block = parser.block(false)?;
    if parser.token != Token::End {
        return Err(parser.unexpected("nothing behind the graph"));
    }
    block.graph.verify().map_err(|error| {
        let at = match error {
            IrError::Invalid { node, .. } => block.positions.get(node).copied(),
            _ => None,
        };
        at.unwrap_or(block.end).error(ParseProblem::Graph(error))
    })?;
    Ok(block.graph)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token and where it starts.
    token: Token<'a>,
    at: Position,
}

/// A parsed block, with the place of every node and of its `return`.
struct Block {
    graph: Graph,
    positions: Vec<Position>,
    end: Position,
}

/// Nodes of the block at hand by their label.
type Labels<'a> = BTreeMap<&'a str, NodeIndex>;

/// The types behind a colon.
struct Annotation {
    types: Vec<Type>,
    binding: Option<Binding>,
    at: Position,
}

impl<'a> Parser<'a> {
    fn advance(&mut self) -> Result<Token<'a>, ParseError> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn unexpected(&self, expected: impl Into<String>) -> ParseError {
        self.at.unexpected(expected, self.token.describe())
    }

    fn misspelt<'k>(
        &self,
        expected: impl Into<String>,
        word: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) -> ParseError {
        let (expected, found) = (expected.into(), self.token.describe());
        self.at.error(ParseProblem::Unexpected { expected, found, suggestion: nearest(word, known) })
    }

    fn accept(&mut self, sign: char) -> Result<bool, ParseError> {
        let there = self.token == Token::Sign(sign);
        if there {
            self.advance()?;
        }
        Ok(there)
    }

    fn sign(&mut self, sign: char) -> Result<(), ParseError> {
        if self.accept(sign)? { Ok(()) } else { Err(self.unexpected(format!("`{sign}`"))) }
    }

    fn keyword(&mut self, keyword: &str) -> Result<(), ParseError> {
        if self.token == Token::Word(keyword) {
            self.advance()?;
            return Ok(());
        }
        match self.token {
            Token::Word(word) => Err(self.misspelt(format!("`{keyword}`"), word, [keyword])),
            _ => Err(self.unexpected(format!("`{keyword}`"))),
        }
    }

    fn integer(&mut self, expected: &str) -> Result<usize, ParseError> {
        let Token::Integer(value) = self.token else { return Err(self.unexpected(expected)) };
        self.advance()?;
        Ok(value)
    }

    fn text(&mut self, expected: &str) -> Result<String, ParseError> {
        if !matches!(self.token, Token::Text(_)) {
            return Err(self.unexpected(expected));
        }
        match self.advance()? {
            Token::Text(text) => Ok(text),
            _ => Err(self.unexpected(expected)),
        }
    }

    /// `{ nodes return values }`
    fn block(&mut self, in_region: bool) -> Result<Block, ParseError> {
        self.sign('{')?;
        let mut graph = Graph::new();
        let mut labels = Labels::new();
        let mut positions = Vec::new();
        while let Token::Label(label) = self.token {
            positions.push(self.at);
            if labels.contains_key(label) {
                return Err(self.unexpected("a label that is not taken"));
            }
            self.advance()?;
            self.sign('=')?;
            let node = self.node(&mut graph, &labels, in_region)?;
            labels.insert(label, node);
        }
        let end = self.at;
        match self.token {
            Token::Word("return") => self.advance()?,
            Token::Word(word) => return Err(self.misspelt("`%label = op` or `return`", word, ["return"])),
            _ => return Err(self.unexpected("`%label = op` or `return`")),
        };
        loop {
            let output = self.operand(&graph, &labels)?;
            graph.add_output(output);
            if !self.accept(',')? {
                break;
            }
        }
        self.sign('}')?;
        Ok(Block { graph, positions, end })
    }

    /// The right side of a definition.
    fn node(&mut self, graph: &mut Graph, labels: &Labels<'a>, in_region: bool) -> Result<NodeIndex, ParseError> {
        let at = self.at;
        let mnemonics = || TABLE.iter().map(|row| row.mnemonic).chain(["region"]);
        let Token::Word(word) = self.token else { return Err(self.unexpected("the name of an op")) };
        if word == "region" {
            if in_region {
                return Err(self.unexpected("an elementary op, since regions do not nest"));
            }
            self.advance()?;
            return self.region(graph, labels, at);
        }
        let Some(row) = Signature::of(word) else {
            return Err(self.misspelt("the name of an op", word, mnemonics()));
        };
        self.advance()?;
        let behind = match row.attributes.iter().find(|name| Written::of(name) == Written::Behind) {
            Some(_) => Some(self.text(&format!("the name of the {word} in quotes"))?),
            None => None,
        };
        let operands = self.operands(graph, labels)?;
        let in_braces = self.attributes(row)?;
        let annotation = self.annotation()?;
        let mut attributes = Vec::with_capacity(row.attributes.len());
        for name in row.attributes {
            let ty = annotation.as_ref().and_then(|annotation| annotation.types.first());
            let attribute = match Written::of(name) {
                Written::Behind => behind.clone().map(Attribute::Name),
                Written::ByDType => ty.map(|ty| Attribute::Word(ty.dtype.name().to_owned())),
                Written::ByShape => ty.map(|ty| Attribute::List(ty.shape.clone())),
                Written::ByBinding => {
                    let binding = annotation.as_ref().and_then(|annotation| annotation.binding);
                    Some(Attribute::Word(binding.unwrap_or(Binding::Input).name().to_owned()))
                }
                Written::InBraces => in_braces.get(name).cloned(),
            };
            let Some(attribute) = attribute else {
                return Err(self.unexpected(match Written::of(name) {
                    Written::InBraces => format!("the attribute `{name}` of {word}, as in {{{name} = ...}}"),
                    _ => format!("`:` and the type of the {word}"),
                }));
            };
            attributes.push(attribute);
        }
        let graph_error = |error| at.error(ParseProblem::Graph(error));
        let op: Op = row.build(&attributes).map_err(graph_error)?;
        let node = graph.add(op, &operands).map_err(graph_error)?.node;
        agree(graph, node, annotation)?;
        Ok(node)
    }

    /// A region, behind its keyword.
    fn region(&mut self, graph: &mut Graph, labels: &Labels<'a>, at: Position) -> Result<NodeIndex, ParseError> {
        let operands = self.operands(graph, labels)?;
        let mut schedule = String::new();
        if let Token::Word(word) = self.token {
            if word != "schedule" {
                return Err(self.misspelt("`schedule` or `{`", word, ["schedule"]));
            }
            self.advance()?;
            schedule = self.text("the schedule in quotes")?;
        }
        let body = self.block(true)?.graph;
        let annotation = self.annotation()?;
        let mut region = Region::new(body);
        region.schedule = schedule;
        let node = graph.add_region(region, &operands).map_err(|error| at.error(ParseProblem::Graph(error)))?;
        agree(graph, node, annotation)?;
        Ok(node)
    }

    /// `%a, %b.1`, possibly none.
    fn operands(&mut self, graph: &Graph, labels: &Labels<'a>) -> Result<Vec<Value>, ParseError> {
        let mut operands = Vec::new();
        // Without operands, a label here starts the next definition.
        if !matches!(self.token, Token::Label(_)) || self.starts_definition() {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(graph, labels)?);
            if !self.accept(',')? {
                return Ok(operands);
            }
        }
    }

    /// Whether the label at hand is followed by `=`.
    fn starts_definition(&self) -> bool {
        let mut ahead = self.lexer;
        matches!(ahead.next(), Ok((Token::Sign('='), _)))
    }

    fn operand(&mut self, graph: &Graph, labels: &Labels<'a>) -> Result<Value, ParseError> {
        let Token::Label(label) = self.token else { return Err(self.unexpected("a value such as %3")) };
        let Some(&node) = labels.get(label) else {
            return Err(self.unexpected("a value defined above in this block"));
        };
        self.advance()?;
        let mut output = 0;
        if self.accept('.')? {
            let count = graph.node(node).types.len();
            let expected = format!("the number of an output, below {count}");
            match self.token {
                Token::Integer(value) if value < count => output = value,
                _ => return Err(self.unexpected(expected)),
            }
            self.advance()?;
        }
        Ok(Value { node, output: output as u32 })
    }

    /// `{name = value, ...}`, possibly absent.
    fn attributes(&mut self, row: &'static Signature) -> Result<BTreeMap<&'static str, Attribute>, ParseError> {
        let mut attributes = BTreeMap::new();
        let known = || row.attributes.iter().copied().filter(|name| Written::of(name) == Written::InBraces);
        if known().next().is_none() || !self.accept('{')? {
            return Ok(attributes);
        }
        loop {
            let Token::Word(word) = self.token else {
                return Err(self.unexpected(format!("the name of an attribute of {}", row.mnemonic)));
            };
            let Some(name) = known().find(|&name| name == word) else {
                let list = known().collect::<Vec<_>>().join(", ");
                return Err(self.misspelt(format!("an attribute of {} ({list})", row.mnemonic), word, known()));
            };
            if attributes.contains_key(name) {
                return Err(self.unexpected(format!("`{name}` once")));
            }
            self.advance()?;
            self.sign('=')?;
            attributes.insert(name, self.value()?);
            if !self.accept(',')? {
                break;
            }
        }
        self.sign('}')?;
        Ok(attributes)
    }

    fn value(&mut self) -> Result<Attribute, ParseError> {
        if self.token == Token::Sign('[') {
            return self.list().map(Attribute::List);
        }
        let value = match &self.token {
            Token::Integer(value) => Attribute::Integer(*value),
            Token::Float(value) => Attribute::Float(*value),
            Token::Word(word) => Attribute::Word((*word).to_owned()),
            Token::Text(text) => Attribute::Name(text.clone()),
            _ => return Err(self.unexpected("the value of the attribute")),
        };
        self.advance()?;
        Ok(value)
    }

    /// `[1, 2, 3]`
    fn list(&mut self) -> Result<Vec<usize>, ParseError> {
        self.sign('[')?;
        let mut values = Vec::new();
        if self.accept(']')? {
            return Ok(values);
        }
        loop {
            values.push(self.integer("a whole number")?);
            if !self.accept(',')? {
                break;
            }
        }
        self.sign(']')?;
        Ok(values)
    }

    /// `: type, ... @binding`, possibly absent.
    fn annotation(&mut self) -> Result<Option<Annotation>, ParseError> {
        if !self.accept(':')? {
            return Ok(None);
        }
        let at = self.at;
        let mut types = Vec::new();
        loop {
            let names = || DType::ALL.iter().map(|dtype| dtype.name());
            let Token::Word(word) = self.token else { return Err(self.unexpected("a type such as f32[2, 3]")) };
            let Some(dtype) = DType::from_name(word) else {
                return Err(self.misspelt("a type such as f32[2, 3]", word, names()));
            };
            self.advance()?;
            types.push(Type::new(dtype, self.list()?));
            if !self.accept(',')? {
                break;
            }
        }
        let mut binding = None;
        if self.accept('@')? {
            let names = [Binding::Weights.name(), Binding::Input.name()];
            let Token::Word(word) = self.token else { return Err(self.unexpected("`weights` or `input`")) };
            binding = Binding::from_name(word);
            if binding.is_none() {
                return Err(self.misspelt("`weights` or `input`", word, names));
            }
            self.advance()?;
        }
        Ok(Some(Annotation { types, binding, at }))
    }
}

/// What is written about the results must be what follows from the operands.
fn agree(graph: &Graph, node: NodeIndex, annotation: Option<Annotation>) -> Result<(), ParseError> {
    let Some(annotation) = annotation else { return Ok(()) };
    let node = graph.node(node);
    let list = |types: &[Type]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if annotation.types != node.types {
        let expected = format!("`{}`, which follows from the operands", list(&node.types));
        return Err(annotation.at.unexpected(expected, format!("`{}`", list(&annotation.types))));
    }
    match annotation.binding {
        Some(binding) if binding != node.binding => Err(annotation.at.unexpected(
            format!("the binding `{}`, which follows from the operands", node.binding.name()),
            format!("`{}`", binding.name()),
        )),
        _ => Ok(()),
    }
}
