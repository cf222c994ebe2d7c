//! Elementwise ops, with broadcasting.

use rayon::prelude::*;

use super::real::Real;

/// Elements one task handles.
const CHUNK: usize = 1 << 14;

/// `out = f(x)` in place.
pub(super) fn map_in_place<T: Real>(data: &mut [T], f: impl Fn(T) -> T + Sync + Send) {
    data.par_chunks_mut(CHUNK).for_each(|chunk| {
        for value in chunk {
            *value = f(*value);
        }
    });
}

/// `out = f(x)`.
pub(super) fn map<T: Real>(out: &mut [T], x: &[T], f: impl Fn(T) -> T + Sync + Send) {
    out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(out, x)| {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = f(x);
        }
    });
}

/// One axis of a broadcast: its extent and what a step along it adds to the offset in each operand.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    a: usize,
    b: usize,
}

/// The axes of a broadcast, merged as far as the strides allow, outermost first.
fn axes(shape: &[usize], a: &[usize], b: &[usize]) -> Vec<Axis> {
    let strides = |operand: &[usize]| {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for (axis, &extent) in operand.iter().enumerate().rev() {
            if extent != 1 {
                strides[axis + shape.len() - operand.len()] = stride;
            }
            stride *= extent;
        }
        strides
    };
    let mut merged: Vec<Axis> = Vec::new();
    for ((&extent, a), b) in shape.iter().zip(strides(a)).zip(strides(b)) {
        if extent == 1 {
            continue;
        }
        match merged.last_mut() {
            Some(outer) if outer.a == a * extent && outer.b == b * extent => {
                *outer = Axis { extent: outer.extent * extent, a, b };
            }
            _ => merged.push(Axis { extent, a, b }),
        }
    }
    merged
}

/// `out = f(a, b)` with both broadcast to `shape`, which is their common shape.
pub(super) fn broadcast<T: Real>(
    out: &mut [T],
    shape: &[usize],
    (a, a_shape): (&[T], &[usize]),
    (b, b_shape): (&[T], &[usize]),
    f: impl Fn(T, T) -> T + Sync + Send,
) {
    let mut outer = axes(shape, a_shape, b_shape);
    let inner = outer.pop().unwrap_or(Axis { extent: 1, a: 0, b: 0 });
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, out)| {
        let start = chunk * CHUNK;
        let (mut row, mut column) = (start / inner.extent, start % inner.extent);
        let mut rest = out;
        while !rest.is_empty() {
            let (mut offset_a, mut offset_b) = (column * inner.a, column * inner.b);
            let mut index = row;
            for axis in outer.iter().rev() {
                offset_a += index % axis.extent * axis.a;
                offset_b += index % axis.extent * axis.b;
                index /= axis.extent;
            }
            let length = (inner.extent - column).min(rest.len());
            let (out, after) = rest.split_at_mut(length);
            match (inner.a, inner.b) {
                (0, 0) => out.fill(f(a[offset_a], b[offset_b])),
                (0, _) => {
                    let a = a[offset_a];
                    for (out, &b) in out.iter_mut().zip(&b[offset_b..]) {
                        *out = f(a, b);
                    }
                }
                (_, 0) => {
                    let b = b[offset_b];
                    for (out, &a) in out.iter_mut().zip(&a[offset_a..]) {
                        *out = f(a, b);
                    }
                }
                // The innermost axis that an operand has is contiguous in it.
                _ => {
                    for ((out, &a), &b) in out.iter_mut().zip(&a[offset_a..]).zip(&b[offset_b..]) {
                        *out = f(a, b);
                    }
                }
            }
            rest = after;
            row += 1;
            column = 0;
        }
    });
}

/// `a = f(a, b)` for operands of one shape.
pub(super) fn zip_in_place<T: Real>(a: &mut [T], b: &[T], f: impl Fn(T, T) -> T + Sync + Send) {
    a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(a, b)| {
        for (a, &b) in a.iter_mut().zip(b) {
            *a = f(*a, b);
        }
    });
}

/// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub(super) fn gelu_tanh<T: Real>(x: T) -> T {
    let scale = T::from_double((2.0 / std::f64::consts::PI).sqrt());
    let half = T::from_double(0.5);
    let inner = scale * (x + T::from_double(0.044715) * x * x * x);
    half * x * (T::one() + inner.tanh())
}
