//! A graph of regions with its weights, ready to run.

use std::collections::{BTreeMap, BTreeSet};

use hyenac_ir::{Binding, Graph, IrError, NodeIndex, Op, Rounding, Tensor, evaluate_op};

use super::memory::{peak_bytes, require_memory};
use crate::block::HyenaBlock;
use crate::error::Error;
use hyenac_kernels::Mode;

/// A graph bound to weights on the CPU.
///
/// With frozen weights everything that depends on weights alone is computed once, when it is bound; of
/// those values only the ones that a call reads are kept.
#[derive(Debug)]
pub struct CpuExecutable {
    graph: Graph,
    /// Nodes of a call, in order: those that outputs depend on and that are not in `bound`.
    steps: Vec<NodeIndex>,
    /// For each node the step after which nothing reads it, if a step computes it and it is no output.
    dies_after: Vec<Option<usize>>,
    /// Values that do not change between calls: weights, and what frozen weights determine.
    bound: BTreeMap<NodeIndex, Vec<Tensor<f32>>>,
    peak_bytes: u64,
}

impl CpuExecutable {
    /// Binds a graph to the weights of a block.
    ///
    /// # Errors
    /// When a weight is missing or has another shape, when memory does not suffice, or an op fails.
    pub fn bind(graph: &Graph, block: &HyenaBlock, mode: Mode) -> Result<CpuExecutable, Error> {
        let peak_bytes = peak_bytes(graph);
        require_memory("running on the CPU", peak_bytes)?;
        let mut executable = CpuExecutable {
            graph: graph.clone(),
            steps: Vec::new(),
            dies_after: Vec::new(),
            bound: BTreeMap::new(),
            peak_bytes,
        };
        executable.bind_weights(block)?;
        if mode == Mode::Frozen {
            executable.freeze()?;
        }
        let steps = executable.needed();
        let outputs = executable.read_by(&[]);
        executable.dies_after = executable.last_uses(&steps, &outputs);
        let read = executable.read_by(&steps);
        executable.bound.retain(|node, _| read.contains(node));
        executable.steps = steps;
        Ok(executable)
    }

    /// An upper bound of the bytes that a call holds at any time.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Number of nodes a call evaluates.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Runs the graph on an input and returns its first output.
    ///
    /// # Errors
    /// When the input has another size, or memory runs out.
    pub fn run(&self, input: Vec<f32>) -> Result<Vec<f32>, Error> {
        let results = self.evaluate(&self.steps, &self.dies_after, Some(input))?;
        let output = self.graph.outputs().first().ok_or_else(|| missing("output 0"))?;
        let mut values: Vec<Tensor<f32>> = match results.into_iter().nth(output.node.index()) {
            Some(values) if !values.is_empty() => values,
            // An output that weights alone determine.
            _ => self.bound.get(&output.node).cloned().ok_or_else(|| missing("output 0"))?,
        };
        let position = output.output as usize;
        if position >= values.len() {
            return Err(missing("output 0"));
        }
        Ok(values.swap_remove(position).data)
    }

    fn bind_weights(&mut self, block: &HyenaBlock) -> Result<(), Error> {
        for node in self.graph.nodes() {
            let Op::Weight { name, shape, .. } = &self.graph.node(node).op else { continue };
            let values = block.weights().get(name);
            let elements: usize = shape.iter().product();
            let values = values.filter(|values| values.len() == elements).ok_or_else(|| Error::Tensor {
                name: name.clone(),
                expected: format!("F32 {shape:?}"),
                found: values.map_or("nothing".to_owned(), |values| format!("{} elements", values.len())),
            })?;
            let tensor = Tensor { shape: shape.clone(), data: values.clone() };
            self.bound.insert(node, vec![tensor]);
        }
        Ok(())
    }

    /// Computes once what weights alone determine, and keeps what a call reads of it.
    fn freeze(&mut self) -> Result<(), Error> {
        let of_weights = |node: NodeIndex| self.graph.node(node).binding == Binding::Weights;
        let (steps, calls): (Vec<NodeIndex>, Vec<NodeIndex>) = self.needed().into_iter().partition(|&n| of_weights(n));
        let read = self.read_by(&calls);
        let dies_after = self.last_uses(&steps, &read);
        let results = self.evaluate(&steps, &dies_after, None)?;
        for (node, values) in self.graph.nodes().zip(results) {
            if !values.is_empty() {
                self.bound.insert(node, values);
            }
        }
        Ok(())
    }

    /// Nodes that outputs depend on and that are not bound yet, in order.
    fn needed(&self) -> Vec<NodeIndex> {
        let mut needed = vec![false; self.graph.len()];
        for output in self.graph.outputs() {
            needed[output.node.index()] = true;
        }
        let mut steps = Vec::new();
        for node in self.graph.nodes().rev() {
            if !needed[node.index()] || self.bound.contains_key(&node) {
                continue;
            }
            for operand in self.graph.operands(node) {
                needed[operand.node.index()] = true;
            }
            steps.push(node);
        }
        steps.reverse();
        steps
    }

    /// Nodes whose values some of these steps read, or the outputs.
    fn read_by(&self, steps: &[NodeIndex]) -> BTreeSet<NodeIndex> {
        let operands = steps.iter().flat_map(|&step| self.graph.operands(step));
        operands.chain(self.graph.outputs().iter().copied()).map(|value| value.node).collect()
    }

    /// For each node the step that uses it last, if nobody else needs it afterwards.
    fn last_uses(&self, steps: &[NodeIndex], kept: &BTreeSet<NodeIndex>) -> Vec<Option<usize>> {
        let mut last = vec![None; self.graph.len()];
        for (step, &node) in steps.iter().enumerate() {
            for value in self.graph.operands(node).iter().map(|operand| operand.node).chain([node]) {
                last[value.index()] = Some(step).filter(|_| !kept.contains(&value));
            }
        }
        last
    }

    /// Evaluates nodes in order and returns their values by node index.
    fn evaluate(
        &self,
        steps: &[NodeIndex],
        dies_after: &[Option<usize>],
        input: Option<Vec<f32>>,
    ) -> Result<Vec<Vec<Tensor<f32>>>, Error> {
        let mut input = input;
        let mut values: Vec<Vec<Tensor<f32>>> = vec![Vec::new(); self.graph.len()];
        for (step, &node) in steps.iter().enumerate() {
            let definition = self.graph.node(node);
            let operands = self.graph.operands(node);
            values[node.index()] = if let Op::Input { name, shape, .. } = &definition.op {
                let data = input.take().ok_or_else(|| missing(name))?;
                let elements: usize = shape.iter().product();
                if data.len() != elements {
                    return Err(Error::Tensor {
                        name: name.clone(),
                        expected: format!("F32 {shape:?}"),
                        found: format!("{} elements", data.len()),
                    });
                }
                vec![Tensor { shape: shape.clone(), data }]
            } else {
                let tensors = operands
                    .iter()
                    .map(|operand| {
                        let held = self.bound.get(&operand.node).unwrap_or(&values[operand.node.index()]);
                        held.get(operand.output as usize).ok_or_else(|| missing(definition.op.mnemonic()))
                    })
                    .collect::<Result<Vec<&Tensor<f32>>, Error>>()?;
                evaluate_op(&definition.op, &tensors, &definition.types, Rounding::Casts).map_err(Error::Run)?
            };
            for operand in operands {
                if dies_after[operand.node.index()] == Some(step) {
                    values[operand.node.index()] = Vec::new();
                }
            }
        }
        Ok(values)
    }
}

fn missing(what: &str) -> Error {
    Error::Run(IrError::Tensor { name: what.to_owned(), why: "has no value".to_owned() })
}

#[cfg(test)]
mod tests {
    use hyenac_ir::{BlockConfig, evaluate};

    use super::*;
    use crate::inputs::{Distribution, Inputs, generate};

    fn small() -> BlockConfig {
        BlockConfig { d_model: 16, d_inner: 32, filter_order: 8, ..BlockConfig::hyenadna() }
    }

    fn inputs() -> Inputs {
        generate(Distribution::Trained, &small(), 2, 33, 5).unwrap()
    }

    #[test]
    fn both_modes_give_the_interpreter_s_values() {
        let Inputs { block, hidden_states } = inputs();
        let graph = small().reference_graph(2, 33).unwrap();
        let mut tensors: BTreeMap<String, Tensor<f32>> = small()
            .weights()
            .into_iter()
            .map(|(name, shape)| (name.to_owned(), Tensor { shape, data: block.weights()[name].clone() }))
            .collect();
        tensors.insert("hidden_states".to_owned(), Tensor { shape: vec![2, 33, 16], data: hidden_states.clone() });
        let expected = evaluate(&graph, &tensors, Rounding::Casts).unwrap().remove(0).data;

        let live = CpuExecutable::bind(&graph, &block, Mode::Live).unwrap();
        let frozen = CpuExecutable::bind(&graph, &block, Mode::Frozen).unwrap();
        for executable in [&live, &frozen] {
            for _ in 0..2 {
                assert_eq!(executable.run(hidden_states.clone()).unwrap(), expected);
            }
        }
        assert!(frozen.steps() < live.steps(), "{} against {}", frozen.steps(), live.steps());
        assert!(!frozen.bound.iter().any(|(&node, _)| graph.node(node).op.mnemonic() == "positional_embedding"));
    }

    #[test]
    fn an_input_of_another_size_is_refused() {
        let executable =
            CpuExecutable::bind(&small().reference_graph(2, 33).unwrap(), &inputs().block, Mode::Live).unwrap();
        let error = executable.run(vec![0.0; 7]).unwrap_err().to_string();
        assert!(error.contains("hidden_states") && error.contains("[2, 33, 16]") && error.contains('7'), "{error}");
    }

    #[test]
    fn weights_of_another_block_are_refused() {
        let other = BlockConfig { d_inner: 40, ..small() };
        let graph = other.reference_graph(1, 4).unwrap();
        let error = CpuExecutable::bind(&graph, &inputs().block, Mode::Frozen).unwrap_err().to_string();
        assert!(error.contains("mlp_fc1_weight") && error.contains("[40, 16]"), "{error}");
    }

    #[test]
    fn what_exceeds_memory_is_refused_before_it_starts() {
        let graph = small().reference_graph(1 << 22, 1 << 15).unwrap();
        match CpuExecutable::bind(&graph, &inputs().block, Mode::Live) {
            Err(Error::Memory { needed, available, .. }) => assert!(needed > available),
            other => panic!("{other:?}"),
        }
    }
}
