//! Recognition of the tail: projection, residual, layer norm, hidden layer, output.

use hyenac_ir::{DType, Graph, NodeIndex, Op, Region, Value};

use crate::cost::{depends_on, heavy_nodes, operand_precision};
use crate::family::Refusal;
use crate::gemm::Product;
use crate::layer_norm::Norm;
use crate::warpgroup::row_panels;

/// Widths of rows: two warpgroups accumulate one or two tiles of 64 channels each.
pub const WIDTHS: [usize; 2] = [128, 256];

/// A region taken apart.
pub struct Tail {
    /// The projection, as a product on its own.
    pub projection: Product,
    /// What is normalised, and added to the result.
    pub residual: Value,
    /// The layer norm.
    pub norm: Norm,
    /// The hidden layer's product, its operand and the operand of the last product.
    pub up: Value,
    pub normal: Value,
    pub hidden: Value,
    /// The last product.
    pub down: Value,
    /// The region's output.
    pub output: Value,
    /// Region operands of the three weights.
    pub weights: [usize; 3],
    /// Width of the hidden layer.
    pub hidden_width: usize,
}

fn refuse<T>(op: &str, why: impl Into<String>, larger: bool) -> Result<T, Refusal> {
    Err(Refusal { op: op.to_owned(), why: why.into(), larger })
}

impl Tail {
    /// The tail that a region is, if it is one; its beginnings may become one.
    pub fn of(region: &Region) -> Result<Tail, Refusal> {
        let body = region.body();
        let &[output] = body.outputs() else { return refuse("region", "a tail has one output", false) };
        let heavy = heavy_nodes(body);
        let order: Vec<&str> = heavy.iter().map(|&node| body.node(node).op.mnemonic()).collect();
        const WANTED: [&str; 4] = ["linear", "layer_norm", "linear", "linear"];
        if order != WANTED {
            let begins = WANTED.starts_with(&order[..]) && begins_packed(body, &heavy);
            return refuse("region", format!("a tail is {}, not {}", WANTED.join(", "), order.join(", ")), begins);
        }
        let [projection, norm, up, down] = [heavy[0], heavy[1], heavy[2], heavy[3]];
        let Some(norm) = Norm::of(body, norm) else { return refuse("layer_norm", "has the wrong operands", false) };
        let product = product(body, projection, output)?;
        let width = product.columns;
        if !(WIDTHS.contains(&width) && product.inner == width && norm.length == width) {
            return refuse("linear", format!("a tail is {} or {} wide", WIDTHS[0], WIDTHS[1]), false);
        }
        let (up, down) = (Value::of(up), Value::of(down));
        let weights = [
            row_panels(body, product.weight),
            row_panels(body, body.operand(up.node, 1)),
            row_panels(body, body.operand(down.node, 1)),
        ];
        let [Some(first), Some(second), Some(third)] = weights else {
            return refuse("linear", "a tail reads its weights in packed panels", false);
        };
        if !is_moved_load(body, product.x) {
            return refuse("linear", "the projection of a tail reads a stored operand", false);
        }
        let (normal, hidden) = (body.operand(up.node, 0), body.operand(down.node, 0));
        let hidden_width = body.ty(up).shape.last().copied().unwrap_or(0);
        if body.ty(normal).dtype != DType::F16 || body.ty(hidden).dtype != DType::F16 {
            return refuse("linear", "a tail has f16 operands", false);
        }
        for (from, to, what) in [
            (product.value, norm.x, "the projection and the norm"),
            (norm.value, normal, "the norm and the hidden layer"),
            (up, hidden, "the hidden layer and the last product"),
        ] {
            elementwise(body, from, to, what)?;
        }
        rowless(body, up, hidden)?;
        sum_of(body, down, norm.x, output)?;
        Ok(Tail {
            residual: norm.x,
            projection: product,
            norm,
            up,
            normal,
            hidden,
            down,
            output,
            weights: [first, second, third],
            hidden_width,
        })
    }
}

/// Whether a value is a stored one, at most moved and rounded.
fn is_moved_load(body: &Graph, value: Value) -> bool {
    match body.op(value) {
        Op::Parameter { .. } => true,
        Op::Transpose { .. } | Op::Reshape { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Cast { .. } => {
            is_moved_load(body, body.operand(value.node, 0))
        }
        _ => false,
    }
}

/// Whether the products of a beginning read their operands as a tail would.
fn begins_packed(body: &Graph, heavy: &[NodeIndex]) -> bool {
    if heavy.first().is_some_and(|&node| !is_moved_load(body, body.operand(node, 0))) {
        return false;
    }
    let mut products = heavy.iter().filter(|&&node| body.node(node).op == (Op::Linear {}));
    products.all(|&node| row_panels(body, body.operand(node, 1)).is_some())
}

fn product(body: &Graph, node: NodeIndex, output: Value) -> Result<Product, Refusal> {
    let (x, weight) = (body.operand(node, 0), body.operand(node, 1));
    let (Some((&inner, leading)), Some(&columns)) = (body.ty(x).shape.split_last(), body.ty(weight).shape.first())
    else {
        return refuse("linear", "x needs an axis", false);
    };
    let precision = operand_precision(body.ty(x).dtype, body.ty(weight).dtype);
    let rows: usize = leading.iter().product();
    if precision != DType::F16 || rows > i32::MAX as usize {
        return refuse("linear", "a tail has f16 operands and at most 2^31 - 1 rows", false);
    }
    let (leading, pitch) = (leading.to_vec(), leading.last().copied().unwrap_or(1));
    let value = Value::of(node);
    let mut product = Product { value, x, weight, output, leading, rows, pitch, inner, columns, precision, norm: None };
    product.pad_rows(body, false)?;
    Ok(product)
}

/// Between two stages every element is made of the same element of the stage before.
fn elementwise(body: &Graph, from: Value, to: Value, what: &str) -> Result<(), Refusal> {
    if !depends_on(body, to.node, from.node) {
        return refuse("region", format!("{what} are not connected"), false);
    }
    for node in body.nodes().filter(|node| node.index() > from.node.index() && node.index() <= to.node.index()) {
        if !(depends_on(body, node, from.node) && depends_on(body, to.node, node)) {
            continue;
        }
        let op = &body.node(node).op;
        let pointwise = matches!(
            op,
            Op::Add {}
                | Op::Mul {}
                | Op::Neg {}
                | Op::Abs {}
                | Op::Exp {}
                | Op::Sin {}
                | Op::GeluTanh {}
                | Op::Cast { .. }
        );
        if !pointwise || body.node(node).types[0].shape != body.ty(from).shape {
            return refuse(op.mnemonic(), format!("between {what} only elementwise ops fit"), false);
        }
    }
    Ok(())
}

/// What joins the hidden layer on its way is the same for all rows.
fn rowless(body: &Graph, from: Value, to: Value) -> Result<(), Refusal> {
    for node in body.nodes().filter(|node| node.index() > from.node.index() && node.index() <= to.node.index()) {
        if !depends_on(body, node, from.node) || !depends_on(body, to.node, node) {
            continue;
        }
        for operand in body.operands(node) {
            let shape = &body.ty(operand).shape;
            let same_for_all_rows = shape.iter().rev().skip(1).all(|&extent| extent == 1);
            if !depends_on(body, operand.node, from.node) && operand != from && !same_for_all_rows {
                return refuse(body.op(operand).mnemonic(), "differs between rows of the hidden layer", false);
            }
        }
    }
    Ok(())
}

/// The output is a sum with the last product and the residual as terms, each once, so that they may be added up
/// before the rest.
fn sum_of(body: &Graph, down: Value, residual: Value, output: Value) -> Result<(), Refusal> {
    let (mut downs, mut residuals) = (0, 0);
    let mut open = vec![output];
    while let Some(value) = open.pop() {
        if value == down {
            downs += 1;
        } else if value == residual {
            residuals += 1;
        } else if depends_on(body, value.node, down.node) || depends_on(body, value.node, residual.node) {
            if *body.op(value) != (Op::Add {}) {
                return refuse(body.op(value).mnemonic(), "the output of a tail is a sum", false);
            }
            open.extend(body.operands(value.node));
        }
    }
    match (downs, residuals) {
        (1, 1) => Ok(()),
        // The residual may still be added.
        (1, 0) => refuse("add", "the output of a tail adds the residual", true),
        _ => refuse("add", "the output of a tail adds the last product and the residual once each", false),
    }
}
