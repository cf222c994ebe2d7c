//! How long the interpreter takes; run by hand, since a shared machine has no stable clock:
//! `cargo test --release -p hyenac-ir --test timing -- --ignored --nocapture`.

mod common;

use std::time::Instant;

use hyenac_ir::{BlockConfig, Real, Rounding, Tensor, evaluate};

fn time<T: Real>(batch: usize, seq_len: usize) -> f64 {
    let config = BlockConfig::benchmark();
    let graph = config.reference_graph(batch, seq_len).expect("a valid size");
    let tensors: std::collections::BTreeMap<String, Tensor<T>> =
        common::random_tensors(&config, batch, seq_len, 0).iter().map(|(n, t)| (n.clone(), t.convert())).collect();
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            let result = evaluate(&graph, &tensors, Rounding::Casts).expect("every tensor is there");
            assert!(result[0].data.iter().all(|x| x.to_double().is_finite()));
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    eprintln!("{} {batch} x {seq_len}: {:.1} ms", std::any::type_name::<T>(), best * 1e3);
    best
}

#[test]
#[ignore = "a measurement"]
fn the_default_block() {
    assert!(time::<f32>(1, 1024) < 0.3);
    time::<f64>(1, 1024);
    time::<f64>(2, 4096);
}
