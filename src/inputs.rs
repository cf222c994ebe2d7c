//! Seeded weights and inputs in two distributions.
//!
//! With [`Distribution::Benchmark`] the Hyena branch contributes below 1e-4 to an output of size 1, under the
//! benchmark's tolerance, so that a kernel that skips the branch still passes. With [`Distribution::Trained`]
//! magnitudes are those of a trained block and every term of the output matters.

use std::collections::BTreeMap;

use hyenac_ir::BlockConfig;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};
use serde::{Deserialize, Serialize};

use crate::block::HyenaBlock;
use crate::error::Error;
use crate::runtime::cpu::require_memory;

/// How generated weights are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every weight 0.02 N(0, 1), identity norms.
    Benchmark,
    /// Fan-in scale, taps of size one, `sin_freq` about 10, filter and skip term of size 1 / sqrt(L).
    Trained,
}

/// A block and an input for it, `[batch, seq_len, d_model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// The block.
    pub block: HyenaBlock,
    /// Its input, row-major.
    pub hidden_states: Vec<f32>,
}

/// Generates a block and an input. The same arguments give the same bits on every machine.
///
/// # Errors
/// When the configuration is outside its limits, or the input's size overflows.
pub fn generate(
    distribution: Distribution,
    config: &BlockConfig,
    batch: usize,
    seq_len: usize,
    seed: u64,
) -> Result<Inputs, Error> {
    let weights = match distribution {
        Distribution::Benchmark => benchmark_weights,
        Distribution::Trained => trained_like_weights,
    };
    config.validate().map_err(Error::Config)?;
    let block = HyenaBlock::new(*config, weights(config, seq_len, seed))?;
    let hidden_states = hidden_states(config, batch, seq_len, seed)?;
    Ok(Inputs { block, hidden_states })
}

/// Normal numbers of one tensor. Each tensor has its own stream, so that its values depend on the seed, its
/// place in the canonical order and nothing else.
struct Normal(ChaCha8Rng);

impl Normal {
    /// The stream of the input, beyond those of any weight.
    const INPUT: u64 = 1 << 32;

    fn new(seed: u64, stream: u64) -> Normal {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Normal(generator)
    }

    fn values(&mut self, count: usize, mean: f64, scale: f64) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let normal: f64 = StandardNormal.sample(&mut self.0);
                (mean + scale * normal) as f32
            })
            .collect()
    }
}

fn hidden_states(config: &BlockConfig, batch: usize, seq_len: usize, seed: u64) -> Result<Vec<f32>, Error> {
    let elements = batch.checked_mul(seq_len).and_then(|tokens| tokens.checked_mul(config.d_model));
    let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<f32>()));
    match (elements, bytes) {
        (Some(elements), Some(bytes)) if bytes <= hyenac_ir::MAX_VALUE_BYTES => {
            require_memory("the generated input", bytes as u64)?;
            Ok(Normal::new(seed, Normal::INPUT).values(elements, 0.0, 1.0))
        }
        _ => Err(Error::Tensor {
            name: hyenac_ir::block::INPUT_NAME.to_owned(),
            expected: format!("at most {} bytes", hyenac_ir::MAX_VALUE_BYTES),
            found: format!("F32 [{batch}, {seq_len}, {}]", config.d_model),
        }),
    }
}

/// Decay rates from that of the slowest channel to that of the fastest, evenly spaced.
fn decay_rates(d_model: usize) -> Vec<f32> {
    let (slow, fast) = (0.01f64.ln() / 1.5, 0.01f64.ln() / 0.3);
    let last = (d_model.max(2) - 1) as f64;
    (0..d_model).map(|channel| (slow + (fast - slow) * channel as f64 / last) as f32).collect()
}

fn benchmark_weights(config: &BlockConfig, _seq_len: usize, seed: u64) -> BTreeMap<String, Vec<f32>> {
    let weight = |(stream, (name, shape)): (usize, (&str, Vec<usize>))| {
        let count = shape.iter().product();
        let values = match name {
            "norm1_weight" | "norm2_weight" | "sin_freq" => vec![1.0; count],
            "norm1_bias" | "norm2_bias" => vec![0.0; count],
            "exp_mod_deltas" => decay_rates(config.d_model),
            _ => Normal::new(seed, stream as u64).values(count, 0.0, 0.02),
        };
        (name.to_owned(), values)
    };
    config.weights().into_iter().enumerate().map(weight).collect()
}

fn trained_like_weights(config: &BlockConfig, seq_len: usize, seed: u64) -> BTreeMap<String, Vec<f32>> {
    let length = seq_len.max(1) as f64;
    let weight = |(stream, (name, shape)): (usize, (&str, Vec<usize>))| {
        let count = shape.iter().product();
        let fan_in = 1.0 / (*shape.last().unwrap_or(&1) as f64).sqrt();
        let (mean, scale) = match name {
            "norm1_weight" | "norm2_weight" => (1.0, 0.2),
            "short_conv_weight" => (0.0, 0.6),
            "sin_freq" => (10.0, 1.0),
            "filter_linear_final_weight" => (0.0, fan_in / (length / 16.0).sqrt()),
            "filter_bias" => (0.0, 1.0 / length.sqrt()),
            _ if name.ends_with("weight") => (0.0, fan_in),
            _ => (0.0, 0.1),
        };
        let values = match name {
            "exp_mod_deltas" => decay_rates(config.d_model),
            _ => Normal::new(seed, stream as u64).values(count, mean, scale),
        };
        (name.to_owned(), values)
    };
    config.weights().into_iter().enumerate().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deviation(values: &[f32]) -> f64 {
        (values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    }

    #[test]
    fn the_same_seed_gives_the_same_values_and_another_seed_others() {
        let config = BlockConfig::benchmark();
        for distribution in [Distribution::Benchmark, Distribution::Trained] {
            let inputs = |seed| generate(distribution, &config, 1, 7, seed).unwrap();
            assert_eq!(inputs(3), inputs(3));
            assert_ne!(inputs(3).hidden_states, inputs(4).hidden_states);
            assert_ne!(inputs(3).block.weights()["in_proj_weight"], inputs(4).block.weights()["in_proj_weight"]);
        }
    }

    #[test]
    fn tensors_are_independent_of_each_other() {
        let inputs = generate(Distribution::Benchmark, &BlockConfig::benchmark(), 1, 2, 0).unwrap();
        let weights = inputs.block.weights();
        assert_ne!(weights["out_proj_bias"], weights["mlp_fc2_bias"]);
        assert_ne!(weights["filter_linear2_weight"], weights["filter_linear3_weight"]);
    }

    #[test]
    fn magnitudes_are_those_of_the_distribution() {
        let config = BlockConfig::hyenadna();
        let benchmark = generate(Distribution::Benchmark, &config, 2, 64, 1).unwrap();
        let trained = generate(Distribution::Trained, &config, 2, 64, 1).unwrap();
        let near = |values: &[f32], expected: f64| {
            let found = deviation(values);
            assert!((found / expected - 1.0).abs() < 0.2, "{found} is not about {expected}");
        };
        near(&benchmark.block.weights()["mlp_fc1_weight"], 0.02);
        near(&benchmark.block.weights()["filter_bias"], 0.02);
        near(&benchmark.hidden_states, 1.0);
        near(&trained.block.weights()["mlp_fc2_weight"], 1.0 / 32.0);
        near(&trained.block.weights()["short_conv_weight"], 0.6);
        near(&trained.block.weights()["sin_freq"], 10.0);
        near(&trained.block.weights()["filter_linear_final_weight"], 0.125 / 2.0);
        near(&trained.block.weights()["filter_bias"], 0.125);
        let rates = &trained.block.weights()["exp_mod_deltas"];
        assert!((rates[0] + 3.0701134).abs() < 1e-5 && (rates[255] + 15.350567).abs() < 1e-5);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for (batch, seq_len) in [(usize::MAX, 2), (1 << 40, 1 << 40), (1 << 40, 1), (1 << 38, 1)] {
            assert!(generate(Distribution::Benchmark, &BlockConfig::benchmark(), batch, seq_len, 0).is_err());
        }
    }
}
