//! Ops that move elements. Complex tensors come with an innermost axis of two.

use rayon::prelude::*;

use super::real::Real;

/// Rows one task transposes: as many f32 as a cache line holds.
const ROWS: usize = 16;
/// Columns of a tile of a transposition.
const COLUMNS: usize = 64;
/// Elements one task copies at least.
const CHUNK: usize = 1 << 13;

/// Axis `a` of `out` is axis `permutation[a]` of `x`.
pub(super) fn transpose<T: Real>(out: &mut [T], x: &[T], shape: &[usize], permutation: &[usize]) {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    // Axes of the result with their strides in `x`, neighbours merged where they stay neighbours.
    let mut axes: Vec<(usize, usize)> = Vec::new();
    for &axis in permutation {
        let (extent, stride) = (shape[axis], strides[axis]);
        if extent == 1 {
            continue;
        }
        match axes.last_mut() {
            Some((outer_extent, outer_stride)) if *outer_stride == stride * extent => {
                *outer_extent *= extent;
                *outer_stride = stride;
            }
            _ => axes.push((extent, stride)),
        }
    }
    let (columns, stride) = axes.pop().unwrap_or((1, 1));
    out.par_chunks_mut(ROWS * columns).enumerate().for_each(|(chunk, out)| {
        let rows = out.len() / columns;
        let mut bases = [0; ROWS];
        for (row, base) in bases[..rows].iter_mut().enumerate() {
            let mut index = chunk * ROWS + row;
            for &(extent, stride) in axes.iter().rev() {
                *base += index % extent * stride;
                index /= extent;
            }
        }
        if stride == 1 {
            for (out, &base) in out.chunks_exact_mut(columns).zip(&bases) {
                out.copy_from_slice(&x[base..base + columns]);
            }
            return;
        }
        // Neighbouring rows read neighbouring elements, so a tile of columns stays in the cache.
        for start in (0..columns).step_by(COLUMNS) {
            let end = (start + COLUMNS).min(columns);
            for (out, &base) in out.chunks_exact_mut(columns).zip(&bases) {
                let read = x[base + start * stride..].iter().step_by(stride);
                for (out, &value) in out[start..end].iter_mut().zip(read) {
                    *out = value;
                }
            }
        }
    });
}

/// Entries from `start` of an axis of `extent` into one of `length`.
pub(super) fn slice<T: Real>(out: &mut [T], x: &[T], extent: usize, inner: usize, start: usize, length: usize) {
    let run = length * inner;
    out.par_chunks_mut(run)
        .zip(x.par_chunks(extent * inner))
        .with_min_len(CHUNK.div_ceil(run))
        .for_each(|(out, x)| out.copy_from_slice(&x[start * inner..][..run]));
}

/// An axis of `extent` into a wider one, `before` entries from its start; the rest of `out` is already zero.
pub(super) fn pad<T: Real>(out: &mut [T], x: &[T], extent: usize, inner: usize, before: usize, after: usize) {
    let run = extent * inner;
    let wide = (before + extent + after) * inner;
    out.par_chunks_mut(wide)
        .zip(x.par_chunks(run))
        .with_min_len(CHUNK.div_ceil(wide))
        .for_each(|(out, x)| out[before * inner..][..run].copy_from_slice(x));
}
