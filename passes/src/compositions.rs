//! What the built-in rules must make possible on the block, and what they must not.

use egg::{Pattern, Searcher};
use hyenac_ir::BlockConfig;

use crate::encode::encode;
use crate::facts::BlockGraph;
use crate::language::{Head, Term};
use crate::options::{Options, Precision};
use crate::saturate::saturate;

fn block(precision: Precision, seq_len: usize) -> BlockGraph {
    let config = BlockConfig { d_model: 8, d_inner: 12, filter_order: 6, l_max: 64, ..BlockConfig::benchmark() };
    let encoded = encode(&config.reference_graph(2, seq_len).unwrap()).unwrap();
    let saturated = saturate(encoded.egraph, &Options { precision, ..Options::default() }).unwrap();
    assert_eq!(saturated.stop, "saturated");
    saturated.egraph
}

fn reachable(egraph: &BlockGraph, pattern: &str) -> bool {
    let pattern: Pattern<Term> = pattern.parse().unwrap();
    pattern.n_matches(egraph) > 0
}

/// One name and one pattern for each composition that a kernel may be.
const COMPOSITIONS: &[(&str, &str)] = &[
    ("layer norm, linear", "(linear ?p (layer_norm ?e (load ?x) ?w ?b) ?m)"),
    (
        "layer norm, linear, bias, short convolution",
        "(short_conv (transpose ?t (add (linear ?p (layer_norm ?e (load ?x) ?nw ?nb) ?w) ?b)) ?k)",
    ),
    (
        "short convolution, slice, gate",
        "(mul (slice 1 16 8 (add (short_conv ?x ?k) ?b)) (slice 1 8 8 (add (short_conv ?x ?k) ?b)))",
    ),
    ("linear, GELU", "(gelu_tanh (add (linear ?p (load ?x) ?w) ?b))"),
    ("linear, residual", "(add (add (linear ?p (load ?y) ?w) ?b) (load input:hidden_states))"),
    ("residual, layer norm", "(layer_norm ?e (add (load ?y) (load input:hidden_states)) ?w ?b)"),
    (
        "gate, long convolution, skip term, gate",
        "(mul (add (long_conv f16 (mul ?v ?g) ?k) (mul (mul ?v ?g) ?d)) (slice 1 0 8 (load ?s)))",
    ),
    (
        "filter network, modulation",
        "(mul (linear f32 (sin (mul (add (linear f32 (sin (mul (add (linear f32 (sin (mul (add (linear f32
           (positional_embedding ?n ?n ?d) ?w1) ?b1) ?f)) ?w2) ?b2) ?f)) ?w3) ?b3) ?f)) ?w4)
           (add (exp (mul (neg (slice 1 0 1 (positional_embedding ?n ?n ?d))) (abs ?a))) ?shift))",
    ),
    (
        "out-projection, residual, layer norm, MLP, residual",
        "(add (add (linear f16 (gelu_tanh (add (linear f16 (layer_norm ?e (add (add (linear f16
           (transpose ?t (load ?y)) ?w) ?b) (load ?x)) ?nw ?nb) ?w1) ?b1)) ?w2) ?b2)
           (add (add (linear f16 (transpose ?t (load ?y)) ?w) ?b) (load ?x)))",
    ),
    (
        "gate, transform, product with a stored spectrum, inverse",
        "(irfft ?n ?l (spectrum_mul (rfft ?n (mul ?v ?g)) (load (mat c64 (rfft ?n ?k)))))",
    ),
    ("gate, transform of the filter in the same kernel", "(spectrum_mul (rfft ?n (mul ?v ?g)) (rfft ?n (load ?k)))"),
    (
        "long convolution of gates stored in f16",
        "(long_conv f16 (mul (slice 1 16 8 (load (mat f16 ?s))) (slice 1 8 8 (load (mat f16 ?s)))) (load (mat f16 ?k)))",
    ),
    ("packed weights", "(linear f16 ?x (load (mat f16 (load ?w))))"),
];

#[test]
fn every_composition_is_reachable() {
    let egraph = block(Precision::Mixed, 16);
    for (name, pattern) in COMPOSITIONS {
        assert!(reachable(&egraph, pattern), "{name}");
    }
}

#[test]
fn without_roundings_the_same_compositions_are_reachable_in_f32() {
    let egraph = block(Precision::Ieee, 16);
    for (name, pattern) in COMPOSITIONS {
        let rounds = pattern.contains("mat f16");
        assert_eq!(
            reachable(&egraph, &pattern.replace("linear f16", "linear f32").replace("conv f16", "conv f32")),
            !rounds,
            "{name}"
        );
    }
    assert!(!reachable(&egraph, "(mat f16 ?x)") && !reachable(&egraph, "(linear f16 ?x ?w)"));
}

#[test]
fn a_padded_mixer_stores_f16_too() {
    let egraph = block(Precision::Mixed, 80);
    assert!(reachable(&egraph, "(linear f16 (pad 1 0 16 (transpose ?t (load (mat f16 ?y)))) ?w)"));
    assert!(reachable(&egraph, "(mat f16 (slice 2 0 64 (add (short_conv ?x ?w) ?b)))"));
}

#[test]
fn the_residual_stream_is_never_rounded_nor_is_the_filter_network() {
    let egraph = block(Precision::Mixed, 16);
    for pattern in [
        "(mat f16 (add ?y (load input:hidden_states)))",
        "(mat f16 (add (add (linear ?p (load ?y) ?w) ?b) ?r))",
        "(mat f16 (sin ?x))",
        "(linear f16 (sin ?x) ?w)",
        "(linear tf32 (sin ?x) ?w)",
        "(mat f16 (load input:hidden_states))",
    ] {
        assert!(!reachable(&egraph, pattern), "{pattern}");
    }
}

#[test]
fn no_value_is_united_with_its_own_round_trip() {
    let egraph = block(Precision::Mixed, 16);
    for class in egraph.classes() {
        let loads = class.iter().any(|term| term.head == Head::Load);
        let computes = class.iter().any(|term| matches!(term.head, Head::Op(_)));
        assert!(!(loads && computes), "{:?}", class.nodes);
    }
}
