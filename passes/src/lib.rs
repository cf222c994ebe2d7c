//! Equality saturation over the HyenaBlock IR: rules, analyses, extraction of regions.

#[cfg(test)]
mod compositions;
mod encode;
mod error;
mod extract;
mod facts;
mod fft_size;
mod language;
mod optimize;
mod options;
mod report;
pub mod rule;
mod saturate;
pub mod soundness;
mod target;

pub use error::PassError;
pub use fft_size::fft_size;
pub use optimize::{Optimized, optimize};
pub use options::{BEAM_WIDTH, Bounds, Fuse, ITERATION_LIMIT, NODE_LIMIT, Options, Precision};
pub use report::{Choice, RegionReport, Report};
pub use rule::{Rule, RuleError, RuleSet};
pub use target::{Basis, Offer, Refusal, Target};
