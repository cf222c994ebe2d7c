//! One op at a time.

use super::real::Real;
use super::rounding::{round_to_f16, round_to_tf32};
use super::tensor::{Tensor, components};
use super::{Rounding, convolve, dense, elementwise, evaluate_body, fourier, movement, positional};
use crate::error::IrError;
use crate::infer::infer;
use crate::op::Op;
use crate::types::{DType, Type};

/// Evaluates one op whose result types, by [`crate::infer`], are `types`.
///
/// # Errors
/// When the operands do not fit the op or do not give these types, or memory runs out. Inputs, weights and
/// parameters have no value of their own.
pub fn evaluate_op<T: Real>(
    op: &Op,
    operands: &[&Tensor<T>],
    types: &[Type],
    rounding: Rounding,
) -> Result<Vec<Tensor<T>>, IrError> {
    if let Op::Region(region) = op {
        return evaluate_body(region.body(), operands, rounding);
    }
    check(op, operands, types)?;
    let [ty] = types else {
        return Err(IrError::Arity { op: op.mnemonic(), expected: operands.len(), found: operands.len() });
    };
    elementary(op, operands, ty, rounding).map(|tensor| vec![tensor])
}

/// Refuses what the arms below could not index. Real dtypes look alike here, so only shapes and pairs are compared.
fn check<T: Real>(op: &Op, operands: &[&Tensor<T>], types: &[Type]) -> Result<(), IrError> {
    let mut operand_types = Vec::with_capacity(operands.len());
    for (position, operand) in operands.iter().enumerate() {
        let dtype = if operand.is_complex() { DType::C64 } else { DType::F32 };
        let ty = Type::new(dtype, operand.shape.clone());
        operand.check(&format!("operand {position} of {}", op.mnemonic()), &ty)?;
        operand_types.push(ty);
    }
    let found = infer(op, &operand_types.iter().collect::<Vec<_>>())?;
    let same = found.len() == types.len()
        && found
            .iter()
            .zip(types)
            .all(|(found, ty)| found.shape == ty.shape && components(found.dtype) == components(ty.dtype));
    if same {
        return Ok(());
    }
    let why = match types.first() {
        Some(ty) => format!("the result would not be {ty}"),
        None => "has one result".to_owned(),
    };
    Err(IrError::Types { op: op.mnemonic(), operands: operand_types, why })
}

fn elementary<T: Real>(op: &Op, operands: &[&Tensor<T>], ty: &Type, rounding: Rounding) -> Result<Tensor<T>, IrError> {
    let pair = components(ty.dtype);
    // Data and shape of an operand; the arity is checked.
    let data = |position: usize| &operands[position].data[..];
    let shape = |position: usize| &operands[position].shape[..];
    let both = |position: usize| (data(position), shape(position));
    // A copy under another shape, for ops that need no zeros first.
    let copied = || Tensor { shape: ty.shape.clone(), data: data(0).to_vec() };
    if let Op::Reshape { .. } = op {
        return Ok(copied());
    }
    let mut result = Tensor::zeros(ty)?;
    let out = &mut result.data[..];
    match op {
        Op::Input { name, .. } | Op::Weight { name, .. } => {
            return Err(IrError::Tensor { name: name.clone(), why: "is given, not computed".to_owned() });
        }
        Op::Parameter { index, .. } => {
            return Err(IrError::Tensor { name: format!("operand {index}"), why: "is given, not computed".to_owned() });
        }
        Op::Scalar { value } => out[0] = T::from_double(*value),
        Op::PositionalEmbedding { positions, width, .. } => {
            positional::positional_embedding(out, *positions, *width);
        }
        Op::Cast { dtype } => match cast::<T>(*dtype, rounding) {
            Some(f) => elementwise::map(out, data(0), f),
            None => out.copy_from_slice(data(0)),
        },
        Op::Transpose { permutation } => {
            let (mut shape, mut permutation) = (shape(0).to_vec(), permutation.clone());
            if pair == 2 {
                permutation.push(shape.len());
                shape.push(2);
            }
            movement::transpose(out, data(0), &shape, &permutation);
        }
        Op::Slice { axis, start, length } => {
            let inner = pair * shape(0)[axis + 1..].iter().product::<usize>();
            movement::slice(out, data(0), shape(0)[*axis], inner, *start, *length);
        }
        Op::Pad { axis, before, after } => {
            let inner = pair * shape(0)[axis + 1..].iter().product::<usize>();
            movement::pad(out, data(0), shape(0)[*axis], inner, *before, *after);
        }
        Op::Add {} => elementwise::broadcast(out, &ty.shape, both(0), both(1), |a, b| a + b),
        Op::Mul {} => elementwise::broadcast(out, &ty.shape, both(0), both(1), |a, b| a * b),
        Op::Neg {} => elementwise::map(out, data(0), |x| -x),
        Op::Abs {} => elementwise::map(out, data(0), |x| x.abs()),
        Op::Exp {} => elementwise::map(out, data(0), T::exp),
        Op::Sin {} => elementwise::map(out, data(0), T::sin),
        Op::GeluTanh {} => elementwise::map(out, data(0), elementwise::gelu_tanh),
        Op::LayerNorm { eps } => dense::layer_norm(out, data(0), data(1), data(2), *eps),
        Op::Linear {} => dense::linear(out, data(0), data(1), shape(1)[0], shape(1)[1]),
        Op::ShortConv {} => convolve::short_conv(out, data(0), data(1), shape(0)[1], shape(0)[2]),
        Op::LongConv {} => convolve::long_conv(out, data(0), data(1), shape(0)[1], shape(0)[2])?,
        Op::Rfft { size } => fourier::rfft(out, data(0), shape(0)[shape(0).len() - 1], *size)?,
        Op::SpectrumMul {} => fourier::spectrum_mul(out, &ty.shape, both(0), both(1)),
        Op::Irfft { size, length } => fourier::irfft(out, data(0), *size, *length)?,
        // Handled before.
        Op::Reshape { .. } | Op::Region(_) => {}
    }
    Ok(result)
}

/// What a cast does to a number, if anything.
fn cast<T: Real>(dtype: DType, rounding: Rounding) -> Option<fn(T) -> T> {
    match (rounding, dtype) {
        (Rounding::Casts, DType::F16) => Some(|x| T::from_double(round_to_f16(x.to_double()))),
        (Rounding::Casts, DType::Tf32) => Some(|x| T::from_double(round_to_tf32(x.to_double()))),
        // Widening is exact.
        _ => None,
    }
}

/// Whether [`evaluate_reusing`] knows the op.
pub(super) fn can_reuse(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape { .. }
            | Op::Cast { .. }
            | Op::Neg {}
            | Op::Abs {}
            | Op::Exp {}
            | Op::Sin {}
            | Op::GeluTanh {}
            | Op::Add {}
            | Op::Mul {}
    )
}

/// As [`evaluate_op`] on operands already known to fit, with the memory of the first one.
pub(super) fn evaluate_reusing<T: Real>(
    op: &Op,
    mut first: Tensor<T>,
    second: Option<&Tensor<T>>,
    ty: &Type,
    rounding: Rounding,
) -> Result<Tensor<T>, IrError> {
    let data = &mut first.data[..];
    match op {
        Op::Reshape { .. } => first.shape.clone_from(&ty.shape),
        Op::Cast { dtype } => {
            if let Some(f) = cast::<T>(*dtype, rounding) {
                elementwise::map_in_place(data, f);
            }
        }
        Op::Neg {} => elementwise::map_in_place(data, |x| -x),
        Op::Abs {} => elementwise::map_in_place(data, |x| x.abs()),
        Op::Exp {} => elementwise::map_in_place(data, T::exp),
        Op::Sin {} => elementwise::map_in_place(data, T::sin),
        Op::GeluTanh {} => elementwise::map_in_place(data, elementwise::gelu_tanh),
        Op::Add {} | Op::Mul {} => {
            let fits = second.filter(|second| second.shape == first.shape && first.shape == ty.shape);
            let Some(second) = fits else {
                let operands: Vec<&Tensor<T>> = std::iter::once(&first).chain(second).collect();
                return elementary(op, &operands, ty, rounding);
            };
            if let Op::Add {} = op {
                elementwise::zip_in_place(data, &second.data, |a, b| a + b);
            } else {
                elementwise::zip_in_place(data, &second.data, |a, b| a * b);
            }
        }
        _ => return elementary(op, &[&first], ty, rounding),
    }
    Ok(first)
}
