//! Which regions the family accepts.

use hyenac_ir::{DType, Graph, NodeIndex, Op, Region, Type, Value};

use super::vectors::WIDTH;
use crate::cost::{heavy_nodes, operand_precision};
use crate::family::Refusal;

/// The longest sequence that is convolved directly: the filter and one signal fit the shared memory of every
/// supported device. Transforms are cheaper long before.
pub const MAX_LENGTH: usize = 16384;

/// A region whose only heavy op is one long convolution.
pub struct Convolution {
    pub node: NodeIndex,
    pub signal: Value,
    pub filter: Value,
    pub batches: usize,
    pub channels: usize,
    pub length: usize,
    /// Elements along time that staging and storing handle at a time: several where the sequence consists of whole
    /// groups, or where all that runs along it are f16 rows, which are padded.
    pub width: usize,
    /// The multiply-add precision that the operands allow.
    pub precision: DType,
    /// For each output of the region, the axis of the convolution that each of its axes is.
    pub axes: Vec<Vec<usize>>,
}

fn refuse<T>(op: &str, why: impl Into<String>, larger: bool) -> Result<T, Refusal> {
    Err(Refusal { op: op.to_owned(), why: why.into(), larger })
}

impl Convolution {
    /// Recognises a region.
    ///
    /// # Errors
    /// What does not fit.
    pub fn of(region: &Region) -> Result<Convolution, Refusal> {
        let body = region.body();
        let heavy = heavy_nodes(body);
        let Some(&node) = heavy.first() else {
            return refuse("region", "has no long_conv; it could become the prologue of one", true);
        };
        if let Some(&other) = heavy.iter().find(|&&node| body.node(node).op != (Op::LongConv {})) {
            return refuse(body.node(other).op.mnemonic(), "does not fit into the kernel of a direct long_conv", false);
        }
        if heavy.len() > 1 {
            return refuse("long_conv", format!("one a kernel, found {}", heavy.len()), false);
        }
        let (&[signal, filter], &[batches, channels, length]) =
            (&body.operands(node)[..], &body.node(node).types[0].shape[..])
        else {
            return refuse("long_conv", "expected a signal [B, D, L] and a filter [D, L]", false);
        };
        if length > MAX_LENGTH {
            let why = format!(
                "a sequence of {length} exceeds {MAX_LENGTH}, the longest that is convolved directly; convolve it with \
                 rfft, spectrum_mul and irfft"
            );
            return refuse("long_conv", why, false);
        }
        let axes = output_axes(body, node)?;
        let precision = operand_precision(body.ty(signal).dtype, body.ty(filter).dtype);
        let wide = length.is_multiple_of(WIDTH) || length > WIDTH && in_f16_rows(body, &axes, channels * length);
        let width = if wide { WIDTH } else { 1 };
        Ok(Convolution { node, signal, filter, batches, channels, length, width, precision, axes })
    }
}

/// Whether outputs are rows of f16 along time, and so are all parameters as large as the filter.
fn in_f16_rows(body: &Graph, axes: &[Vec<usize>], taps: usize) -> bool {
    let rows = |ty: &Type| ty.dtype == DType::F16;
    let outputs = body.outputs().iter().zip(axes).all(|(&out, axes)| rows(body.ty(out)) && axes.last() == Some(&2));
    let types = body.parameters().into_iter().map(|node| &body.node(node).types[0]);
    outputs && types.filter(|ty| ty.elements() >= taps).all(rows)
}

/// For each output the axis of the convolution that each of its axes is.
fn output_axes(body: &Graph, convolution: NodeIndex) -> Result<Vec<Vec<usize>>, Refusal> {
    // Per node: `None` when it does not depend on the convolution.
    let mut axes: Vec<Option<Vec<usize>>> = vec![None; body.len()];
    for node in body.nodes() {
        if node == convolution {
            axes[node.index()] = Some(vec![0, 1, 2]);
            continue;
        }
        let operands = body.operands(node);
        let mut dependent =
            operands.iter().filter_map(|operand| axes[operand.node.index()].as_ref().map(|a| (*operand, a)));
        let Some((first, known)) = dependent.next() else { continue };
        let op = &body.node(node).op;
        let shape = &body.node(node).types[0].shape;
        let result = match op {
            Op::Transpose { permutation } => permutation.iter().map(|&axis| known[axis]).collect(),
            Op::Cast { .. } | Op::Neg {} | Op::Abs {} | Op::Exp {} | Op::Sin {} | Op::GeluTanh {} => known.clone(),
            Op::Add {} | Op::Mul {} => {
                let agrees = |operand: Value, axes: &Vec<usize>| body.ty(operand).shape == *shape && axes == known;
                if !agrees(first, known) || !dependent.all(|(operand, axes)| agrees(operand, axes)) {
                    let why = "after the convolution, its result must not be broadcast or meet itself transposed";
                    return refuse(op.mnemonic(), why, false);
                }
                known.clone()
            }
            _ => {
                let why = "after the convolution only elementwise ops, casts and transposes fit into its kernel";
                return refuse(op.mnemonic(), why, false);
            }
        };
        axes[node.index()] = Some(result);
    }
    body.outputs()
        .iter()
        .map(|output| match &axes[output.node.index()] {
            Some(axes) => Ok(axes.clone()),
            None => refuse("region", "has an output that does not depend on its long_conv", false),
        })
        .collect()
}
