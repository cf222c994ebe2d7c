//! Graphs of SSA values.

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::error::IrError;
use crate::infer::infer;
use crate::op::Op;
use crate::region::Region;
use crate::types::{Binding, Type};

/// A value: one output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that defines it.
    pub node: NodeIndex,
    /// Which output of that node; 0 but for regions with several outputs.
    pub output: u32,
}

impl Value {
    /// Output 0 of a node.
    pub fn of(node: NodeIndex) -> Value {
        Value { node, output: 0 }
    }
}

/// A node: an op and the types of what it yields.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Types of the outputs.
    pub types: Vec<Type>,
    /// When the outputs are known.
    pub binding: Binding,
}

/// An edge: operand `operand` of the target is output `output` of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// Position among the operands of the consumer.
    pub operand: u32,
    /// Which output of the producer.
    pub output: u32,
}

/// A dataflow graph.
///
/// Nodes are only ever appended and an operand must exist when a node is added,
/// so that index order is a topological order and a graph has no cycles.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    dag: DiGraph<Node, Use>,
    outputs: Vec<Value>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.dag.node_count() == other.dag.node_count()
            && self.outputs == other.outputs
            && self
                .nodes()
                .zip(other.nodes())
                .all(|(a, b)| self.node(a) == other.node(b) && self.operands(a) == other.operands(b))
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Appends an op of one output.
    ///
    /// # Errors
    /// When the op table or the shape rule of the op rejects the operands.
    pub fn add(&mut self, op: Op, operands: &[Value]) -> Result<Value, IrError> {
        Ok(Value::of(self.add_node(op, operands)?))
    }

    /// Appends a region; its outputs are numbered as those of its body.
    ///
    /// # Errors
    /// When the operands do not have the types of the body's parameters.
    pub fn add_region(&mut self, region: Region, operands: &[Value]) -> Result<NodeIndex, IrError> {
        self.add_node(Op::Region(Box::new(region)), operands)
    }

    fn add_node(&mut self, op: Op, operands: &[Value]) -> Result<NodeIndex, IrError> {
        for operand in operands {
            let known = self.dag.node_weight(operand.node).is_some_and(|n| (operand.output as usize) < n.types.len());
            if !known {
                return Err(IrError::Invalid {
                    node: operand.node.index(),
                    op: op.mnemonic(),
                    why: "an operand is not a value of this graph".to_owned(),
                });
            }
        }
        let types: Vec<&Type> = operands.iter().map(|&operand| self.ty(operand)).collect();
        let types = infer(&op, &types)?;
        let binding = self.derive_binding(&op, operands);
        let node = self.dag.add_node(Node { op, types, binding });
        for (position, operand) in operands.iter().enumerate() {
            self.dag.add_edge(operand.node, node, Use { operand: position as u32, output: operand.output });
        }
        Ok(node)
    }

    /// When the results of an op on these operands are known: with the latest of them.
    pub(crate) fn derive_binding(&self, op: &Op, operands: &[Value]) -> Binding {
        match op {
            Op::Input { .. } => Binding::Input,
            Op::Parameter { binding, .. } => *binding,
            _ => operands.iter().map(|&operand| self.binding(operand)).max().unwrap_or(Binding::Weights),
        }
    }

    /// The underlying graph, for tests of the verifier to break.
    #[cfg(test)]
    pub(crate) fn dag_mut(&mut self) -> &mut DiGraph<Node, Use> {
        &mut self.dag
    }

    /// Appends a value to the outputs of the graph.
    pub fn add_output(&mut self, value: Value) {
        self.outputs.push(value);
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// All nodes in topological order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeIndex> + use<> {
        (0..self.dag.node_count()).map(NodeIndex::new)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// Whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A node of this graph.
    pub fn node(&self, node: NodeIndex) -> &Node {
        &self.dag[node]
    }

    /// The op that defines a value.
    pub fn op(&self, value: Value) -> &Op {
        &self.dag[value.node].op
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.dag[value.node].types[value.output as usize]
    }

    /// When a value is known.
    pub fn binding(&self, value: Value) -> Binding {
        self.dag[value.node].binding
    }

    /// The operands of a node, in order.
    pub fn operands(&self, node: NodeIndex) -> Vec<Value> {
        let mut operands: Vec<(u32, Value)> = self
            .dag
            .edges_directed(node, Direction::Incoming)
            .map(|edge| (edge.weight().operand, Value { node: edge.source(), output: edge.weight().output }))
            .collect();
        operands.sort_unstable();
        operands.into_iter().map(|(_, value)| value).collect()
    }

    /// Operand `position` of a node.
    ///
    /// # Panics
    /// If the node has fewer operands; the op table fixes how many there are.
    pub fn operand(&self, node: NodeIndex, position: usize) -> Value {
        self.operands(node)[position]
    }

    /// The nodes that use an output of `node`, in topological order, one entry for each use.
    pub fn users(&self, node: NodeIndex) -> Vec<(NodeIndex, Use)> {
        let mut users: Vec<(NodeIndex, Use)> =
            self.dag.edges_directed(node, Direction::Outgoing).map(|edge| (edge.target(), *edge.weight())).collect();
        users.sort_unstable_by_key(|(user, how)| (*user, how.operand));
        users
    }

    /// The parameters of a region's body, ordered by their index.
    pub fn parameters(&self) -> Vec<NodeIndex> {
        let mut parameters: Vec<(usize, NodeIndex)> = self
            .nodes()
            .filter_map(|node| match self.node(node).op {
                Op::Parameter { index, .. } => Some((index, node)),
                _ => None,
            })
            .collect();
        parameters.sort_unstable();
        parameters.into_iter().map(|(_, node)| node).collect()
    }

    /// The underlying petgraph graph, for algorithms.
    pub fn dag(&self) -> &DiGraph<Node, Use> {
        &self.dag
    }
}
