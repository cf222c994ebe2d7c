//! Causal convolutions.

use rayon::prelude::*;
use realfft::num_complex::Complex;

use super::fourier::{failed, fft_size};
use super::real::Real;
use super::tensor::zeros;
use crate::error::IrError;

/// Signals up to this length are convolved by their definition.
const MAX_DIRECT: usize = 64;

/// `y[b, c, t] = sum_j w[c, 0, j] x[b, c, t - (T - 1) + j]` for `x: [B, channels, length]`.
pub(super) fn short_conv<T: Real>(out: &mut [T], x: &[T], weight: &[T], channels: usize, length: usize) {
    let taps = weight.len() / channels;
    out.par_chunks_mut(length).zip(x.par_chunks(length)).enumerate().for_each(|(row, (out, x))| {
        let channel = row % channels;
        out.fill(T::zero());
        for (tap, &weight) in weight[channel * taps..][..taps].iter().enumerate() {
            let delay = taps - 1 - tap;
            for (out, &x) in out.iter_mut().skip(delay).zip(x) {
                *out += weight * x;
            }
        }
    });
}

/// `y[b, d, t] = sum_{s <= t} k[d, s] u[b, d, t - s]` for `u: [B, channels, length]`; `out` is zero.
pub(super) fn long_conv<T: Real>(
    out: &mut [T],
    signal: &[T],
    filter: &[T],
    channels: usize,
    length: usize,
) -> Result<(), IrError> {
    if length <= MAX_DIRECT {
        out.par_chunks_mut(length).zip(signal.par_chunks(length)).enumerate().for_each(|(row, (out, signal))| {
            let filter = &filter[row % channels * length..][..length];
            for (delay, &filter) in filter.iter().enumerate() {
                for (out, &signal) in out[delay..].iter_mut().zip(signal) {
                    *out += filter * signal;
                }
            }
        });
        return Ok(());
    }
    let Some(size) = fft_size(2 * length - 1) else {
        return Err(IrError::Tensor {
            name: "long_conv".to_owned(),
            why: format!("no transform is long enough for {length}"),
        });
    };
    let (forward, inverse) = (T::forward(size), T::inverse(size));
    let bins = size / 2 + 1;
    let scratch_length = forward.get_scratch_len().max(inverse.get_scratch_len());
    let scale = T::one() / T::from_double(size as f64);
    // The factor 1 / size goes into the filter's spectrum, which is used once a batch entry.
    let mut spectra: Vec<Complex<T>> = zeros(channels * bins)?;
    spectra.par_chunks_mut(bins).zip(filter.par_chunks(length)).try_for_each_init(
        || (vec![T::zero(); size], vec![Complex::default(); scratch_length]),
        |(padded, scratch), (spectrum, filter)| {
            padded[..length].copy_from_slice(filter);
            padded[length..].fill(T::zero());
            let scratch = &mut scratch[..forward.get_scratch_len()];
            forward.process_with_scratch(padded, spectrum, scratch).map_err(failed)?;
            for bin in spectrum {
                *bin = *bin * scale;
            }
            Ok::<(), IrError>(())
        },
    )?;
    out.par_chunks_mut(length).zip(signal.par_chunks(length)).enumerate().try_for_each_init(
        || (vec![T::zero(); size], vec![Complex::default(); bins], vec![Complex::default(); scratch_length]),
        |(padded, product, scratch), (row, (out, signal))| {
            padded[..length].copy_from_slice(signal);
            padded[length..].fill(T::zero());
            let forward_scratch = &mut scratch[..forward.get_scratch_len()];
            forward.process_with_scratch(padded, product, forward_scratch).map_err(failed)?;
            for (bin, &filter) in product.iter_mut().zip(&spectra[row % channels * bins..][..bins]) {
                *bin = *bin * filter;
            }
            // The ends are real up to the sign of zero, which the transform insists on.
            product[0].im = T::zero();
            product[bins - 1].im = T::zero();
            let inverse_scratch = &mut scratch[..inverse.get_scratch_len()];
            inverse.process_with_scratch(product, padded, inverse_scratch).map_err(failed)?;
            out.copy_from_slice(&padded[..length]);
            Ok::<(), IrError>(())
        },
    )
}
