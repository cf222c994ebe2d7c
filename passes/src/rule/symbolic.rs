//! Symbolic types: what a variable of a rule may stand for.

use std::collections::BTreeMap;
use std::fmt;

use hyenac_ir::{DType, Type};

use crate::language::Head;

/// Dtypes a tensor may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Exactly this one.
    Exactly(DType),
    /// Any but c64.
    Real,
    /// Any.
    Any,
}

impl Element {
    /// The element of this name.
    pub fn of(name: &str) -> Option<Element> {
        match name {
            "real" => Some(Element::Real),
            "any" => Some(Element::Any),
            _ => DType::from_name(name).map(Element::Exactly),
        }
    }

    /// Whether a dtype is one of these.
    pub fn admits(self, dtype: DType) -> bool {
        match self {
            Element::Exactly(exact) => exact == dtype,
            Element::Real => dtype.is_real(),
            Element::Any => true,
        }
    }
}

/// One extent of a symbolic shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This number.
    Exactly(usize),
    /// The same number wherever the name stands in the rule.
    Named(String),
    /// A multiple, written `64*P`, of what the name stands for.
    Multiple(usize, String),
}

/// A symbolic tensor type, for example `f32[.., K]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Dtypes.
    pub element: Element,
    /// Name of the leading extents if any may stand there; the same name, also the empty one, means the same
    /// extents wherever it stands in the rule.
    pub leading: Option<String>,
    /// The other extents.
    pub extents: Vec<Extent>,
}

/// What a variable in the place of an attribute may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeKind {
    /// Operand precision: f32, f16 or tf32.
    Precision,
    /// Storage format: any dtype.
    Format,
    /// An axis.
    Axis,
    /// A count that may be zero.
    Count,
    /// An extent, at least 1.
    Length,
    /// A transform size, even.
    Size,
    /// A permutation.
    Permutation,
    /// A shape.
    Shape,
    /// A real number.
    Number,
}

impl AttributeKind {
    /// Every kind with its name in rule files.
    pub const ALL: [(&'static str, AttributeKind); 9] = [
        ("precision", AttributeKind::Precision),
        ("format", AttributeKind::Format),
        ("axis", AttributeKind::Axis),
        ("count", AttributeKind::Count),
        ("length", AttributeKind::Length),
        ("size", AttributeKind::Size),
        ("permutation", AttributeKind::Permutation),
        ("shape", AttributeKind::Shape),
        ("number", AttributeKind::Number),
    ];

    /// Whether a literal is of this kind.
    pub fn admits(self, literal: &Head) -> bool {
        match (self, literal) {
            (AttributeKind::Precision, Head::DType(dtype)) => dtype.is_real(),
            (AttributeKind::Format, Head::DType(_)) => true,
            (AttributeKind::Axis | AttributeKind::Count, Head::Integer(_)) => true,
            (AttributeKind::Length, Head::Integer(value)) => *value > 0,
            (AttributeKind::Size, Head::Integer(value)) => *value > 0 && value % 2 == 0,
            (AttributeKind::Permutation | AttributeKind::Shape, Head::List(_)) => true,
            (AttributeKind::Number, Head::Float(_)) => true,
            _ => false,
        }
    }
}

/// The declared type of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VariableType {
    /// A fragment or a stored value.
    Tensor(TensorType),
    /// A literal.
    Attribute(AttributeKind),
}

impl fmt::Display for VariableType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VariableType::Attribute(kind) => {
                let name = AttributeKind::ALL.iter().find(|(_, other)| other == kind).map_or("", |(name, _)| name);
                f.write_str(name)
            }
            VariableType::Tensor(tensor) => {
                match tensor.element {
                    Element::Exactly(dtype) => write!(f, "{dtype}[")?,
                    Element::Real => f.write_str("real[")?,
                    Element::Any => f.write_str("any[")?,
                }
                let leading = tensor.leading.iter().map(|name| format!("..{name}"));
                let extents = tensor.extents.iter().map(|extent| match extent {
                    Extent::Exactly(value) => value.to_string(),
                    Extent::Named(name) => name.clone(),
                    Extent::Multiple(factor, name) => format!("{factor}*{name}"),
                });
                write!(f, "{}]", leading.chain(extents).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// What the names in symbolic types stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Single extents.
    pub named: BTreeMap<String, usize>,
    /// Leading extents.
    pub leading: BTreeMap<String, Vec<usize>>,
}

impl Extents {
    /// Whether a type is an instance of a symbolic type, given what the names stand for; learns new names.
    pub fn admits(&mut self, symbolic: &TensorType, ty: &Type) -> bool {
        if !symbolic.element.admits(ty.dtype) {
            return false;
        }
        let Some(split) = ty.shape.len().checked_sub(symbolic.extents.len()) else { return false };
        let (leading, trailing) = ty.shape.split_at(split);
        let leading_fits = match &symbolic.leading {
            None => leading.is_empty(),
            Some(name) => self.leading.entry(name.clone()).or_insert_with(|| leading.to_vec()) == leading,
        };
        leading_fits
            && symbolic.extents.iter().zip(trailing).all(|(extent, &actual)| match extent {
                Extent::Exactly(exact) => *exact == actual,
                Extent::Named(name) => *self.named.entry(name.clone()).or_insert(actual) == actual,
                Extent::Multiple(factor, name) => {
                    actual.is_multiple_of(*factor)
                        && *self.named.entry(name.clone()).or_insert(actual / factor) == actual / factor
                }
            })
    }
}
