//! Regions: the only fused op.

use crate::graph::Graph;
use crate::op::Op;

/// A piece of a graph that one kernel (or one short chain of kernels) computes.
///
/// The body is a graph of elementary ops whose sources are [`crate::Op::Parameter`]s, one per
/// operand of the region, and scalars. The body *is* the meaning of the region.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    body: Graph,
    /// The schedule the target chose, in the target's own words; empty until priced.
    pub schedule: String,
}

impl Region {
    /// A region of this body, not yet scheduled.
    pub fn new(body: Graph) -> Region {
        Region { body, schedule: String::new() }
    }

    /// The defining body.
    pub fn body(&self) -> &Graph {
        &self.body
    }

    /// The ops of the body in one line, in order of first use: `layer_norm, linear x2, add x2`.
    /// Parameters and scalars are left out.
    pub fn describe(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for node in self.body.nodes() {
            let op = &self.body.node(node).op;
            if matches!(op, Op::Parameter { .. } | Op::Scalar { .. }) {
                continue;
            }
            match counts.iter_mut().find(|(mnemonic, _)| *mnemonic == op.mnemonic()) {
                Some((_, count)) => *count += 1,
                None => counts.push((op.mnemonic(), 1)),
            }
        }
        let words = counts.into_iter().map(|(mnemonic, count)| match count {
            1 => mnemonic.to_owned(),
            _ => format!("{mnemonic} x{count}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}
