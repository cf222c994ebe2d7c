//! Shape and dtype rules, one arm an op.

use crate::error::IrError;
use crate::op::Op;
use crate::types::{DType, Type};

/// The most bytes a single value may have: 2^48, far above any device's memory and far below overflow.
pub const MAX_VALUE_BYTES: usize = 1 << 48;

/// The types an op yields on operands of these types.
///
/// # Errors
/// When the operands do not fit; the message says what was expected.
pub fn infer(op: &Op, operands: &[&Type]) -> Result<Vec<Type>, IrError> {
    if operands.len() != op.arity() {
        return Err(IrError::Arity { op: op.mnemonic(), expected: op.arity(), found: operands.len() });
    }
    let types = shape_rule(op, operands).map_err(|why| IrError::Types {
        op: op.mnemonic(),
        operands: operands.iter().map(|&ty| ty.clone()).collect(),
        why,
    })?;
    for ty in &types {
        let fits = ty.checked_bytes().is_some_and(|bytes| bytes <= MAX_VALUE_BYTES);
        if !fits || ty.shape.contains(&0) {
            return Err(IrError::Types {
                op: op.mnemonic(),
                operands: operands.iter().map(|&ty| ty.clone()).collect(),
                why: format!("the result {ty} is empty or larger than {MAX_VALUE_BYTES} bytes"),
            });
        }
    }
    Ok(types)
}

/// Shape of two operands broadcast against each other from the right.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|axis| match (extent(a, axis), extent(b, axis)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

fn shape_rule(op: &Op, operands: &[&Type]) -> Result<Vec<Type>, String> {
    let real = |position: usize| {
        let ty = operands[position];
        if ty.dtype.is_real() { Ok(ty) } else { Err(format!("operand {position} must be real, found {ty}")) }
    };
    let complex = |position: usize| {
        let ty = operands[position];
        if ty.dtype == DType::C64 { Ok(ty) } else { Err(format!("operand {position} must be c64, found {ty}")) }
    };
    let one = |ty: Type| Ok(vec![ty]);
    match op {
        Op::Input { dtype, shape, .. } | Op::Weight { dtype, shape, .. } => {
            if !dtype.is_real() {
                return Err("inputs and weights are real".to_owned());
            }
            one(Type::new(*dtype, shape.clone()))
        }
        Op::Parameter { dtype, shape, .. } => one(Type::new(*dtype, shape.clone())),
        Op::Scalar { value } => {
            if !value.is_finite() {
                return Err(format!("a scalar must be finite, found {value}"));
            }
            one(Type::f32([]))
        }
        Op::PositionalEmbedding { positions, rows, width } => {
            if *width < 3 || width % 2 == 0 {
                return Err(format!("width must be odd and at least 3, found {width}"));
            }
            if rows > positions {
                return Err(format!("{rows} rows of only {positions} positions"));
            }
            one(Type::f32([*rows, *width]))
        }
        Op::Cast { dtype } => {
            let x = real(0)?;
            if !dtype.is_real() {
                return Err("a cast is to a real dtype".to_owned());
            }
            one(Type::new(*dtype, x.shape.clone()))
        }
        Op::Reshape { shape } => {
            let result = Type::new(operands[0].dtype, shape.clone());
            if result.checked_elements() != operands[0].checked_elements() {
                return Err(format!("{result} has another number of elements"));
            }
            one(result)
        }
        Op::Transpose { permutation } => {
            let x = operands[0];
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..x.rank()) {
                return Err(format!("{permutation:?} is not a permutation of {} axes", x.rank()));
            }
            one(Type::new(x.dtype, permutation.iter().map(|&axis| x.shape[axis]).collect::<Vec<_>>()))
        }
        Op::Slice { axis, start, length } => {
            let mut ty = operands[0].clone();
            let extent = *ty.shape.get(*axis).ok_or_else(|| format!("no axis {axis}"))?;
            if *length == 0 || start.checked_add(*length).is_none_or(|end| end > extent) {
                return Err(format!("entries {start} .. {start} + {length} of an axis of {extent}"));
            }
            ty.shape[*axis] = *length;
            one(ty)
        }
        Op::Pad { axis, before, after } => {
            let mut ty = operands[0].clone();
            let extent = ty.shape.get_mut(*axis).ok_or_else(|| format!("no axis {axis}"))?;
            *extent = extent
                .checked_add(*before)
                .and_then(|sum| sum.checked_add(*after))
                .ok_or("the padded extent overflows")?;
            one(ty)
        }
        Op::Add {} | Op::Mul {} => {
            let (a, b) = (real(0)?, real(1)?);
            let shape = broadcast(&a.shape, &b.shape).ok_or("the shapes do not broadcast")?;
            one(Type::f32(shape))
        }
        Op::Neg {} | Op::Abs {} | Op::Exp {} | Op::Sin {} | Op::GeluTanh {} => one(Type::f32(real(0)?.shape.clone())),
        Op::LayerNorm { eps } => {
            let (x, weight, bias) = (real(0)?, real(1)?, real(2)?);
            let Some(&width) = x.shape.last() else { return Err("x needs an axis".to_owned()) };
            if weight.shape != [width] || bias.shape != [width] {
                return Err(format!("weight and bias must be [{width}]"));
            }
            if !(eps.is_finite() && *eps >= 0.0) {
                return Err(format!("eps must be finite and not negative, found {eps}"));
            }
            one(Type::f32(x.shape.clone()))
        }
        Op::Linear {} => {
            let (x, weight) = (real(0)?, real(1)?);
            let Some((&inner, leading)) = x.shape.split_last() else { return Err("x needs an axis".to_owned()) };
            match weight.shape[..] {
                [outer, k] if k == inner => {
                    let mut shape = leading.to_vec();
                    shape.push(outer);
                    one(Type::f32(shape))
                }
                _ => Err(format!("weight must be [N, {inner}]")),
            }
        }
        Op::ShortConv {} => {
            let (x, weight) = (real(0)?, real(1)?);
            match (&x.shape[..], &weight.shape[..]) {
                (&[_, channels, _], &[c, 1, taps]) if c == channels && taps > 0 => one(Type::f32(x.shape.clone())),
                _ => Err("expected x: [B, C, L] and weight: [C, 1, T]".to_owned()),
            }
        }
        Op::LongConv {} => {
            let (signal, filter) = (real(0)?, real(1)?);
            match (&signal.shape[..], &filter.shape[..]) {
                (&[_, d, l], &[fd, fl]) if d == fd && l == fl => one(Type::f32(signal.shape.clone())),
                _ => Err("expected signal: [B, D, L] and filter: [D, L]".to_owned()),
            }
        }
        Op::Rfft { size } => {
            let x = real(0)?;
            let Some((&length, leading)) = x.shape.split_last() else { return Err("x needs an axis".to_owned()) };
            if size % 2 != 0 || *size < length || *size == 0 {
                return Err(format!("size must be even and at least {length}, found {size}"));
            }
            let mut shape = leading.to_vec();
            shape.push(size / 2 + 1);
            one(Type::new(DType::C64, shape))
        }
        Op::SpectrumMul {} => {
            let (a, b) = (complex(0)?, complex(1)?);
            let shape = broadcast(&a.shape, &b.shape).ok_or("the shapes do not broadcast")?;
            one(Type::new(DType::C64, shape))
        }
        Op::Irfft { size, length } => {
            let x = complex(0)?;
            let Some((&bins, leading)) = x.shape.split_last() else { return Err("x needs an axis".to_owned()) };
            if size % 2 != 0 || bins != size / 2 + 1 || length > size || *length == 0 {
                return Err(format!("size {size} and length {length} do not fit {bins} bins"));
            }
            let mut shape = leading.to_vec();
            shape.push(*length);
            one(Type::f32(shape))
        }
        Op::Region(region) => {
            let body = region.body();
            for (position, (&operand, parameter)) in operands.iter().zip(body.parameters()).enumerate() {
                let expected = &body.node(parameter).types[0];
                if operand != expected {
                    return Err(format!("operand {position} must be {expected}, found {operand}"));
                }
            }
            Ok(body.outputs().iter().map(|&output| body.ty(output).clone()).collect())
        }
    }
}
