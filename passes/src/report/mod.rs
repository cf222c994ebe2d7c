//! What a compilation did and why: data, and a table for people.

mod build;
mod table;

use std::collections::BTreeMap;

use hyenac_ir::Binding;
use serde::{Deserialize, Serialize};

use crate::target::Basis;

pub(crate) use build::{Run, report};

/// What fired, what was chosen and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How often each rule changed something; rules that never did are absent.
    pub rules_fired: BTreeMap<String, usize>,
    /// Why rewriting stopped.
    pub stop_reason: String,
    /// Rounds of rewriting.
    pub iterations: usize,
    /// Classes of the e-graph.
    pub classes: usize,
    /// Nodes of the e-graph.
    pub nodes: usize,
    /// Regions the target was asked about.
    pub regions_priced: usize,
    /// Fused fragments that were given up to keep their number bounded.
    pub fragments_dropped: usize,
    /// Whether the beam never cut, so that no plan of the priced regions is cheaper.
    pub exact: bool,
    /// Whether regions that depend on weights only run once, at bind, and are not in the total.
    pub frozen: bool,
    /// The regions in the order of the graph.
    pub regions: Vec<RegionReport>,
    /// What a call takes, microseconds.
    pub total_us: f64,
    /// The convolution algorithms, `direct` and `fft`, that the plan uses.
    pub convolution: Vec<String>,
    /// What the best plan with the direct convolution takes, microseconds; absent if there is none.
    pub direct_us: Option<f64>,
    /// What the best plan with the Fourier transform takes, microseconds; absent if there is none.
    pub fft_us: Option<f64>,
    /// For every choice the best plan without it.
    pub choices: Vec<Choice>,
}

/// One region of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Index of its node in the graph of regions.
    pub node: usize,
    /// Its ops in order.
    pub ops: String,
    /// Its term.
    pub term: String,
    /// What it loads: names of tensors and regions, `%n`.
    pub operands: Vec<String>,
    /// Types of what it stores.
    pub outputs: Vec<String>,
    /// Weights if it depends on weights only.
    pub binding: Binding,
    /// Predicted time, microseconds.
    pub time_us: f64,
    /// Lower bound by bytes and flops, microseconds.
    pub floor_us: f64,
    /// Number of launches.
    pub launches: u32,
    /// The target's schedule.
    pub schedule: String,
    /// Where the time comes from.
    pub basis: Basis,
}

/// A choice, and what would be done without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// What was chosen.
    pub chosen: String,
    /// What the best plan without it takes, microseconds; absent if there is none.
    pub without_us: Option<f64>,
    /// The regions of that plan which are not in the chosen one.
    pub instead: Vec<String>,
}
