//! Side conditions of rules.

use std::collections::BTreeMap;
use std::fmt;

use hyenac_ir::{Binding, DType};

use crate::facts::{Facts, lossless};
use crate::language::Head;
use crate::options::Precision;

/// A side condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `(precision-allows f16)`: the policy allows rounding to this dtype.
    PrecisionAllows(DType),
    /// `(depends-on-input ?x)`: the value differs from call to call.
    DependsOnInput(String),
    /// `(weights-only ?x)`: the value depends on weights and constants only.
    WeightsOnly(String),
    /// `(widens ?w)`: the matrix has more rows than columns.
    Widens(String),
    /// `(narrows ?w)`: the matrix has at most as many rows as columns.
    Narrows(String),
    /// `(lossless ?t ?x)`: every value of the dtype of `?x` is one of format `?t`.
    Lossless(String, String),
}

impl Condition {
    /// The variables a condition speaks of, with whether each must be a tensor.
    pub fn variables(&self) -> Vec<(&str, bool)> {
        match self {
            Condition::PrecisionAllows(_) => Vec::new(),
            Condition::DependsOnInput(x) | Condition::WeightsOnly(x) | Condition::Widens(x) | Condition::Narrows(x) => {
                vec![(x, true)]
            }
            Condition::Lossless(t, x) => vec![(t, false), (x, true)],
        }
    }

    /// Whether the condition holds under a policy for what the variables stand for.
    pub fn holds(&self, precision: Precision, facts: &BTreeMap<String, Facts>) -> bool {
        let value = |name: &str| facts.get(name).and_then(Facts::value);
        let matrix = |name: &str| match value(name)?.ty.shape[..] {
            [rows, columns] => Some((rows, columns)),
            _ => None,
        };
        match self {
            Condition::PrecisionAllows(dtype) => precision.allows(*dtype),
            Condition::DependsOnInput(x) => value(x).is_some_and(|value| value.binding == Binding::Input),
            Condition::WeightsOnly(x) => value(x).is_some_and(|value| value.binding == Binding::Weights),
            Condition::Widens(w) => matrix(w).is_some_and(|(rows, columns)| rows > columns),
            Condition::Narrows(w) => matrix(w).is_some_and(|(rows, columns)| rows <= columns),
            Condition::Lossless(t, x) => match (facts.get(t).and_then(Facts::literal), value(x)) {
                (Some(Head::DType(format)), Some(value)) => lossless(*format, value.ty.dtype),
                _ => false,
            },
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::PrecisionAllows(dtype) => write!(f, "(precision-allows {dtype})"),
            Condition::DependsOnInput(x) => write!(f, "(depends-on-input {x})"),
            Condition::WeightsOnly(x) => write!(f, "(weights-only {x})"),
            Condition::Widens(w) => write!(f, "(widens {w})"),
            Condition::Narrows(w) => write!(f, "(narrows {w})"),
            Condition::Lossless(t, x) => write!(f, "(lossless {t} {x})"),
        }
    }
}
