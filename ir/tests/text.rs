//! The text format: round trips, and errors that say where and what.

mod common;

use common::graphs::random_graph;
use hyenac_ir::{BlockConfig, Graph, Op, TABLE, parse};
use proptest::prelude::*;

fn round_trip(graph: &Graph) {
    graph.verify().expect("a valid graph");
    let text = graph.to_text();
    let again = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(*graph, again, "{text}");
    assert_eq!(text, again.to_text());
}

fn in_snapshots(check: impl FnOnce()) {
    insta::with_settings!({
        snapshot_path => common::root().join("snapshots/ir"),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { check() });
}

#[test]
fn reference_graphs() {
    in_snapshots(|| {
        for (name, config) in [("benchmark", BlockConfig::benchmark()), ("hyenadna", BlockConfig::hyenadna())] {
            let graph = config.reference_graph(1, 131).expect("a valid size");
            round_trip(&graph);
            insta::assert_snapshot!(format!("reference_{name}_1x131"), graph.to_text());
        }
    });
    let longer = BlockConfig { l_max: 16, ..BlockConfig::benchmark() };
    round_trip(&longer.reference_graph(2, 21).expect("a valid size"));
}

#[test]
fn hand_written_text_may_name_values_leave_out_types_and_carry_comments() {
    let text = r#"
        // a gate
        graph {
          %x = input "x" : f32[2, 4]   // two rows
          %scale = scalar {value = 2}
          %half = region %x, %scale schedule "any" {
            %a = parameter {index = 0} : f32[2, 4]
            %b = parameter {index = 1} : f32[] @weights
            %c = mul %a, %b
            %d = cast %c : f16[2, 4]
            return %c, %d
          }
          %y = add %half, %half.1 : f32[2, 4] @input
          return %y
        }"#;
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    round_trip(&graph);
    in_snapshots(|| insta::assert_snapshot!("canonical_form", graph.to_text()));
}

/// What is wrong, and a text that is wrong in this way.
const WRONG: &[(&str, &str)] = &[
    ("empty", ""),
    ("not a graph", "grpah {}"),
    ("no outputs", "graph {\n  %0 = input \"x\" : f32[4]\n}"),
    ("misspelt op", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = gelu_tan %0\n  return %1\n}"),
    ("unknown op", "graph {\n  %0 = frobnicate\n  return %0\n}"),
    ("undefined value", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = add %0, %2\n  return %1\n}"),
    ("label taken", "graph {\n  %0 = input \"x\" : f32[4]\n  %0 = neg %0\n  return %0\n}"),
    ("no such output", "graph {\n  %0 = input \"x\" : f32[4]\n  return %0.1\n}"),
    ("arity", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = add %0\n  return %1\n}"),
    (
        "shapes",
        "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = weight \"w\" : f32[5, 3]\n  %2 = linear %0, %1\n  return %2\n}",
    ),
    ("wrong result type", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = neg %0 : f16[4]\n  return %1\n}"),
    ("wrong binding", "graph {\n  %0 = input \"x\" : f32[4] @weights\n  return %0\n}"),
    ("misspelt binding", "graph {\n  %0 = input \"x\" : f32[4] @weight\n  return %0\n}"),
    ("missing type", "graph {\n  %0 = input \"x\"\n  return %0\n}"),
    ("missing name", "graph {\n  %0 = input : f32[4]\n  return %0\n}"),
    ("misspelt dtype", "graph {\n  %0 = input \"x\" : tf23[4]\n  return %0\n}"),
    ("missing attribute", "graph {\n  %0 = scalar : f32[]\n  return %0\n}"),
    ("misspelt attribute", "graph {\n  %0 = scalar {valeu = 1.0}\n  return %0\n}"),
    ("attribute twice", "graph {\n  %0 = scalar {value = 1.0, value = 2.0}\n  return %0\n}"),
    ("form of an attribute", "graph {\n  %0 = scalar {value = [1]}\n  return %0\n}"),
    ("infinite scalar", "graph {\n  %0 = scalar {value = 1e999}\n  return %0\n}"),
    ("number too large", "graph {\n  %0 = input \"x\" : f32[99999999999999999999999]\n  return %0\n}"),
    ("size overflows", "graph {\n  %0 = input \"x\" : f32[9999999999, 9999999999]\n  return %0\n}"),
    ("empty tensor", "graph {\n  %0 = input \"x\" : f32[0]\n  return %0\n}"),
    ("open string", "graph {\n  %0 = input \"x : f32[4]\n  return %0\n}"),
    ("unknown escape", "graph {\n  %0 = input \"x\\q\" : f32[4]\n  return %0\n}"),
    ("stray character", "graph {\n  %0 = input \"x\" : f32[4];\n  return %0\n}"),
    ("text behind", "graph {\n  %0 = input \"x\" : f32[4]\n  return %0\n} graph"),
    ("name taken", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = weight \"x\" : f32[4]\n  return %0, %1\n}"),
    ("dead node", "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = neg %0\n  return %0\n}"),
    ("parameter outside", "graph {\n  %0 = parameter {index = 0} : f32[4]\n  return %0\n}"),
    (
        "region in a region",
        "graph {\n  %0 = region {\n    %0 = region {\n      %0 = scalar {value = 1.0}\n      return %0\n    }\n    return %0\n  }\n  return %0\n}",
    ),
    (
        "operand of a region",
        "graph {\n  %0 = input \"x\" : f32[4]\n  %1 = region %0 {\n    %0 = parameter {index = 0} : f32[5]\n    return %0\n  }\n  return %1\n}",
    ),
    (
        "weight in a region",
        "graph {\n  %0 = region {\n    %0 = weight \"w\" : f32[5]\n    return %0\n  }\n  return %0\n}",
    ),
];

#[test]
fn errors_name_the_place_and_what_is_wrong() {
    let mut report = String::new();
    for (what, text) in WRONG {
        let error = match parse(text) {
            Ok(graph) => panic!("{what} was accepted:\n{graph}"),
            Err(error) => error,
        };
        report += &format!("{what}: {error}\n");
    }
    in_snapshots(|| insta::assert_snapshot!("parse_errors", report));
}

#[test]
fn every_misspelt_mnemonic_is_recognised() {
    for row in TABLE {
        let misspelt = format!("{}x", row.mnemonic);
        let error = parse(&format!("graph {{ %0 = {misspelt}")).expect_err("no such op").to_string();
        assert!(error.contains(&format!("did you mean `{}`?", row.mnemonic)), "{error}");
    }
}

#[test]
fn deep_nesting_is_refused_at_once() {
    let error = parse(&format!("graph {{ {}", "%0 = region { ".repeat(100_000))).expect_err("regions do not nest");
    assert_eq!((error.line, error.column), (1, 28), "{error}");
    for opener in ["{", "[", "(", "graph {", "\"", "%", "%0 = add %0, "] {
        parse(&opener.repeat(100_000)).expect_err("no graph");
    }
}

#[test]
fn the_generator_reaches_every_op() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let graph = random_graph(seed, 60);
        for node in graph.nodes() {
            seen.insert(graph.node(node).op.mnemonic());
            if let Op::Region(region) = &graph.node(node).op {
                let body = region.body();
                seen.extend(body.nodes().map(|node| body.node(node).op.mnemonic()));
            }
        }
    }
    let all: std::collections::BTreeSet<&str> = TABLE.iter().map(|row| row.mnemonic).chain(["region"]).collect();
    assert_eq!(seen, all);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_round_trip(seed in any::<u64>(), size in 0usize..60) {
        round_trip(&random_graph(seed, size));
    }

    #[test]
    fn mutated_text_never_panics(
        seed in 0u64..1000,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<prop::sample::Index>()), 1..6),
    ) {
        let pieces = ["{", "}", "[", "]", "%0", "%1.9", "= ", ",", ": f16[3]", "@weights", "1e400", "-", "\"", "\\u{",
            "99999999999999999999", "18446744073709551615", "0", "region", "parameter {index = 7}", "return", "é", "//"];
        let mut text: Vec<char> = random_graph(seed, 20).to_text().chars().collect();
        for (place, kind, what) in edits {
            let at = place.index(text.len().max(1)).min(text.len());
            match kind {
                0 => { text.drain(at..(at + 1 + what.index(12)).min(text.len())); }
                1 => { text.splice(at..at, pieces[what.index(pieces.len())].chars()); }
                2 => { text.truncate(at); }
                _ => {
                    let end = (at + what.index(40)).min(text.len());
                    let copy = text[at..end].to_vec();
                    text.splice(at..at, copy);
                }
            }
        }
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(graph) => round_trip(&graph),
            Err(error) => {
                prop_assert!(text.is_char_boundary(error.offset));
                prop_assert_eq!(error.line, 1 + text[..error.offset].matches('\n').count());
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "(graph|[%{}=,:.@\\[\\]\"\\\\]|[a-z0-9 \n]|\\PC){0,60}") {
        let _ = parse(&text);
    }
}
