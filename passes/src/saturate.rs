//! Running the rules until nothing new follows, or a budget is spent.

use std::collections::BTreeMap;
use std::time::Duration;

use egg::{Runner, SimpleScheduler, StopReason};

use crate::error::PassError;
use crate::facts::BlockGraph;
use crate::options::{Fuse, Options};

/// A saturated e-graph and how it came about.
pub struct Saturated {
    /// The e-graph, rebuilt.
    pub egraph: BlockGraph,
    /// How often each rule changed something; rules that never did are absent.
    pub fired: BTreeMap<String, usize>,
    /// Why no further rounds were made.
    pub stop: String,
    /// Number of rounds.
    pub iterations: usize,
}

/// Runs the rules of the options on an e-graph. Budgets are counts of nodes and rounds, never time.
///
/// # Errors
/// The first thing a rule did that has no meaning.
pub fn saturate(egraph: BlockGraph, options: &Options) -> Result<Saturated, PassError> {
    if options.fuse == Fuse::None {
        let stop = "no rules".to_owned();
        return Ok(Saturated { egraph, fired: BTreeMap::new(), stop, iterations: 0 });
    }
    let rewrites: Vec<_> = options.rules.iter().filter_map(|rule| rule.rewrite(options.precision)).collect();
    let analysis = egraph.analysis.clone();
    let runner = Runner::<_, _, ()>::new(analysis)
        .with_egraph(egraph)
        .with_scheduler(SimpleScheduler)
        .with_node_limit(options.node_limit)
        .with_iter_limit(options.iteration_limit)
        .with_time_limit(Duration::MAX)
        .run(&rewrites);
    if let Some(fault) = runner.egraph.analysis.faults.first() {
        return Err(PassError::Rule { rule: fault.rule.clone(), what: fault.what.clone() });
    }
    let mut fired = BTreeMap::new();
    for iteration in &runner.iterations {
        for (rule, count) in &iteration.applied {
            *fired.entry(rule.to_string()).or_insert(0) += count;
        }
    }
    let stop = match runner.stop_reason {
        Some(StopReason::Saturated) | None => "saturated".to_owned(),
        Some(StopReason::IterationLimit(_)) => format!("limit of {} rounds", options.iteration_limit),
        Some(StopReason::NodeLimit(_)) => format!("limit of {} nodes", options.node_limit),
        Some(StopReason::TimeLimit(_)) => "time limit".to_owned(),
        Some(StopReason::Other(why)) => why,
    };
    Ok(Saturated { iterations: runner.iterations.len(), egraph: runner.egraph, fired, stop })
}
