//! Helpers shared by the integration tests.
#![allow(dead_code)]

pub mod graphs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hyenac_ir::{BlockConfig, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Weights and input of a block with every term of consequence: fan-in scale, a filter of order 1 / sqrt(L).
pub fn random_tensors(config: &BlockConfig, batch: usize, seq_len: usize, seed: u64) -> BTreeMap<String, Tensor<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut normal = |shape: &[usize], mean: f64, scale: f64| {
        let count = shape.iter().product();
        let data = (0..count).map(|_| mean + scale * rng.sample::<f64, _>(StandardNormal)).collect();
        Tensor::new(shape, data).expect("the shape fits")
    };
    let mut tensors = BTreeMap::new();
    for (name, shape) in config.weights() {
        let fan_in = *shape.last().expect("no scalar weights") as f64;
        let (mean, scale) = match name {
            "norm1_weight" | "norm2_weight" => (1.0, 0.2),
            "short_conv_weight" => (0.0, 0.6),
            "sin_freq" => (10.0, 1.0),
            "exp_mod_deltas" => (-9.0, 4.0),
            "filter_bias" => (0.0, 1.0 / (seq_len as f64).sqrt()),
            _ if shape.len() >= 2 => (0.0, 1.0 / fan_in.sqrt()),
            _ => (0.0, 0.1),
        };
        tensors.insert(name.to_owned(), normal(&shape, mean, scale));
    }
    tensors.insert("hidden_states".to_owned(), normal(&[batch, seq_len, config.d_model], 0.0, 1.0));
    tensors
}

/// The same tensors in f32.
pub fn narrow(tensors: &BTreeMap<String, Tensor<f64>>) -> BTreeMap<String, Tensor<f32>> {
    tensors.iter().map(|(name, tensor)| (name.clone(), tensor.convert())).collect()
}
