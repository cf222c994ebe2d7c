//! Rewrite rules: text files, read by one loader whether built in or a user's.

mod apply;
mod condition;
mod error;
mod expression;
mod glob;
mod lexer;
mod parse;
mod set;
mod symbolic;

use std::collections::BTreeMap;
use std::fmt;

pub use condition::Condition;
pub use error::RuleError;
pub use expression::{Expression, Function};
pub use set::RuleSet;
pub use symbolic::{AttributeKind, Element, Extent, Extents, TensorType, VariableType};

/// A directional rewrite rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, unique in a set.
    pub name: String,
    /// The file it was read from.
    pub file: String,
    /// The line of its first word.
    pub line: usize,
    /// The comment directly above it: what it says, as an equation.
    pub equation: String,
    /// What its variables, with their question marks, may stand for.
    pub types: BTreeMap<String, VariableType>,
    /// When it may fire.
    pub conditions: Vec<Condition>,
    /// For a rule that rounds, how far the sides may differ, relative to the larger of 1 and the largest entry
    /// of the left-hand side; a rule without it is exact.
    pub within: Option<f64>,
    /// What it looks for.
    pub left: Expression,
    /// What it adds.
    pub right: Expression,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.equation.lines() {
            writeln!(f, "{}", format!("# {line}").trim_end())?;
        }
        writeln!(f, "rule {}", self.name)?;
        if !self.types.is_empty() {
            let types: Vec<String> = self.types.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
            writeln!(f, "  where {}", types.join("  "))?;
        }
        if !self.conditions.is_empty() {
            let conditions: Vec<String> = self.conditions.iter().map(ToString::to_string).collect();
            writeln!(f, "  when {}", conditions.join(" "))?;
        }
        if let Some(bound) = self.within {
            writeln!(f, "  within {bound:?}")?;
        }
        write!(f, "  {}\n  => {}", self.left, self.right)
    }
}
