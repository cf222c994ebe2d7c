//! The verifier: every invariant of a graph, stated in `docs/ir.md`, checked anew.

use std::collections::BTreeSet;

use petgraph::Direction;
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;

use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::infer::infer;
use crate::op::Op;
use crate::types::Type;

/// Where a graph stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A whole program: sources are inputs and weights.
    Top,
    /// The body of a region: sources are parameters.
    Body,
}

impl Graph {
    /// Checks every invariant of a whole graph.
    ///
    /// Graphs built through [`Graph::add`] have well-typed nodes by construction; what remains to go wrong is
    /// which sources stand where, names, nesting, dead nodes and outputs.
    ///
    /// # Errors
    /// [`IrError::Invalid`] with the first node that breaks an invariant, and the invariant. A fault inside
    /// the body of a region is reported at the region.
    pub fn verify(&self) -> Result<(), IrError> {
        verify(self, Place::Top).map_err(|(node, why)| self.invalid(node, why))
    }

    /// Checks every invariant of the body of a region.
    ///
    /// # Errors
    /// As [`Graph::verify`].
    pub fn verify_body(&self) -> Result<(), IrError> {
        verify(self, Place::Body).map_err(|(node, why)| self.invalid(node, why))
    }

    fn invalid(&self, node: usize, why: String) -> IrError {
        let op = self.dag().node_weight(NodeIndex::new(node)).map_or("graph", |node| node.op.mnemonic());
        IrError::Invalid { node, op, why }
    }
}

/// A broken invariant: the node and what does not hold.
type Fault = (usize, String);

fn verify(graph: &Graph, place: Place) -> Result<(), Fault> {
    for node in graph.nodes() {
        check_edges(graph, node).map_err(|why| (node.index(), why))?;
        check_node(graph, node, place).map_err(|why| (node.index(), why))?;
    }
    check_names(graph)?;
    if place == Place::Body {
        check_parameters(graph)?;
    }
    if graph.outputs().is_empty() {
        return Err((graph.len(), "a graph needs at least one output".to_owned()));
    }
    for &output in graph.outputs() {
        let types = graph.dag().node_weight(output.node).map_or(0, |node| node.types.len());
        if output.output as usize >= types {
            return Err((output.node.index(), format!("output {} of the graph does not exist", output.output)));
        }
    }
    check_all_used(graph)
}

/// Operands are numbered without gaps, exist and stand before their user.
fn check_edges(graph: &Graph, node: NodeIndex) -> Result<(), String> {
    let mut positions = Vec::new();
    for edge in graph.dag().edges_directed(node, Direction::Incoming) {
        let how = edge.weight();
        if edge.source() >= node {
            return Err(format!("operand %{} does not stand before its user", edge.source().index()));
        }
        let outputs = graph.node(edge.source()).types.len();
        if how.output as usize >= outputs {
            return Err(format!("%{} has no output {}", edge.source().index(), how.output));
        }
        positions.push(how.operand);
    }
    positions.sort_unstable();
    if !positions.iter().copied().eq(0..positions.len() as u32) {
        return Err(format!("operands are numbered {positions:?}"));
    }
    Ok(())
}

/// The op may stand here, and its types and binding are those that follow from its operands.
fn check_node(graph: &Graph, node: NodeIndex, place: Place) -> Result<(), String> {
    let found = graph.node(node);
    match (&found.op, place) {
        (Op::Parameter { .. }, Place::Top) => return Err("a parameter stands only in the body of a region".to_owned()),
        (Op::Input { .. } | Op::Weight { .. }, Place::Body) => {
            return Err("inputs and weights stand outside regions, whose sources are parameters".to_owned());
        }
        (Op::Region(_), Place::Body) => return Err("regions do not nest".to_owned()),
        _ => {}
    }
    let operands = graph.operands(node);
    if let Op::Region(region) = &found.op {
        let body = region.body();
        verify(body, Place::Body).map_err(|(inner, why)| format!("in its body at %{inner}: {why}"))?;
        for (position, (&operand, parameter)) in operands.iter().zip(body.parameters()).enumerate() {
            let (known, promised) = (graph.binding(operand), body.node(parameter).binding);
            if known > promised {
                return Err(format!(
                    "operand {position} is bound with the {}, its parameter says {}",
                    known.name(),
                    promised.name()
                ));
            }
        }
    }
    let types: Vec<&Type> = operands.iter().map(|&operand| graph.ty(operand)).collect();
    let expected = infer(&found.op, &types).map_err(|error| error.to_string())?;
    if found.types != expected {
        let list = |types: &[Type]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(format!("has type {}, its operands give {}", list(&found.types), list(&expected)));
    }
    let binding = graph.derive_binding(&found.op, &operands);
    if found.binding != binding {
        return Err(format!("is bound with the {}, its operands with the {}", found.binding.name(), binding.name()));
    }
    Ok(())
}

/// A tensor of the caller enters a graph once.
fn check_names(graph: &Graph) -> Result<(), Fault> {
    let mut names = BTreeSet::new();
    for node in graph.nodes() {
        if let Op::Input { name, .. } | Op::Weight { name, .. } = &graph.node(node).op
            && !names.insert(name)
        {
            return Err((node.index(), format!("the name {name:?} is taken already")));
        }
    }
    Ok(())
}

/// Parameters are numbered from 0 without gaps.
fn check_parameters(graph: &Graph) -> Result<(), Fault> {
    for (expected, node) in graph.parameters().into_iter().enumerate() {
        match graph.node(node).op {
            Op::Parameter { index, .. } if index != expected => {
                return Err((node.index(), format!("parameter {index} where parameter {expected} is due")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whatever is computed reaches an output.
fn check_all_used(graph: &Graph) -> Result<(), Fault> {
    let mut used = vec![false; graph.len()];
    for output in graph.outputs() {
        used[output.node.index()] = true;
    }
    for node in graph.nodes().rev() {
        if used[node.index()] {
            for Value { node: operand, .. } in graph.operands(node) {
                used[operand.index()] = true;
            }
        }
    }
    for node in graph.nodes() {
        let source = matches!(graph.node(node).op, Op::Input { .. } | Op::Weight { .. } | Op::Parameter { .. });
        if !used[node.index()] && !source {
            return Err((node.index(), "reaches no output".to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockConfig;
    use crate::graph::Use;
    use crate::region::Region;
    use crate::types::{Binding, DType};

    fn input(graph: &mut Graph, name: &str) -> Value {
        graph.add(Op::Input { name: name.to_owned(), dtype: DType::F32, shape: vec![4] }, &[]).expect("valid")
    }

    fn parameter(graph: &mut Graph, index: usize, binding: Binding) -> Value {
        graph.add(Op::Parameter { index, dtype: DType::F32, shape: vec![4], binding }, &[]).expect("valid")
    }

    /// `x + x`, then its negation.
    fn small() -> Graph {
        let mut graph = Graph::new();
        let x = input(&mut graph, "x");
        let sum = graph.add(Op::Add {}, &[x, x]).expect("valid");
        let result = graph.add(Op::Neg {}, &[sum]).expect("valid");
        graph.add_output(result);
        graph
    }

    fn refused(graph: &Graph, words: &str) {
        let message = graph.verify().expect_err("an invariant is broken").to_string();
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn accepts_the_block() {
        small().verify().expect("valid");
        BlockConfig::benchmark().reference_graph(2, 40000).expect("valid").verify().expect("valid");
        BlockConfig::hyenadna().reference_graph(1, 1).expect("valid").verify().expect("valid");
    }

    #[test]
    fn types_and_bindings_follow_from_operands() {
        let mut graph = small();
        graph.dag_mut()[NodeIndex::new(1)].types = vec![Type::f32([5])];
        refused(&graph, "has type f32[5], its operands give f32[4]");
        let mut graph = small();
        graph.dag_mut()[NodeIndex::new(1)].binding = Binding::Weights;
        refused(&graph, "is bound with the weights, its operands with the input");
    }

    #[test]
    fn operands_exist_and_are_numbered() {
        let mut graph = small();
        graph.dag_mut().add_edge(NodeIndex::new(0), NodeIndex::new(2), Use { operand: 2, output: 0 });
        refused(&graph, "operands are numbered [0, 2]");
        let mut graph = small();
        graph.dag_mut().add_edge(NodeIndex::new(0), NodeIndex::new(2), Use { operand: 1, output: 0 });
        refused(&graph, "neg takes 1 operands, found 2");
        let mut graph = small();
        graph.dag_mut().add_edge(NodeIndex::new(0), NodeIndex::new(2), Use { operand: 1, output: 7 });
        refused(&graph, "%0 has no output 7");
        let mut graph = small();
        graph.dag_mut().add_edge(NodeIndex::new(2), NodeIndex::new(1), Use { operand: 2, output: 0 });
        refused(&graph, "does not stand before its user");
    }

    #[test]
    fn outputs_exist_and_everything_reaches_one() {
        let mut graph = small();
        graph.add_output(Value { node: NodeIndex::new(99), output: 0 });
        refused(&graph, "does not exist");
        let mut graph = small();
        graph.add_output(Value { node: NodeIndex::new(1), output: 1 });
        refused(&graph, "output 1 of the graph does not exist");
        let mut graph = Graph::new();
        input(&mut graph, "x");
        refused(&graph, "at least one output");
        let mut graph = small();
        graph.add(Op::Neg {}, &[Value::of(NodeIndex::new(0))]).expect("valid");
        refused(&graph, "reaches no output");
    }

    #[test]
    fn sources_stand_where_they_may() {
        let mut graph = small();
        let x = input(&mut graph, "x");
        graph.add_output(x);
        refused(&graph, "the name \"x\" is taken already");
        let mut graph = small();
        let p = parameter(&mut graph, 0, Binding::Input);
        graph.add_output(p);
        refused(&graph, "only in the body of a region");
        assert!(small().verify_body().is_err_and(|e| e.to_string().contains("stand outside regions")));
    }

    /// A graph of one region that negates its parameter.
    fn with_region(index: usize, binding: Binding, nested: bool) -> Graph {
        let mut body = Graph::new();
        let p = parameter(&mut body, index, binding);
        let mut result = body.add(Op::Neg {}, &[p]).expect("valid");
        if nested {
            let mut inner = Graph::new();
            let q = parameter(&mut inner, 0, Binding::Input);
            inner.add_output(q);
            result = Value::of(body.add_region(Region::new(inner), &[result]).expect("valid"));
        }
        body.add_output(result);
        let mut graph = Graph::new();
        let x = input(&mut graph, "x");
        let region = graph.add_region(Region::new(body), &[x]).expect("valid");
        graph.add_output(Value::of(region));
        graph
    }

    #[test]
    fn regions() {
        with_region(0, Binding::Input, false).verify().expect("valid");
        refused(
            &with_region(0, Binding::Weights, false),
            "operand 0 is bound with the input, its parameter says weights",
        );
        refused(&with_region(1, Binding::Input, false), "parameter 1 where parameter 0 is due");
        refused(&with_region(0, Binding::Input, true), "in its body at %2: regions do not nest");
    }

    #[test]
    fn a_region_describes_its_ops() {
        let mut body = Graph::new();
        let p = parameter(&mut body, 0, Binding::Input);
        let one = body.add(Op::Scalar { value: 1.0 }, &[]).expect("valid");
        let sum = body.add(Op::Add {}, &[p, one]).expect("valid");
        let sum = body.add(Op::Add {}, &[sum, p]).expect("valid");
        let sine = body.add(Op::Sin {}, &[sum]).expect("valid");
        let sum = body.add(Op::Add {}, &[sine, p]).expect("valid");
        body.add_output(sum);
        assert_eq!(Region::new(body).describe(), "add x3, sin");
    }
}
