//! Errors of optimising a graph.

use hyenac_ir::IrError;

/// Why a graph has no optimised form.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PassError {
    /// A broken graph.
    #[error(transparent)]
    Ir(#[from] IrError),
    /// The graph to optimise must be in elementary ops.
    #[error("%{node} ({op}) cannot be rewritten: only graphs of elementary ops can, without regions or parameters")]
    NotElementary {
        /// Index of the node.
        node: usize,
        /// Mnemonic.
        op: &'static str,
    },
    /// A rule unites values of different types or builds terms without meaning.
    #[error(
        "rule {rule} is broken: it {what}; check it with `hyenac rules test`, or leave it out with --without {rule}"
    )]
    Rule {
        /// Name of the rule.
        rule: String,
        /// What it did.
        what: String,
    },
    /// The target has no kernel for some op, alone or within a larger region.
    #[error("the target has no kernel for %{node} = {op}, alone or within a larger region: {reasons}")]
    NoKernel {
        /// Index of the node in the graph that was to be optimised.
        node: usize,
        /// Mnemonic and types.
        op: String,
        /// What the target said, joined by semicolons.
        reasons: String,
    },
}
