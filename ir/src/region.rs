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

    /// The ops of the body in one line, for people: `layer_norm, linear, add x2`.
    pub fn describe(&self) -> String {
        let mut words: Vec<(&str, usize)> = Vec::new();
        for node in self.body.nodes() {
            let op = &self.body.node(node).op;
            if matches!(op, Op::Parameter { .. } | Op::Scalar { .. }) {
                continue;
            }
            match words.last_mut() {
                Some((word, count)) if *word == op.mnemonic() => *count += 1,
                _ => words.push((op.mnemonic(), 1)),
            }
        }
        let words: Vec<String> = words
            .into_iter()
            .map(|(word, count)| if count > 1 { format!("{word} x{count}") } else { word.to_owned() })
            .collect();
        words.join(", ")
    }
}
