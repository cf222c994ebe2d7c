//! The interpreter against float64 results of an independent implementation.

mod common;

use std::collections::BTreeMap;

use hyenac_ir::{BlockConfig, Op, Real, Rounding, Tensor, Value, evaluate};
use safetensors::{Dtype, SafeTensors};

struct Golden {
    tensors: BTreeMap<String, Tensor<f64>>,
    metadata: BTreeMap<String, f64>,
}

fn read(name: &str) -> Golden {
    let bytes = std::fs::read(common::root().join("tests/golden").join(name)).expect("the golden file exists");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
    let metadata = header.metadata().clone().expect("metadata");
    let metadata = metadata.into_iter().map(|(key, value)| (key, value.parse().expect("a number"))).collect();
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensors = file
        .iter()
        .map(|(name, view)| {
            let data = view.data();
            let data = match view.dtype() {
                Dtype::F32 => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
                Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
                other => panic!("{name} is {other:?}"),
            };
            (name.to_owned(), Tensor::new(view.shape(), data).expect("the shape fits"))
        })
        .collect();
    Golden { tensors, metadata }
}

/// Evaluates the block and its filter in `T`; relative errors of filter (where given) and output.
fn errors<T: Real>(golden: &Golden, variant: &str) -> (Option<f64>, f64) {
    let shape = |name: &str| golden.tensors[name].shape.clone();
    let [batch, seq_len, d_model] = shape("hidden_states")[..] else { panic!("hidden_states has three axes") };
    let preset = if variant == "benchmark" { BlockConfig::benchmark() } else { BlockConfig::hyenadna() };
    let config = BlockConfig {
        d_model,
        d_inner: shape("mlp_fc1_weight")[0],
        emb_dim: shape("filter_linear1_weight")[1],
        filter_order: shape("filter_linear1_weight")[0],
        short_filter: shape("short_conv_weight")[2],
        l_max: golden.metadata["l_max"] as usize,
        layer_norm_eps: golden.metadata["layer_norm_eps"],
        shift: golden.metadata["exp_mod_shift"],
        ..preset
    };
    for (name, shape) in config.weights() {
        assert_eq!(golden.tensors[name].shape, shape, "{name}");
    }
    let mut graph = config.reference_graph(batch, seq_len).expect("a valid configuration");
    let convolution =
        graph.nodes().find(|&node| matches!(graph.node(node).op, Op::LongConv {})).expect("the block convolves");
    let filter: Value = graph.operand(convolution, 1);
    graph.add_output(filter);
    let tensors = golden.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.convert::<T>())).collect();
    let results = evaluate(&graph, &tensors, Rounding::Casts).expect("every tensor is there");
    let output = results[0].relative_l2(&golden.tensors[&format!("output.{variant}")]);
    let filter = golden.tensors.get(&format!("filter.{variant}")).map(|exact| results[1].relative_l2(exact));
    (filter, output)
}

fn check(name: &str, variants: &[&str], with_filter: bool) {
    let golden = read(name);
    for variant in ["benchmark", "hyenadna"] {
        let present = golden.tensors.contains_key(&format!("output.{variant}"));
        assert_eq!(present, variants.contains(&variant), "{name} {variant}");
        if !present {
            continue;
        }
        let (filter, output) = errors::<f64>(&golden, variant);
        assert!(output <= 1e-10, "{name} {variant}: output {output:e} in f64");
        assert_eq!(filter.is_some(), with_filter, "{name} {variant}");
        assert!(filter.is_none_or(|filter| filter <= 1e-10), "{name} {variant}: filter {filter:?} in f64");
        let (filter, output) = errors::<f32>(&golden, variant);
        assert!(output <= 5e-5, "{name} {variant}: output {output:e} in f32");
        assert!(filter.is_none_or(|filter| filter <= 5e-5), "{name} {variant}: filter {filter:?} in f32");
        eprintln!("{name} {variant}: f32 output {output:e}, filter {filter:?}");
    }
}

#[test]
fn full_size_odd_length() {
    check("full_b1_l131.safetensors", &["benchmark", "hyenadna"], false);
}

#[test]
fn batch_of_two() {
    check("tiny_b2_l21.safetensors", &["benchmark", "hyenadna"], true);
}

#[test]
fn one_band_and_length_at_l_max() {
    check("tiny_emb3_l64.safetensors", &["benchmark", "hyenadna"], true);
}

#[test]
fn one_position() {
    check("tiny_l1.safetensors", &["benchmark", "hyenadna"], true);
}

#[test]
fn longer_than_l_max() {
    check("tiny_lmax16_l21.safetensors", &["benchmark"], true);
}

#[test]
fn other_shift_and_eps() {
    check("tiny_shift0_eps1e-3_l40.safetensors", &["benchmark", "hyenadna"], true);
}
