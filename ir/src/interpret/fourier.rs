//! Spectra: real transforms and their product, as interleaved pairs.

use rayon::prelude::*;
use realfft::FftError;
use realfft::num_complex::Complex;

use super::real::Real;
use crate::error::IrError;

/// The smallest even size of at least `least` whose factors are 2, 3 and 5, or `None` if there is none below 2^60.
pub fn fft_size(least: usize) -> Option<usize> {
    if least > 1 << 60 {
        return None;
    }
    let mut best = least.max(2).next_power_of_two();
    let mut fives = 1;
    while fives < best {
        let mut threes = fives;
        while threes < best {
            // One factor of two at least, then as many as reach `least`.
            let twos = least.div_ceil(threes).max(2).next_power_of_two();
            best = best.min(threes * twos);
            threes *= 3;
        }
        fives *= 5;
    }
    Some(best)
}

/// A transform refused its buffers, which the shape rules exclude.
pub(super) fn failed(error: FftError) -> IrError {
    IrError::Tensor { name: "transform".to_owned(), why: error.to_string() }
}

/// Transforms of the rows of `x`, padded with zeros to `size`, into pairs.
pub(super) fn rfft<T: Real>(out: &mut [T], x: &[T], length: usize, size: usize) -> Result<(), IrError> {
    let forward = T::forward(size);
    let bins = size / 2 + 1;
    out.par_chunks_mut(2 * bins).zip(x.par_chunks(length)).try_for_each_init(
        || (forward.make_input_vec(), forward.make_output_vec(), forward.make_scratch_vec()),
        |(padded, spectrum, scratch), (out, x)| {
            padded[..length].copy_from_slice(x);
            padded[length..].fill(T::zero());
            forward.process_with_scratch(padded, spectrum, scratch).map_err(failed)?;
            for (pair, bin) in out.chunks_exact_mut(2).zip(spectrum.iter()) {
                pair[0] = bin.re;
                pair[1] = bin.im;
            }
            Ok::<(), IrError>(())
        },
    )
}

/// The first `length` entries of the inverse transforms of rows of pairs.
pub(super) fn irfft<T: Real>(out: &mut [T], x: &[T], size: usize, length: usize) -> Result<(), IrError> {
    let inverse = T::inverse(size);
    let bins = size / 2 + 1;
    let scale = T::one() / T::from_double(size as f64);
    out.par_chunks_mut(length).zip(x.par_chunks(2 * bins)).try_for_each_init(
        || (inverse.make_input_vec(), inverse.make_output_vec(), inverse.make_scratch_vec()),
        |(spectrum, padded, scratch), (out, x)| {
            for (bin, pair) in spectrum.iter_mut().zip(x.chunks_exact(2)) {
                *bin = Complex::new(pair[0], pair[1]);
            }
            spectrum[0].im = T::zero();
            spectrum[bins - 1].im = T::zero();
            inverse.process_with_scratch(spectrum, padded, scratch).map_err(failed)?;
            for (out, &value) in out.iter_mut().zip(padded.iter()) {
                *out = value * scale;
            }
            Ok::<(), IrError>(())
        },
    )
}

/// Elementwise complex product of pairs, broadcast to `shape`.
pub(super) fn spectrum_mul<T: Real>(
    out: &mut [T],
    shape: &[usize],
    (a, a_shape): (&[T], &[usize]),
    (b, b_shape): (&[T], &[usize]),
) {
    let columns = shape.last().copied().unwrap_or(1);
    let leading = &shape[..shape.len().saturating_sub(1)];
    // Offset of a row in an operand, in pairs, and whether its columns advance.
    let row_offset = |operand: &[usize], mut row: usize| {
        let (inner, outer) = operand.split_last().map_or((1, operand), |(&inner, outer)| (inner, outer));
        let mut offset = 0;
        let mut stride = inner;
        let mut axes = outer.iter().rev();
        for &extent in leading.iter().rev() {
            let index = row % extent;
            row /= extent;
            let own = axes.next().copied().unwrap_or(1);
            if own != 1 {
                offset += index * stride;
            }
            stride *= own;
        }
        (offset, usize::from(inner != 1))
    };
    out.par_chunks_mut(2 * columns).enumerate().for_each(|(row, out)| {
        let ((offset_a, step_a), (offset_b, step_b)) = (row_offset(a_shape, row), row_offset(b_shape, row));
        for (column, pair) in out.chunks_exact_mut(2).enumerate() {
            let a = &a[2 * (offset_a + column * step_a)..][..2];
            let b = &b[2 * (offset_b + column * step_b)..][..2];
            pair[0] = a[0] * b[0] - a[1] * b[1];
            pair[1] = a[0] * b[1] + a[1] * b[0];
        }
    });
}

#[cfg(test)]
mod tests {
    use super::fft_size;

    #[test]
    fn sizes_are_even_smooth_and_the_smallest() {
        let smooth = |mut n: usize| {
            for factor in [2, 3, 5] {
                while n.is_multiple_of(factor) {
                    n /= factor;
                }
            }
            n == 1
        };
        for least in 1..3000 {
            let expected = (least..).find(|&n| n % 2 == 0 && smooth(n));
            assert_eq!(fft_size(least), expected, "{least}");
        }
        assert_eq!(fft_size(usize::MAX), None);
    }
}
