//! Recognition of a chain of linears over the same rows.

use hyenac_ir::{DType, Graph, NodeIndex, Op, Region, Value};

use crate::cost::{depends_on, heavy_nodes, operand_precision};
use crate::family::Refusal;
use crate::index::Index;

/// A layer: a linear whose weight is a stored matrix, or one rounded to f16.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The linear.
    pub node: NodeIndex,
    /// Its x operand.
    pub input: Value,
    /// Region operand of its weight.
    pub weight: usize,
    /// The weight's dtype in memory.
    pub stored: DType,
    /// The weight's dtype as an operand.
    pub weight_dtype: DType,
    /// What both operands' dtypes allow for the product.
    pub precision: DType,
    /// Inner extent.
    pub inner: usize,
    /// Number of columns.
    pub columns: usize,
}

/// Linears, each fed elementwise by the one before.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Rows that run through every layer.
    pub rows: usize,
    /// In order.
    pub layers: Vec<Layer>,
    /// The region's only output.
    pub output: Value,
}

fn refusal(op: &str, why: impl Into<String>, larger: bool) -> Refusal {
    Refusal { op: op.to_owned(), why: why.into(), larger }
}

fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Add {} | Op::Mul {} | Op::Neg {} | Op::Abs {} | Op::Exp {} | Op::Sin {} | Op::GeluTanh {} | Op::Cast { .. }
    )
}

impl Chain {
    /// The chain of a region's body.
    pub fn of(region: &Region) -> Result<Chain, Refusal> {
        let body = region.body();
        let &[output] = body.outputs() else {
            return Err(refusal("region", "a chain has one output", false));
        };
        let heavy = heavy_nodes(body);
        if let Some(&node) = heavy.iter().find(|&&node| body.node(node).op != (Op::Linear {})) {
            return Err(refusal(body.node(node).op.mnemonic(), "a chain contains no such op", false));
        }
        let mut layers = Vec::new();
        for &node in &heavy {
            let (input, weight) = (body.operand(node, 0), body.operand(node, 1));
            let source = match body.op(weight) {
                Op::Cast { dtype: DType::F16 } => body.operand(weight.node, 0),
                _ => weight,
            };
            let Op::Parameter { index, dtype: stored @ (DType::F32 | DType::F16), .. } = *body.op(source) else {
                return Err(refusal("linear", "a chain reads its weights from memory", false));
            };
            let weight_dtype = body.ty(weight).dtype;
            let precision = operand_precision(body.ty(input).dtype, weight_dtype);
            let (shape, inner) = (&body.node(node).types[0].shape, body.ty(weight).shape[1]);
            let &[_, columns] = &shape[..] else {
                return Err(refusal("linear", format!("a chain has rows of rank 2, not {}", shape.len()), false));
            };
            layers.push(Layer { node, input, weight: index, stored, weight_dtype, precision, inner, columns });
        }
        let Some(last) = layers.last() else {
            return Err(refusal("region", "no linear", true));
        };
        let rows = body.node(last.node).types[0].shape[0];
        for pair in layers.windows(2) {
            check_between(body, pair[0], pair[1].input)?;
        }
        check_after(body, *last, output)?;
        if layers.len() < 2 {
            return Err(refusal("linear", "a single linear is no chain", true));
        }
        Ok(Chain { rows, layers, output })
    }

    /// Index in the output of the element that column `column` of row `row` of the last layer becomes.
    pub fn output_index(&self, body: &Graph, row: &Index, column: &Index) -> Vec<Index> {
        let last = self.layers[self.layers.len() - 1].node;
        let mut forward: Vec<Option<Vec<Index>>> = vec![None; body.len()];
        forward[last.index()] = Some(vec![row.clone(), column.clone()]);
        for node in body.nodes().filter(|node| node.index() > last.index()) {
            let source = body
                .operands(node)
                .into_iter()
                .find_map(|operand| forward[operand.node.index()].clone().map(|index| (operand, index)));
            let Some((operand, index)) = source else { continue };
            let shape = &body.node(node).types[0].shape;
            forward[node.index()] = Some(match &body.node(node).op {
                Op::Reshape { .. } => Index::flatten(&body.ty(operand).shape, &index).unflatten(shape),
                Op::Transpose { permutation } => permutation.iter().map(|&axis| index[axis].clone()).collect(),
                _ => index,
            });
        }
        forward[self.output.node.index()].clone().unwrap_or_else(|| vec![row.clone(), column.clone()])
    }
}

/// What lies between a layer and the next must act on each element alone.
fn check_between(body: &Graph, layer: Layer, input: Value) -> Result<(), Refusal> {
    if !depends_on(body, input.node, layer.node) {
        return Err(refusal("linear", "two linears side by side are no chain", false));
    }
    let shape = &body.node(layer.node).types[0].shape;
    for node in body.nodes().filter(|node| node.index() > layer.node.index() && node.index() <= input.node.index()) {
        let relevant = depends_on(body, node, layer.node) && depends_on(body, input.node, node);
        let op = &body.node(node).op;
        if relevant && !(is_elementwise(op) && &body.node(node).types[0].shape == shape) {
            return Err(refusal(op.mnemonic(), "between two layers of a chain only elementwise ops fit", false));
        }
    }
    Ok(())
}

/// What follows the last layer may be elementwise or move data.
fn check_after(body: &Graph, layer: Layer, output: Value) -> Result<(), Refusal> {
    let elements = body.node(layer.node).types[0].elements();
    if !depends_on(body, output.node, layer.node) {
        return Err(refusal("linear", "the output does not depend on the linear", false));
    }
    for node in body.nodes().filter(|node| node.index() > layer.node.index()) {
        if !depends_on(body, node, layer.node) {
            continue;
        }
        let op = &body.node(node).op;
        let fits = is_elementwise(op) || matches!(op, Op::Reshape { .. } | Op::Transpose { .. } | Op::Linear {});
        let moved = body.operands(node).iter().filter(|o| depends_on(body, o.node, layer.node)).all(|operand| {
            // An operand that broadcasts would put one element of the layer in several places of the output.
            !is_elementwise(op) || body.ty(*operand).shape == body.node(node).types[0].shape
        });
        if !fits || !moved || body.node(node).types[0].elements() != elements {
            return Err(refusal(
                op.mnemonic(),
                "after a chain only elementwise ops and views of all elements fit",
                false,
            ));
        }
    }
    Ok(())
}
