//! Regions: the only fused op.

use crate::graph::Graph;

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
}
