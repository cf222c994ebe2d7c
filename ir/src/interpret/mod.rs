//! The reference interpreter, generic over f32 and f64.
//!
//! Evaluating a graph in f64 with casts as the identity gives the mathematical meaning that rewrites
//! are judged by; in f32 the same code is the CPU's arithmetic.

mod convolve;
mod dense;
mod dispatch;
mod elementwise;
mod fourier;
mod movement;
mod positional;
mod real;
mod rounding;
mod tensor;

use std::collections::BTreeMap;

use crate::error::IrError;
use crate::graph::Graph;
use crate::op::Op;
use crate::types::Type;

pub use dispatch::evaluate_op;
pub use fourier::fft_size;
pub use real::Real;
pub use rounding::{round_to_f16, round_to_tf32};
pub use tensor::Tensor;

/// What `cast` does to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rounds to the dtype, to nearest with ties to even.
    Casts,
    /// Nothing: the exact meaning, without storage formats.
    Exact,
}

/// Evaluates a graph on named inputs and weights. Tensors the graph does not name are ignored.
///
/// # Errors
/// [`IrError::Tensor`] when a tensor is missing or has another shape than the graph says.
pub fn evaluate<T: Real>(
    graph: &Graph,
    tensors: &BTreeMap<String, Tensor<T>>,
    rounding: Rounding,
) -> Result<Vec<Tensor<T>>, IrError> {
    execute(graph, rounding, |op, ty| match op {
        Op::Input { name, .. } | Op::Weight { name, .. } => {
            let tensor = tensors.get(name).ok_or_else(|| IrError::Tensor {
                name: name.clone(),
                why: format!("is missing; the graph needs it as {ty}"),
            })?;
            tensor.check(name, ty)?;
            Ok(Some(tensor))
        }
        _ => Ok(None),
    })
}

/// Evaluates the body of a region on its operands, in the order of its parameters.
///
/// # Errors
/// [`IrError::Tensor`] when an operand is missing or has another shape than its parameter.
pub fn evaluate_body<T: Real>(
    body: &Graph,
    operands: &[&Tensor<T>],
    rounding: Rounding,
) -> Result<Vec<Tensor<T>>, IrError> {
    execute(body, rounding, |op, ty| match op {
        Op::Parameter { index, .. } => {
            let name = format!("operand {index}");
            let Some(&tensor) = operands.get(*index) else {
                let why = format!("is missing; the body needs it as {ty}, {} are given", operands.len());
                return Err(IrError::Tensor { name, why });
            };
            tensor.check(&name, ty)?;
            Ok(Some(tensor))
        }
        _ => Ok(None),
    })
}

/// A value held during evaluation: the caller's tensor, or one computed here.
enum Held<'a, T> {
    Borrowed(&'a Tensor<T>),
    Owned(Tensor<T>),
}

impl<T> Held<'_, T> {
    fn tensor(&self) -> &Tensor<T> {
        match self {
            Held::Borrowed(tensor) => tensor,
            Held::Owned(tensor) => tensor,
        }
    }
}

/// Runs the nodes that outputs depend on, in order, and drops every value after its last use.
fn execute<'a, T: Real>(
    graph: &Graph,
    rounding: Rounding,
    bind: impl Fn(&Op, &Type) -> Result<Option<&'a Tensor<T>>, IrError>,
) -> Result<Vec<Tensor<T>>, IrError> {
    // `last_use[n]` is the last node that reads `n`, or `n` itself when nothing needs it.
    let mut needed = vec![false; graph.len()];
    for output in graph.outputs() {
        needed[output.node.index()] = true;
    }
    let mut last_use: Vec<usize> = (0..graph.len()).collect();
    for node in graph.nodes().rev() {
        if !needed[node.index()] {
            continue;
        }
        for operand in graph.operands(node) {
            let operand = operand.node.index();
            needed[operand] = true;
            last_use[operand] = last_use[operand].max(node.index());
        }
    }
    for output in graph.outputs() {
        last_use[output.node.index()] = usize::MAX;
    }

    let mut values: Vec<Vec<Held<'a, T>>> = Vec::with_capacity(graph.len());
    for node in graph.nodes() {
        let index = node.index();
        if !needed[index] {
            values.push(Vec::new());
            continue;
        }
        let definition = graph.node(node);
        let bound = match definition.types.first() {
            Some(ty) => bind(&definition.op, ty)?,
            None => None,
        };
        let results = if let Some(tensor) = bound {
            vec![Held::Borrowed(tensor)]
        } else {
            let operands = graph.operands(node);
            // An operand that dies here may give its memory to the result.
            let first = operands.first().filter(|first| {
                last_use[first.node.index()] == index && operands[1..].iter().all(|other| other.node != first.node)
            });
            let reusable = match first {
                Some(first) if dispatch::can_reuse(&definition.op) => match values[first.node.index()].pop() {
                    // Only regions have several outputs; they keep theirs.
                    Some(Held::Owned(tensor)) if values[first.node.index()].is_empty() => Some(tensor),
                    Some(other) => {
                        values[first.node.index()].push(other);
                        None
                    }
                    None => None,
                },
                _ => None,
            };
            let results = if let Some(tensor) = reusable {
                let second = operands.get(1).map(|o| values[o.node.index()][o.output as usize].tensor());
                vec![dispatch::evaluate_reusing(&definition.op, tensor, second, &definition.types[0], rounding)?]
            } else {
                let tensors: Vec<&Tensor<T>> =
                    operands.iter().map(|o| values[o.node.index()][o.output as usize].tensor()).collect();
                dispatch::evaluate_op(&definition.op, &tensors, &definition.types, rounding)?
            };
            for operand in &operands {
                if last_use[operand.node.index()] == index {
                    values[operand.node.index()] = Vec::new();
                }
            }
            results.into_iter().map(Held::Owned).collect()
        };
        values.push(results);
    }
    let mut outputs = Vec::with_capacity(graph.outputs().len());
    for (position, output) in graph.outputs().iter().enumerate() {
        let held = &mut values[output.node.index()][output.output as usize];
        let again = graph.outputs()[position + 1..].contains(output);
        outputs.push(match held {
            Held::Owned(tensor) if !again => std::mem::replace(tensor, Tensor { shape: Vec::new(), data: Vec::new() }),
            held => held.tensor().clone(),
        });
    }
    Ok(outputs)
}
