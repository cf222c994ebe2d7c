//! From the picked regions to a graph of regions.

use std::collections::BTreeMap;

use hyenac_ir::{Graph, IrError, NodeIndex, Op, Value};

use super::enumerate::Candidate;
use super::forest::{Class, Forest};
use super::region::build;
use super::search::Found;
use crate::language::Head;

/// A graph of regions, and which candidate each region came from.
pub struct Assembled {
    /// Inputs, weights and regions only.
    pub graph: Graph,
    /// The region nodes in order.
    pub regions: Vec<(NodeIndex, Candidate)>,
}

/// Builds the graph of a plan; sources are those of the reference graph, all of them, in its order.
///
/// # Errors
/// When the plan lacks a region, or a region does not type-check.
pub fn assemble(forest: &Forest, found: &Found, reference: &Graph, outputs: &[Class]) -> Result<Assembled, IrError> {
    let mut assembler = Assembler {
        forest,
        picked: found.regions.iter().map(|(class, candidate)| (*class, candidate)).collect(),
        sources: BTreeMap::new(),
        done: BTreeMap::new(),
        result: Assembled { graph: Graph::new(), regions: Vec::new() },
    };
    for node in reference.nodes() {
        let op = &reference.node(node).op;
        let head = match op {
            Op::Input { name, .. } => Head::Input(name.as_str().into()),
            Op::Weight { name, .. } => Head::Weight(name.as_str().into()),
            _ => continue,
        };
        let value = assembler.result.graph.add(op.clone(), &[])?;
        assembler.sources.insert(head, value);
    }
    for output in outputs {
        let value = assembler.stored(*output)?;
        assembler.result.graph.add_output(value);
    }
    Ok(assembler.result)
}

struct Assembler<'a> {
    forest: &'a Forest,
    picked: BTreeMap<Class, &'a Candidate>,
    sources: BTreeMap<Head, Value>,
    done: BTreeMap<Class, Value>,
    result: Assembled,
}

impl Assembler<'_> {
    /// The value of a stored class: producers are added first, in the order of the region's parameters.
    fn stored(&mut self, class: Class) -> Result<Value, IrError> {
        if let Some(value) = self.done.get(&class) {
            return Ok(*value);
        }
        let missing = || IrError::Tensor { name: format!("class {class}"), why: "has no region".to_owned() };
        let value = match self.forest.source(class) {
            Some(head) => *self.sources.get(head).ok_or_else(missing)?,
            None => {
                let candidate = *self.picked.get(&class).ok_or_else(missing)?;
                let operands = candidate.loads.iter().map(|load| self.stored(*load)).collect::<Result<Vec<_>, _>>()?;
                let graph = &mut self.result.graph;
                let bindings = operands.iter().map(|operand| graph.binding(*operand));
                let loads: Vec<_> = candidate.loads.iter().copied().zip(bindings).collect();
                let mut region =
                    build(self.forest, &candidate.fragment, candidate.root, Some(candidate.format), &loads)?;
                region.schedule.clone_from(&candidate.offer.schedule);
                let node = graph.add_region(region, &operands)?;
                self.result.regions.push((node, candidate.clone()));
                Value::of(node)
            }
        };
        self.done.insert(class, value);
        Ok(value)
    }
}
