//! Matrix products and normalisation.

use gemm::Parallelism;
use rayon::prelude::*;

use super::real::Real;

/// Rows one task normalises.
const ROWS: usize = 8;

/// `out[m, n] = sum_k x[m, k] weight[n, k]`.
pub(super) fn linear<T: Real>(out: &mut [T], x: &[T], weight: &[T], outer: usize, inner: usize) {
    let rows = out.len() / outer;
    assert!(inner > 0 && out.len() == rows * outer && x.len() == rows * inner && weight.len() == outer * inner);
    // SAFETY: by the assertion the pointers cover `rows x outer`, `rows x inner` and `inner x outer` elements under
    // the strides given, all of which fit `isize` because the slices exist; `out` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            rows,
            outer,
            inner,
            out.as_mut_ptr(),
            1,
            outer as isize,
            false,
            x.as_ptr(),
            1,
            inner as isize,
            weight.as_ptr(),
            inner as isize,
            1,
            T::zero(),
            T::one(),
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of every row. Sums are taken in f64.
pub(super) fn layer_norm<T: Real>(out: &mut [T], x: &[T], weight: &[T], bias: &[T], eps: f64) {
    let width = weight.len();
    out.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * width)).for_each(|(out, x)| {
        for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            let mean = x.iter().map(|x| x.to_double()).sum::<f64>() / width as f64;
            let square = |x: &T| {
                let centred = x.to_double() - mean;
                centred * centred
            };
            let variance = x.iter().map(square).sum::<f64>() / width as f64;
            let scale = 1.0 / (variance + eps).sqrt();
            for (((out, &x), &weight), &bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = T::from_double((x.to_double() - mean) * scale) * weight + bias;
            }
        }
    });
}
