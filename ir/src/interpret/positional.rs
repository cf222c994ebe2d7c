//! The positional embedding.

use rayon::prelude::*;

use super::real::Real;

/// Rows of `[t, cos(w f) .., -sin(w f) ..]`, computed in f64 and rounded once.
pub(super) fn positional_embedding<T: Real>(out: &mut [T], positions: usize, width: usize) {
    let bands = (width - 1) / 2;
    let frequency = |band: usize| {
        let (first, last) = (1e-4, (bands - 1) as f64);
        if bands == 1 { first } else { first + (last - first) * (band as f64 / (bands - 1) as f64) }
    };
    let frequencies: Vec<f64> = (0..bands).map(frequency).collect();
    out.par_chunks_mut(width).enumerate().for_each(|(row, out)| {
        let time = if positions == 1 { 0.0 } else { row as f64 / (positions - 1) as f64 };
        let angle = 2.0 * std::f64::consts::PI * row as f64 / positions as f64;
        out[0] = T::from_double(time);
        let (cosines, sines) = out[1..].split_at_mut(bands);
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&frequencies) {
            let (sin, cos) = (angle * frequency).sin_cos();
            *cosine = T::from_double(cos);
            *sine = T::from_double(-sin);
        }
    });
}
