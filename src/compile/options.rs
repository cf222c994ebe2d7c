//! How a block is compiled.

use hyenac_kernels::{Device, Mode};
use hyenac_passes::{Fuse, Precision};
use serde::{Deserialize, Serialize};

use super::tuning::TuningChoice;
use crate::target::Machine;

/// A file of rewrite rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFile {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Everything that a compilation depends on beside the block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOptions {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens of each.
    pub seq_len: usize,
    /// Which roundings are allowed.
    pub precision: Precision,
    /// Whether ops are fused.
    pub fuse: Fuse,
    /// How weights will be bound.
    pub mode: Mode,
    /// Rules beside the built-in ones.
    pub rules: Vec<RuleFile>,
    /// Patterns of the names of rules to leave out, in which `*` stands for any characters.
    pub without: Vec<String>,
    /// Which measured times prices rest on.
    pub tuning: TuningChoice,
    /// What is compiled for.
    pub machine: Machine,
}

impl CompileOptions {
    /// The defaults at this size: mixed precision, fused, frozen weights, for an H200, with the times that were measured on it.
    pub fn new(batch: usize, seq_len: usize) -> CompileOptions {
        CompileOptions {
            batch,
            seq_len,
            precision: Precision::Mixed,
            fuse: Fuse::All,
            mode: Mode::Frozen,
            rules: Vec::new(),
            without: Vec::new(),
            tuning: TuningChoice::Shipped,
            machine: Machine::Gpu(Device::h200()),
        }
    }
}
