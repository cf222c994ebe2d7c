//! Attribute values of ops, as the text format and the e-graph see them.

use std::fmt;

use crate::types::{Binding, DType};

/// The value of one attribute of an op.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Attribute {
    /// A count, an axis or an extent.
    Integer(usize),
    /// A real constant.
    Float(f64),
    /// A shape or a permutation.
    List(Vec<usize>),
    /// A dtype or a binding time.
    Word(String),
    /// The name of a tensor.
    Name(String),
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Integer(value) => write!(f, "{value}"),
            // `{:?}` prints the shortest text that parses back to the same double, and always marks it as a float.
            Attribute::Float(value) => write!(f, "{value:?}"),
            Attribute::List(values) => {
                f.write_str("[")?;
                for (position, value) in values.iter().enumerate() {
                    if position > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{value}")?;
                }
                f.write_str("]")
            }
            Attribute::Word(word) => f.write_str(word),
            Attribute::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// A Rust type that can stand in an op's attribute.
pub trait AttributeValue: Sized {
    /// What the attribute must be, for error messages.
    const EXPECTED: &'static str;
    /// The attribute of this value.
    fn to_attribute(&self) -> Attribute;
    /// The value of this attribute, if it has the right form.
    fn from_attribute(attribute: &Attribute) -> Option<Self>;
}

impl AttributeValue for usize {
    const EXPECTED: &'static str = "a whole number";
    fn to_attribute(&self) -> Attribute {
        Attribute::Integer(*self)
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::Integer(value) => Some(*value),
            _ => None,
        }
    }
}

impl AttributeValue for f64 {
    const EXPECTED: &'static str = "a number";
    fn to_attribute(&self) -> Attribute {
        Attribute::Float(*self)
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::Float(value) => Some(*value),
            Attribute::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }
}

impl AttributeValue for Vec<usize> {
    const EXPECTED: &'static str = "a list such as [0, 2, 1]";
    fn to_attribute(&self) -> Attribute {
        Attribute::List(self.clone())
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::List(values) => Some(values.clone()),
            _ => None,
        }
    }
}

impl AttributeValue for String {
    const EXPECTED: &'static str = "a name in double quotes";
    fn to_attribute(&self) -> Attribute {
        Attribute::Name(self.clone())
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::Name(name) => Some(name.clone()),
            _ => None,
        }
    }
}

impl AttributeValue for DType {
    const EXPECTED: &'static str = "one of f32, f16, tf32, c64";
    fn to_attribute(&self) -> Attribute {
        Attribute::Word(self.name().to_owned())
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::Word(word) => DType::from_name(word),
            _ => None,
        }
    }
}

impl AttributeValue for Binding {
    const EXPECTED: &'static str = "one of weights, input";
    fn to_attribute(&self) -> Attribute {
        Attribute::Word(self.name().to_owned())
    }
    fn from_attribute(attribute: &Attribute) -> Option<Self> {
        match attribute {
            Attribute::Word(word) => Binding::from_name(word),
            _ => None,
        }
    }
}
