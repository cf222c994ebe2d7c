//! From an IR graph to the e-graph: every op's result makes a round trip through memory.

use egg::Id;
use hyenac_ir::{Binding, Graph, NodeIndex, Op};

use crate::error::PassError;
use crate::facts::{BlockAnalysis, BlockGraph, Value};
use crate::language::{Head, Term, WITH_PRECISION};

/// A graph in the e-graph.
pub struct Encoded {
    /// The e-graph before any rule has run.
    pub egraph: BlockGraph,
    /// The stored values of the graph's outputs, in order.
    pub outputs: Vec<Id>,
    /// The stored value of each node of the graph; constants are not stored.
    pub stored: Vec<(NodeIndex, Id)>,
}

/// Encodes a graph of elementary ops.
///
/// Every op's result becomes `(load (mat dtype (op ...)))`, inputs and weights are stored leaves, scalars stay
/// in flight. So without rules each op is a kernel of its own.
///
/// # Errors
/// When the graph has regions or parameters in it.
pub fn encode(graph: &Graph) -> Result<Encoded, PassError> {
    let mut egraph = BlockGraph::new(BlockAnalysis::default());
    let mut fragments: Vec<Id> = Vec::with_capacity(graph.len());
    let mut stored = Vec::new();
    for node in graph.nodes() {
        let data = graph.node(node);
        let ty = &data.types[0];
        let source = match &data.op {
            Op::Input { name, .. } => Some((Head::Input(name.as_str().into()), Binding::Input)),
            Op::Weight { name, .. } => Some((Head::Weight(name.as_str().into()), Binding::Weights)),
            Op::Region(_) | Op::Parameter { .. } => {
                return Err(PassError::NotElementary { node: node.index(), op: data.op.mnemonic() });
            }
            _ => None,
        };
        let value = if let Some((head, binding)) = source {
            egraph.analysis.sources.insert(head.clone(), Value { ty: ty.clone(), binding });
            egraph.add(Term::leaf(head))
        } else {
            let mut children = Vec::new();
            if WITH_PRECISION.contains(&data.op.mnemonic()) {
                // The IR's own casts say how operands are rounded; the op itself takes them as they are.
                children.push(egraph.add(Term::leaf(Head::DType(hyenac_ir::DType::F32))));
            }
            for (_, attribute) in data.op.attributes() {
                let literal = Head::of_attribute(&attribute)
                    .ok_or(PassError::NotElementary { node: node.index(), op: data.op.mnemonic() })?;
                children.push(egraph.add(Term::leaf(literal)));
            }
            children.extend(graph.operands(node).iter().map(|operand| fragments[operand.node.index()]));
            let head = Head::of_application(data.op.mnemonic())
                .ok_or(PassError::NotElementary { node: node.index(), op: data.op.mnemonic() })?;
            let op = egraph.add(Term { head, children });
            if let Op::Scalar { .. } = data.op {
                fragments.push(op);
                continue;
            }
            let format = egraph.add(Term::leaf(Head::DType(ty.dtype)));
            egraph.add(Term { head: Head::Mat, children: vec![format, op] })
        };
        stored.push((node, value));
        fragments.push(egraph.add(Term { head: Head::Load, children: vec![value] }));
    }
    let mut outputs = Vec::new();
    for output in graph.outputs() {
        let known = stored.iter().find(|(node, _)| *node == output.node).map(|(_, id)| *id);
        outputs.push(known.unwrap_or_else(|| {
            // A constant that is an output has to be stored after all.
            let format = egraph.add(Term::leaf(Head::DType(graph.ty(*output).dtype)));
            egraph.add(Term { head: Head::Mat, children: vec![format, fragments[output.node.index()]] })
        }));
    }
    egraph.rebuild();
    Ok(Encoded { egraph, outputs, stored })
}
