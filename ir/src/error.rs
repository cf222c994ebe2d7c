//! Errors of building and verifying a graph.

use crate::types::Type;

/// Why a graph cannot be built, verified or evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum IrError {
    /// An op has the wrong number of attributes.
    #[error("{op} takes {expected} attributes, found {found}")]
    AttributeCount {
        /// Mnemonic.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Number given.
        found: usize,
    },
    /// An attribute has the wrong form.
    #[error("attribute `{attribute}` of {op} must be {expected}, found `{found}`")]
    Attribute {
        /// Mnemonic.
        op: &'static str,
        /// Attribute name.
        attribute: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it was.
        found: String,
    },
    /// An op has the wrong number of operands.
    #[error("{op} takes {expected} operands, found {found}")]
    Arity {
        /// Mnemonic.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Number given.
        found: usize,
    },
    /// Operand types do not fit the op.
    #[error("{op}({}): {why}", list(.operands))]
    Types {
        /// Mnemonic.
        op: &'static str,
        /// Types of the operands.
        operands: Vec<Type>,
        /// What does not fit, and what would.
        why: String,
    },
    /// A configuration outside the limits.
    #[error("{field} = {value}: {why}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The limit.
        why: String,
    },
    /// The verifier found a broken invariant.
    #[error("invalid graph at %{node} ({op}): {why}")]
    Invalid {
        /// Index of the node.
        node: usize,
        /// Mnemonic.
        op: &'static str,
        /// The invariant that does not hold.
        why: String,
    },
    /// A tensor needed for evaluation is missing or has another type.
    #[error("tensor `{name}`: {why}")]
    Tensor {
        /// Name of the input or weight.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

fn list(types: &[Type]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
