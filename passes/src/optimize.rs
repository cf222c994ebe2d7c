//! From a graph of elementary ops to a graph of regions.

use hyenac_ir::Graph;

use crate::encode::{Encoded, encode};
use crate::error::PassError;
use crate::extract::{Assembled, Forest, Space, assemble, cheapest, enumerate};
use crate::options::Options;
use crate::report::{Report, Run, report};
use crate::saturate::{Saturated, saturate};
use crate::target::Target;

/// A graph of regions, and how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimized {
    /// Inputs, weights and scheduled regions only, each stored value one region.
    pub graph: Graph,
    /// What fired, what was chosen and why.
    pub report: Report,
}

/// Rewrites a graph of elementary ops and picks the cheapest regions a target has kernels for.
///
/// # Errors
/// [`PassError::NotElementary`] for a graph that has regions already, [`PassError::Rule`] for a rule that does
/// something without meaning, [`PassError::NoKernel`] when the target refuses every region for some op.
pub fn optimize(reference: &Graph, options: &Options, target: &dyn Target) -> Result<Optimized, PassError> {
    let Encoded { egraph, outputs, stored } = encode(reference)?;
    let Saturated { egraph, fired, stop, iterations } = saturate(egraph, options)?;
    let (classes, nodes) = (egraph.number_of_classes(), egraph.total_number_of_nodes());
    let forest = Forest::new(egraph)?;
    let outputs: Vec<_> = outputs.into_iter().map(|id| forest.class(id)).collect();
    let space = enumerate(&forest, &outputs, target, options)?;
    let Some(found) = cheapest(&space, &outputs, options.beam_width, &|_| false) else {
        let stored: Vec<_> = stored.into_iter().map(|(node, id)| (node, forest.class(id))).collect();
        return Err(no_kernel(reference, &forest, &space, &stored));
    };
    let Assembled { graph, regions } = assemble(&forest, &found, reference, &outputs)?;
    debug_assert_eq!(graph.verify(), Ok(()));
    let run = Run { fired, stop, iterations, classes, nodes };
    let report = report(run, options, &forest, &space, &outputs, &found, &graph, &regions);
    Ok(Optimized { graph, report })
}

/// Names the op that the target has no kernel for: the first, from the outputs towards the inputs, whose
/// operands are all available but which is not.
fn no_kernel(reference: &Graph, forest: &Forest, space: &Space, stored: &[(hyenac_ir::NodeIndex, usize)]) -> PassError {
    let class = |node| stored.iter().find(|(other, _)| *other == node).map(|(_, class)| *class);
    let available = |node| match class(node) {
        Some(class) => forest.source(class).is_some() || space.feasible(class),
        // Constants are not stored.
        None => true,
    };
    let mut node = match reference.outputs().iter().find(|output| !available(output.node)) {
        Some(output) => output.node,
        None => {
            return PassError::Ir(hyenac_ir::IrError::Tensor {
                name: "outputs".to_owned(),
                why: "there is no plan although every value has a region".to_owned(),
            });
        }
    };
    let mut walked = vec![node];
    while let Some(operand) = reference.operands(node).into_iter().find(|operand| !available(operand.node)) {
        node = operand.node;
        walked.push(node);
    }
    // What was refused on the way matters too: a larger region might have been accepted.
    let mut reasons: Vec<String> = Vec::new();
    for class in walked.iter().rev().filter_map(|node| class(*node)) {
        for refusal in space.refused(forest, class) {
            let reason = format!("{}: {}", refusal.op, refusal.why);
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    reasons.truncate(MAX_REASONS);
    let operands: Vec<String> =
        reference.operands(node).iter().map(|operand| reference.ty(*operand).to_string()).collect();
    let op = format!("{}({})", reference.node(node).op.mnemonic(), operands.join(", "));
    PassError::NoKernel { node: node.index(), op, reasons: reasons.join("; ") }
}

/// Reasons that an error lists.
const MAX_REASONS: usize = 4;
