//! What may be chosen, and how hard to look.

use serde::{Deserialize, Serialize};

use hyenac_ir::DType;

use crate::rule::RuleSet;

/// The most e-nodes before saturation stops. The whole block needs about a thousand.
pub const NODE_LIMIT: usize = 50_000;
/// The most rounds of rewriting. The whole block needs about ten.
pub const ITERATION_LIMIT: usize = 40;
/// States the search for the best plan keeps after each stored value.
pub const BEAM_WIDTH: usize = 2_000;
/// How many fused fragments of one class are kept as building blocks for larger regions.
///
/// Every fragment the target accepts remains a candidate for the value it computes; bounds limit only what is
/// built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// With the same algorithm on the same input-dependent values, in whatever formats: the cheapest.
    pub per_leaves: usize,
    /// With the same algorithm on weights moved into the same layouts: the most promising.
    pub per_layouts: usize,
    /// Accepted by the target, of one algorithm: the most promising.
    pub accepted: usize,
    /// Refused alone but promised within something larger, of one algorithm: the most promising.
    pub blocks: usize,
    /// That the target is asked about, with the same algorithm on the same input-dependent values.
    pub asked_per_leaves: usize,
    /// That the target is asked about, with the same algorithm on weights moved into the same layouts.
    pub asked_per_layouts: usize,
    /// That the target is asked about, of one algorithm: the most promising.
    pub asked: usize,
}

impl Bounds {
    /// No bounds, for small graphs.
    pub const NONE: Bounds = Bounds {
        per_leaves: usize::MAX,
        per_layouts: usize::MAX,
        accepted: usize::MAX,
        blocks: usize::MAX,
        asked_per_leaves: usize::MAX,
        asked_per_layouts: usize::MAX,
        asked: usize::MAX,
    };
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            per_leaves: 4,
            per_layouts: 3,
            accepted: 32,
            blocks: 32,
            asked_per_leaves: 12,
            asked_per_layouts: 6,
            asked: 160,
        }
    }
}

/// Which roundings are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Operands of matrix products and of the long convolution, and what the mixer stores, may be f16 or tf32.
    #[default]
    Mixed,
    /// Every value is f32.
    Ieee,
}

impl Precision {
    /// Whether values may be rounded to this dtype.
    pub fn allows(self, dtype: DType) -> bool {
        self == Precision::Mixed || matches!(dtype, DType::F32 | DType::C64)
    }
}

/// Whether rules run at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fuse {
    /// Every rule of the set.
    #[default]
    All,
    /// No rule: each op is a region of its own.
    None,
}

/// Options of [`crate::optimize`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Which roundings are allowed.
    pub precision: Precision,
    /// Whether rules run.
    pub fuse: Fuse,
    /// Whether regions that depend on weights only run once and cost nothing.
    pub frozen: bool,
    /// The rules.
    pub rules: RuleSet,
    /// The most e-nodes before saturation stops.
    pub node_limit: usize,
    /// The most rounds of rewriting.
    pub iteration_limit: usize,
    /// States the search keeps.
    pub beam_width: usize,
    /// Fused fragments the enumeration keeps.
    pub bounds: Bounds,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            precision: Precision::default(),
            fuse: Fuse::default(),
            frozen: false,
            rules: RuleSet::builtin(),
            node_limit: NODE_LIMIT,
            iteration_limit: ITERATION_LIMIT,
            beam_width: BEAM_WIDTH,
            bounds: Bounds::default(),
        }
    }
}
