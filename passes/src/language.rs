//! The e-graph's language: one generic node, a head and its children.
//!
//! A term has one of three sorts. A *literal* is an attribute. A *fragment* is a value in flight inside a
//! kernel. A *stored* value lies in memory. `(mat format fragment)` stores a fragment, `(load stored)` brings
//! it back; every other head with children is an elementary op, a fragment, whose attributes stand first, in
//! the order of the op table, before its operands.

use std::fmt;
use std::sync::Arc;

use egg::Id;
use hyenac_ir::{Attribute, DType, Signature};

/// Ops that carry the precision of their operands as first child, in front of their attributes.
pub const WITH_PRECISION: [&str; 2] = ["linear", "long_conv"];

/// Ops of the table that are not terms: sources are leaves, parameters exist in regions only.
const SOURCES: [&str; 3] = ["input", "weight", "parameter"];

/// What a node of the e-graph is, without its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Head {
    /// An elementary op.
    Op(&'static str),
    /// `(mat format fragment)`: the fragment stored in memory.
    Mat,
    /// `(load stored)`: a stored value brought into a kernel.
    Load,
    /// A tensor given with every call.
    Input(Arc<str>),
    /// A tensor of the weights.
    Weight(Arc<str>),
    /// A literal: a dtype, which is also a storage format or an operand precision.
    DType(DType),
    /// A literal: a whole number.
    Integer(usize),
    /// A literal: a real number, by its bits, so that it has an order and can be hashed.
    Float(u64),
    /// A literal: a shape or a permutation.
    List(Arc<[usize]>),
}

impl Head {
    /// The head of an application, by name.
    pub fn of_application(name: &str) -> Option<Head> {
        match name {
            "mat" => Some(Head::Mat),
            "load" => Some(Head::Load),
            _ if SOURCES.contains(&name) => None,
            _ => Signature::of(name).map(|row| Head::Op(row.mnemonic)),
        }
    }

    /// The head of a leaf: a literal, or a source written `input:NAME` or `weight:NAME`.
    pub fn of_leaf(text: &str) -> Option<Head> {
        if let Some(name) = text.strip_prefix("input:") {
            return Some(Head::Input(name.into()));
        }
        if let Some(name) = text.strip_prefix("weight:") {
            return Some(Head::Weight(name.into()));
        }
        if let Some(list) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let list = list.trim();
            let items =
                if list.is_empty() { Ok(Vec::new()) } else { list.split(',').map(|n| n.trim().parse()).collect() };
            return items.ok().map(|items| Head::List(items.into()));
        }
        if let Some(dtype) = DType::from_name(text) {
            return Some(Head::DType(dtype));
        }
        if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') {
            return None;
        }
        match text.parse() {
            Ok(integer) => Some(Head::Integer(integer)),
            Err(_) => text.parse().ok().map(|real: f64| Head::Float(real.to_bits())),
        }
    }

    /// The literal of an attribute; a name is not one.
    pub fn of_attribute(attribute: &Attribute) -> Option<Head> {
        match attribute {
            Attribute::Integer(value) => Some(Head::Integer(*value)),
            Attribute::Float(value) => Some(Head::Float(value.to_bits())),
            Attribute::List(values) => Some(Head::List(values.as_slice().into())),
            Attribute::Word(word) => DType::from_name(word).map(Head::DType),
            Attribute::Name(_) => None,
        }
    }

    /// The attribute of a literal.
    pub fn attribute(&self) -> Option<Attribute> {
        match self {
            Head::DType(dtype) => Some(Attribute::Word(dtype.name().to_owned())),
            Head::Integer(value) => Some(Attribute::Integer(*value)),
            Head::Float(bits) => Some(Attribute::Float(f64::from_bits(*bits))),
            Head::List(values) => Some(Attribute::List(values.to_vec())),
            Head::Op(_) | Head::Mat | Head::Load | Head::Input(_) | Head::Weight(_) => None,
        }
    }

    /// How many literal children, then how many term children a node of this head has.
    pub fn arity(&self) -> (usize, usize) {
        match self {
            Head::Op(mnemonic) => {
                let precision = usize::from(WITH_PRECISION.contains(mnemonic));
                Signature::of(mnemonic).map_or((0, 0), |row| (precision + row.attributes.len(), row.operands.len()))
            }
            Head::Mat => (1, 1),
            Head::Load => (0, 1),
            _ => (0, 0),
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Head::Op(mnemonic) => f.write_str(mnemonic),
            Head::Mat => f.write_str("mat"),
            Head::Load => f.write_str("load"),
            Head::Input(name) => write!(f, "input:{name}"),
            Head::Weight(name) => write!(f, "weight:{name}"),
            Head::DType(dtype) => f.write_str(dtype.name()),
            Head::Integer(value) => write!(f, "{value}"),
            Head::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Head::List(values) => {
                f.write_str("[")?;
                for (position, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if position > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A node of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    /// What it is.
    pub head: Head,
    /// Literal children, then term children.
    pub children: Vec<Id>,
}

impl Term {
    /// A node without children.
    pub fn leaf(head: Head) -> Term {
        Term { head, children: Vec::new() }
    }

    /// The children that are literals and the children that are terms.
    pub fn split(&self) -> (&[Id], &[Id]) {
        let (literals, _) = self.head.arity();
        self.children.split_at(literals.min(self.children.len()))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head.fmt(f)
    }
}

impl egg::Language for Term {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Term) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl egg::FromOp for Term {
    type Error = egg::FromOpError;

    fn from_op(op: &str, children: Vec<Id>) -> Result<Term, egg::FromOpError> {
        let head = if children.is_empty() { Head::of_leaf(op) } else { Head::of_application(op) };
        match head {
            Some(head)
                if {
                    let (literals, terms) = head.arity();
                    literals + terms
                } == children.len() =>
            {
                Ok(Term { head, children })
            }
            _ => Err(egg::FromOpError::new(op, children)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egg::RecExpr;

    #[test]
    fn terms_print_as_they_parse() {
        for text in [
            "(layer_norm 1e-5 (load input:x) (load weight:w) (load weight:b))",
            "(slice 1 0 256 (load (mat f16 (linear f16 (load input:x) (load weight:w)))))",
            "(transpose [0,2,1] (cast f16 (load input:x)))",
            "(add (scalar 0.05) (positional_embedding 8 8 5))",
            "(reshape [] (load input:x))",
        ] {
            let term: RecExpr<Term> = text.parse().unwrap();
            assert_eq!(term.to_string(), text);
        }
    }

    #[test]
    fn wrong_arity_and_unknown_heads_do_not_parse() {
        for text in ["(linear (load input:x) (load weight:w))", "(relu (load input:x))", "(load x)", "(input f32 1 2)"]
        {
            assert!(text.parse::<RecExpr<Term>>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_attribute_of_the_table_has_a_literal() {
        for attribute in [
            Attribute::Integer(3),
            Attribute::Float(0.1),
            Attribute::List(vec![0, 2, 1]),
            Attribute::Word("f16".to_owned()),
        ] {
            assert_eq!(Head::of_attribute(&attribute).unwrap().attribute().unwrap(), attribute);
        }
    }
}
