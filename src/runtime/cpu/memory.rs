//! What a graph needs of host memory, and what there is.

use std::collections::BTreeSet;
use std::fs;

use hyenac_ir::{DType, Graph, NodeIndex, Op, Type};

use crate::error::Error;

/// Bytes of a value while it is held: the interpreter keeps every real number as f32.
fn held_bytes(ty: &Type) -> u64 {
    let element = if ty.dtype == DType::C64 { 8 } else { 4 };
    (ty.elements() as u64).saturating_mul(element)
}

fn outputs_bytes(graph: &Graph, node: NodeIndex) -> u64 {
    graph.node(node).types.iter().map(held_bytes).fold(0, u64::saturating_add)
}

/// Bytes an op needs beside its operands and results.
fn scratch_bytes(graph: &Graph, node: NodeIndex) -> u64 {
    match &graph.node(node).op {
        Op::Region(region) => {
            let body = region.body();
            let outputs = body.outputs().iter().map(|&output| held_bytes(body.ty(output))).fold(0, u64::saturating_add);
            let evaluated: Vec<NodeIndex> =
                body.nodes().filter(|&node| !matches!(body.node(node).op, Op::Parameter { .. })).collect();
            peak_of(body, &evaluated).saturating_sub(outputs)
        }
        // The spectra of the filter, padded to a size below four times the length.
        Op::LongConv {} => held_bytes(graph.ty(graph.operand(node, 1))).saturating_mul(4),
        _ => 0,
    }
}

/// The most bytes that values computed by `nodes`, in this order, hold at any time.
fn peak_of(graph: &Graph, nodes: &[NodeIndex]) -> u64 {
    let computed: BTreeSet<NodeIndex> = nodes.iter().copied().collect();
    let kept: BTreeSet<NodeIndex> = graph.outputs().iter().map(|output| output.node).collect();
    let mut last_use = vec![None; graph.len()];
    for (step, &node) in nodes.iter().enumerate() {
        last_use[node.index()] = Some(step);
        for operand in graph.operands(node) {
            last_use[operand.node.index()] = Some(step);
        }
    }
    let (mut live, mut peak) = (0u64, 0u64);
    for (step, &node) in nodes.iter().enumerate() {
        live = live.saturating_add(outputs_bytes(graph, node));
        peak = peak.max(live.saturating_add(scratch_bytes(graph, node)));
        let mut dying: BTreeSet<NodeIndex> = graph.operands(node).into_iter().map(|operand| operand.node).collect();
        dying.insert(node);
        for value in dying {
            if computed.contains(&value) && !kept.contains(&value) && last_use[value.index()] == Some(step) {
                live = live.saturating_sub(outputs_bytes(graph, value));
            }
        }
    }
    peak
}

/// An upper bound of the bytes that evaluating a graph holds at any time, inputs and weights included.
pub fn peak_bytes(graph: &Graph) -> u64 {
    let all: Vec<NodeIndex> = graph.nodes().collect();
    peak_of(graph, &all)
}

/// Memory the system can give without swapping, where it says so.
pub fn available_bytes() -> Option<u64> {
    available_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Refuses what the system's memory cannot hold, before anything is allocated.
///
/// # Errors
/// [`Error::Memory`], with the number needed and the number available.
pub fn require_memory(what: &str, needed: u64) -> Result<(), Error> {
    match available_bytes() {
        Some(available) if needed > available => {
            Err(Error::Memory { what: what.to_owned(), place: "host", needed, available })
        }
        _ => Ok(()),
    }
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use hyenac_ir::BlockConfig;

    use super::*;

    #[test]
    fn values_are_counted_while_they_live() {
        let mut graph = Graph::new();
        let mut x = graph.add(Op::Input { name: "x".to_owned(), dtype: DType::F32, shape: vec![250] }, &[]).unwrap();
        for _ in 0..5 {
            x = graph.add(Op::Neg {}, &[x]).unwrap();
        }
        graph.add_output(x);
        assert_eq!(peak_bytes(&graph), 2000, "a chain holds an operand and a result");
    }

    #[test]
    fn longer_sequences_need_more_and_nothing_overflows() {
        let peak = |length| peak_bytes(&BlockConfig::benchmark().reference_graph(1, length).unwrap());
        let (short, long) = (peak(1024), peak(1 << 20));
        assert!(short > 4 * 1024 * 768 && short < 64 << 20, "{short}");
        assert!(long > 500 * short, "{long}");
    }

    #[test]
    fn available_memory_is_read_from_the_system() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in("MemAvailable: many kB"), None);
    }
}
