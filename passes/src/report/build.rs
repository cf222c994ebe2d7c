//! Gathering the report.

use std::collections::BTreeMap;

use hyenac_ir::{Binding, Graph, NodeIndex, Op};
use rayon::prelude::*;

use super::{Choice, RegionReport, Report};
use crate::extract::{Candidate, Forest, Found, Space, cheapest};
use crate::options::Options;

/// What saturation reported.
pub struct Run {
    /// How often each rule changed something.
    pub fired: BTreeMap<String, usize>,
    /// Why it stopped.
    pub stop: String,
    /// Number of rounds.
    pub iterations: usize,
    /// Classes of the e-graph.
    pub classes: usize,
    /// Nodes of the e-graph.
    pub nodes: usize,
}

/// Gathers the report, and searches again without each choice.
#[expect(clippy::too_many_arguments, reason = "the stages of one compilation, each used")]
pub fn report(
    run: Run,
    options: &Options,
    forest: &Forest,
    space: &Space,
    outputs: &[usize],
    found: &Found,
    graph: &Graph,
    regions: &[(NodeIndex, Candidate)],
) -> Report {
    let total = |found: &Found| -> f64 {
        let runs = |c: &&(usize, Candidate)| !(options.frozen && c.1.binding == Binding::Weights);
        found.regions.iter().filter(runs).map(|(_, candidate)| candidate.offer.time_us).sum()
    };
    let mut bans: Vec<Ban> = Vec::new();
    let uses = |found: &Found, mnemonic| found.regions.iter().any(|(_, c)| c.contains(forest, mnemonic));
    let mut convolution = Vec::new();
    for (name, mnemonic) in [("direct", DIRECT), ("fft", FFT)] {
        if uses(found, mnemonic) {
            convolution.push(name.to_owned());
            bans.push(Ban::Algorithm { name, mnemonic });
        }
    }
    // Regions of weights alone come last: what a call does is of more interest.
    for binding in [Binding::Input, Binding::Weights] {
        for (_, candidate) in regions.iter().filter(|(_, candidate)| candidate.binding == binding) {
            if candidate.fragment.computed(forest).len() > 1 {
                let united = candidate.fragment.essence(forest);
                bans.push(Ban::Union { ops: candidate.ops(forest), united });
            }
        }
    }
    let chosen: Vec<&str> = found.regions.iter().map(|(_, candidate)| candidate.term.as_str()).collect();
    let alternatives: Vec<Option<Found>> = bans
        .par_iter()
        .map(|ban| cheapest(space, outputs, options.beam_width, &|candidate| ban.hits(forest, candidate)))
        .collect();
    let best_with = |mnemonic, other| {
        if uses(found, mnemonic) && !uses(found, other) {
            return Some(total(found));
        }
        let without = cheapest(space, outputs, options.beam_width, &|c| c.contains(forest, other))?;
        uses(&without, mnemonic).then(|| total(&without))
    };
    let (direct_us, fft_us) = (best_with(DIRECT, FFT), best_with(FFT, DIRECT));
    let choices = bans
        .iter()
        .zip(&alternatives)
        .map(|(ban, alternative)| Choice {
            chosen: ban.name(),
            without_us: alternative.as_ref().map(total),
            instead: alternative.iter().flat_map(|plan| instead(plan, &chosen, forest)).collect(),
        })
        .collect();
    Report {
        rules_fired: run.fired,
        stop_reason: run.stop,
        iterations: run.iterations,
        classes: run.classes,
        nodes: run.nodes,
        regions_priced: space.asked,
        fragments_dropped: space.dropped,
        exact: found.exact,
        frozen: options.frozen,
        regions: regions.iter().map(|(node, candidate)| region(graph, forest, *node, candidate)).collect(),
        total_us: total(found),
        convolution,
        direct_us,
        fft_us,
        choices,
    }
}

const DIRECT: &str = "long_conv";
const FFT: &str = "irfft";

/// Candidates that a plan must do without.
enum Ban {
    /// A convolution algorithm.
    Algorithm { name: &'static str, mnemonic: &'static str },
    /// Uniting exactly this arithmetic in one kernel, in whatever precision, formats and layouts.
    Union { ops: String, united: Vec<usize> },
}

impl Ban {
    fn hits(&self, forest: &Forest, candidate: &Candidate) -> bool {
        match self {
            Ban::Algorithm { mnemonic, .. } => candidate.contains(forest, mnemonic),
            Ban::Union { united, .. } => candidate.fragment.essence(forest) == *united,
        }
    }

    fn name(&self) -> String {
        match self {
            Ban::Algorithm { name, .. } => format!("{name} convolution"),
            Ban::Union { ops, .. } => format!("one kernel for {ops}"),
        }
    }
}

fn instead(plan: &Found, chosen: &[&str], forest: &Forest) -> Vec<String> {
    // Producers first, as the plan itself is listed.
    let new = plan.regions.iter().rev().filter(|(_, candidate)| !chosen.contains(&candidate.term.as_str()));
    new.map(|(_, candidate)| format!("{}, {:.2} us", candidate.ops(forest), candidate.offer.time_us)).collect()
}

fn region(graph: &Graph, forest: &Forest, node: NodeIndex, candidate: &Candidate) -> RegionReport {
    let name = |value: hyenac_ir::Value| match graph.op(value) {
        Op::Input { name, .. } | Op::Weight { name, .. } => name.clone(),
        _ => format!("%{}", value.node.index()),
    };
    RegionReport {
        node: node.index(),
        ops: candidate.ops(forest),
        term: candidate.term.clone(),
        operands: graph.operands(node).into_iter().map(name).collect(),
        outputs: graph.node(node).types.iter().map(ToString::to_string).collect(),
        binding: graph.node(node).binding,
        time_us: candidate.offer.time_us,
        floor_us: candidate.offer.floor_us,
        launches: candidate.offer.launches,
        schedule: candidate.offer.schedule.clone(),
        basis: candidate.offer.basis,
    }
}
