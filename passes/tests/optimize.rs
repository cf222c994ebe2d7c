//! The optimised graph against the reference graph, and what the report says.

mod common;

use std::collections::BTreeMap;

use common::Roofline;
use hyenac_ir::{BlockConfig, Graph, Op, Rounding, Tensor, evaluate};
use hyenac_passes::{Bounds, Fuse, Options, PassError, Precision, optimize};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn tensors(graph: &Graph, seed: u64) -> BTreeMap<String, Tensor<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tensors = BTreeMap::new();
    for node in graph.nodes() {
        if let Op::Input { name, shape, .. } | Op::Weight { name, shape, .. } = &graph.node(node).op {
            let data = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
            tensors.insert(name.clone(), Tensor::new(shape.clone(), data).unwrap());
        }
    }
    tensors
}

/// Largest difference between two graphs, relative to the largest entry.
fn difference(a: &Graph, b: &Graph, rounding: Rounding) -> f64 {
    let tensors = tensors(a, 7);
    let a = &evaluate(a, &tensors, Rounding::Exact).unwrap()[0];
    let b = &evaluate(b, &tensors, rounding).unwrap()[0];
    assert_eq!(a.shape, b.shape);
    let largest = a.data.iter().fold(0f64, |m, x| m.max(x.abs()));
    a.data.iter().zip(&b.data).map(|(x, y)| (x - y).abs()).fold(0f64, f64::max) / largest
}

fn only_regions(graph: &Graph) {
    graph.verify().unwrap();
    for node in graph.nodes() {
        match &graph.node(node).op {
            Op::Input { .. } | Op::Weight { .. } => {}
            Op::Region(region) => assert!(!region.schedule.is_empty()),
            other => panic!("{} outside a region", other.mnemonic()),
        }
    }
}

fn small() -> BlockConfig {
    BlockConfig { d_model: 8, d_inner: 12, filter_order: 6, l_max: 24, ..BlockConfig::benchmark() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn means_the_same_as_the_reference(
        batch in 1usize..3, length in 1usize..30, published: bool, bias: bool, frozen: bool, ieee: bool, none: bool,
        inner in 1usize..20, order in 1usize..9, taps in 2usize..5,
    ) {
        let base = if published { BlockConfig::hyenadna() } else { BlockConfig::benchmark() };
        let length = if published { length.min(24) } else { length };
        let config = BlockConfig {
            d_model: 8, d_inner: inner, filter_order: order, short_filter: taps, l_max: 24,
            filter_bias_in_filter: bias, ..base
        };
        let reference = config.reference_graph(batch, length).unwrap();
        let options = Options {
            frozen,
            precision: if ieee { Precision::Ieee } else { Precision::Mixed },
            fuse: if none { Fuse::None } else { Fuse::All },
            ..Options::default()
        };
        let optimized = optimize(&reference, &options, &Roofline::default()).unwrap();
        only_regions(&optimized.graph);
        prop_assert!(difference(&reference, &optimized.graph, Rounding::Exact) < 1e-9);
        let rounded = difference(&reference, &optimized.graph, Rounding::Casts);
        prop_assert!(rounded < if ieee || none { 1e-9 } else { 1e-2 }, "{rounded}");
    }
}

#[test]
fn without_rules_every_op_is_a_region() {
    let reference = small().reference_graph(1, 20).unwrap();
    let options = Options { fuse: Fuse::None, ..Options::default() };
    let optimized = optimize(&reference, &options, &Roofline::default()).unwrap();
    let ops = reference
        .nodes()
        .filter(|node| !matches!(reference.node(*node).op, Op::Input { .. } | Op::Weight { .. } | Op::Scalar { .. }))
        .count();
    assert_eq!(optimized.report.regions.len(), ops);
    assert!(optimized.report.rules_fired.is_empty());
    assert!(optimized.report.regions.iter().all(|region| !region.ops.contains('+')));
}

#[test]
fn compiling_twice_gives_the_same_graph_and_report() {
    let reference = BlockConfig::benchmark().reference_graph(2, 256).unwrap();
    let compile = || optimize(&reference, &Options::default(), &Roofline::default()).unwrap();
    let (first, second) = (compile(), compile());
    assert_eq!(first, second);
    let json = serde_json::to_string(&first.report).unwrap();
    assert_eq!(serde_json::from_str::<hyenac_passes::Report>(&json).unwrap(), first.report);
}

#[test]
fn the_block_fuses_and_both_algorithms_are_reported() {
    let reference = BlockConfig::benchmark().reference_graph(1, 1024).unwrap();
    for frozen in [false, true] {
        let report =
            optimize(&reference, &Options { frozen, ..Options::default() }, &Roofline::default()).unwrap().report;
        assert!(report.exact, "the beam was cut");
        assert!(report.regions_priced < 5_000, "{} regions priced", report.regions_priced);
        let (direct, fft) = (report.direct_us.unwrap(), report.fft_us.unwrap());
        assert_eq!(direct.min(fft), report.total_us);
        assert!(report.choices.iter().any(|choice| choice.without_us == Some(direct.max(fft))));
        for choice in &report.choices {
            assert!(choice.without_us.is_none_or(|time| time >= report.total_us - 1e-9), "{choice:?}");
        }
        let calls = report.regions.iter().filter(|region| region.binding == hyenac_ir::Binding::Input);
        assert_eq!(calls.count(), 5, "{}", report.table());
        assert!(report.table().lines().all(|line| line.chars().count() <= 100));
    }
}

#[test]
fn wider_bounds_find_no_cheaper_plan() {
    let reference = BlockConfig::benchmark().reference_graph(1, 1024).unwrap();
    let narrow = Bounds::default();
    let wide = Bounds {
        per_leaves: 4 * narrow.per_leaves,
        per_layouts: 4 * narrow.per_layouts,
        accepted: 4 * narrow.accepted,
        blocks: 4 * narrow.blocks,
        asked_per_leaves: 4 * narrow.asked_per_leaves,
        asked_per_layouts: 4 * narrow.asked_per_layouts,
        asked: 4 * narrow.asked,
    };
    for frozen in [false, true] {
        let total = |bounds| {
            let options = Options { frozen, bounds, ..Options::default() };
            optimize(&reference, &options, &Roofline::default()).unwrap().report.total_us
        };
        assert_eq!(total(narrow), total(wide));
    }
}

#[test]
fn the_report_of_the_block() {
    let reference = BlockConfig::benchmark().reference_graph(1, 1024).unwrap();
    let options = Options { frozen: true, ..Options::default() };
    let report = optimize(&reference, &options, &Roofline::default()).unwrap().report;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/passes");
    insta::with_settings!({ snapshot_path => path, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("report_1x1024_frozen", report.table());
    });
}

#[test]
fn the_residual_stream_and_the_output_are_never_rounded() {
    let reference = BlockConfig::benchmark().reference_graph(1, 512).unwrap();
    let optimized =
        optimize(&reference, &Options { frozen: true, ..Options::default() }, &Roofline::default()).unwrap();
    for region in &optimized.report.regions {
        let adds_the_residual = region.operands.iter().any(|operand| operand == "hidden_states")
            && !region.operands.iter().any(|operand| operand == "norm1_weight");
        if adds_the_residual && !region.ops.contains("gelu_tanh") {
            assert!(region.outputs[0].starts_with("f32"), "{region:?}");
        }
    }
    let output = optimized.graph.outputs()[0];
    assert_eq!(optimized.graph.ty(output), reference.ty(reference.outputs()[0]));
}

#[test]
fn the_filter_network_is_never_rounded_but_for_its_result() {
    let reference = BlockConfig::benchmark().reference_graph(1, 512).unwrap();
    let report = optimize(&reference, &Options::default(), &Roofline::default()).unwrap().report;
    let filter = report.regions.iter().find(|region| region.ops.contains("sin")).unwrap();
    let inside = filter.term.strip_prefix("(mat f16 ").unwrap();
    assert!(!inside.contains("f16"), "{}", filter.term);
    assert!(filter.term.matches("(linear f32").count() >= 3, "{}", filter.term);
}

#[test]
fn ieee_stores_and_computes_f32_only() {
    let reference = BlockConfig::benchmark().reference_graph(1, 256).unwrap();
    let options = Options { precision: Precision::Ieee, ..Options::default() };
    let report = optimize(&reference, &options, &Roofline::default()).unwrap().report;
    for region in &report.regions {
        assert!(!region.term.contains("f16") && !region.term.contains("tf32"), "{}", region.term);
    }
}

#[test]
fn an_op_without_a_kernel_is_named_with_the_reason() {
    let reference = small().reference_graph(1, 16).unwrap();
    let target = Roofline { without: Some("short_conv") };
    let error = optimize(&reference, &Options::default(), &target).unwrap_err();
    let PassError::NoKernel { op, reasons, .. } = &error else { panic!("{error}") };
    assert!(op.starts_with("short_conv(f32[1, 24, 16]"), "{op}");
    assert!(reasons.contains("there is no kernel for it"), "{reasons}");
    // The transform is refused, the direct convolution remains.
    let target = Roofline { without: Some("rfft") };
    let report = optimize(&reference, &Options::default(), &target).unwrap().report;
    assert_eq!((report.convolution, report.fft_us), (vec!["direct".to_owned()], None));
}

#[test]
fn a_graph_of_weights_alone_is_free_when_frozen() {
    let mut graph = Graph::new();
    let shape = vec![3, 4];
    let w = graph.add(Op::Weight { name: "w".to_owned(), dtype: hyenac_ir::DType::F32, shape }, &[]).unwrap();
    let sine = graph.add(Op::Sin {}, &[w]).unwrap();
    let result = graph.add(Op::Neg {}, &[sine]).unwrap();
    graph.add_output(result);
    graph.add_output(w);
    for frozen in [false, true] {
        let optimized = optimize(&graph, &Options { frozen, ..Options::default() }, &Roofline::default()).unwrap();
        only_regions(&optimized.graph);
        assert_eq!(optimized.report.regions.len(), 1);
        assert_eq!(optimized.report.total_us == 0.0, frozen);
        assert_eq!(optimized.graph.outputs()[1], hyenac_ir::Value::of(hyenac_ir::NodeIndex::new(0)));
        assert!(difference(&graph, &optimized.graph, Rounding::Exact) < 1e-12);
    }
}

#[test]
fn graphs_with_regions_are_refused() {
    let reference = small().reference_graph(1, 4).unwrap();
    let optimized = optimize(&reference, &Options::default(), &Roofline::default()).unwrap();
    let error = optimize(&optimized.graph, &Options::default(), &Roofline::default()).unwrap_err();
    assert!(matches!(error, PassError::NotElementary { .. }), "{error}");
}

#[test]
fn a_rule_without_meaning_is_an_error_with_its_name() {
    for (name, text) in [
        ("halves", "rule halves where ?x: f32[.., N] (gelu_tanh ?x) => (slice 0 0 1 (gelu_tanh ?x))"),
        (
            "flips",
            "rule flips where ?x: f32[A, B, C] ?w: real[N, C] ?p: precision
                   (linear ?p ?x ?w) => (linear ?p (transpose [2,0,1] ?x) ?w)",
        ),
    ] {
        let rules = hyenac_passes::RuleSet::parse("bad.rules", text).unwrap();
        let reference = small().reference_graph(2, 5).unwrap();
        let error = optimize(&reference, &Options { rules, ..Options::default() }, &Roofline::default()).unwrap_err();
        let PassError::Rule { rule, .. } = &error else { panic!("{error}") };
        assert_eq!(rule, name);
    }
}
