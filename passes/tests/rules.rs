//! The rules: loading them, and whether they are sound.

use hyenac_passes::soundness::{INSTANCES, Verdict, test_rule};
use hyenac_passes::{Rule, RuleSet};

fn one(text: &str) -> Rule {
    RuleSet::parse("test.rules", text).unwrap_or_else(|error| panic!("{error}")).iter().next().unwrap().clone()
}

#[test]
fn every_builtin_rule_is_sound() {
    for rule in &RuleSet::builtin() {
        for seed in 0..3 {
            let verdict = test_rule(rule, seed, INSTANCES);
            assert_eq!(verdict, Verdict::Sound { instances: INSTANCES }, "{}: {verdict}", rule.name);
        }
    }
}

#[test]
fn wrong_rules_are_caught_with_a_counterexample() {
    for (text, words) in [
        ("rule swaps where ?a: f32[..A] ?b: f32[..B] (add ?a ?b) => (mul ?a ?b)", "differ"),
        // Right but for the last entry of the last axis, which needs the whole output to be compared.
        ("rule shortens where ?x: f32[A, 4] (sin ?x) => (sin (pad 1 0 1 (slice 1 0 3 ?x)))", "differ"),
        (
            "rule drops where ?x: f32[.., N] ?w: f32[N] ?b: f32[N] ?e: number
          (layer_norm ?e ?x ?w ?b) => (layer_norm 1e-5 ?x ?w ?b)",
            "differ",
        ),
        // A circular convolution: too short a transform.
        (
            "rule wraps where ?u: f32[B, D, L] ?k: f32[D, L] ?n: size
          (mul (long_conv f32 ?u ?k) (irfft ?n 1 (rfft ?n ?u)))
          => (mul (irfft ?n (last-extent ?u) (spectrum_mul (rfft ?n ?u) (rfft ?n ?k))) (irfft ?n 1 (rfft ?n ?u)))",
            "differ",
        ),
        ("rule commutes where ?x: f32[N, K] ?w: f32[N, K] (linear f32 ?x ?w) => (linear f32 ?w ?x)", "differ"),
        ("rule reorders where ?x: f32[A, B] (reshape [6] ?x) => (reshape [6] (transpose [1,0] ?x))", "differ"),
        // It rounds, and does not say so.
        ("rule rounds where ?x: f32[..] (neg (load (mat f32 ?x))) => (neg (load (mat f16 ?x)))", "casts that round"),
        // It rounds more than it says.
        (
            "rule claims where ?x: f32[.., K] ?w: f32[N, K] within 1e-6 (linear f32 ?x ?w) => (linear f16 ?x ?w)",
            "casts that round",
        ),
    ] {
        let rule = one(text);
        let verdict = test_rule(&rule, 0, INSTANCES);
        let Verdict::Unsound(found) = &verdict else { panic!("{}: {verdict}", rule.name) };
        assert!(found.what.contains(words), "{}: {verdict}", rule.name);
        assert!(found.difference > found.allowed, "{}", rule.name);
        assert_eq!(found.variables.len(), rule.types.len());
    }
}

#[test]
fn the_counterexample_is_small() {
    let rule = one("rule swaps where ?a: f32[..A] ?b: f32[..B] (add ?a ?b) => (mul ?a ?b)");
    let Verdict::Unsound(found) = test_rule(&rule, 0, INSTANCES) else { panic!("it is unsound") };
    assert!(found.variables.values().all(|ty| ty == "f32[1]" || ty == "f32[1, 1]"), "{found:?}");
}

#[test]
fn a_rule_that_fits_nothing_is_never_applicable() {
    let rule = one("rule never where ?x: f32[A] ?w: f32[N, K, M] (linear f32 ?x ?w) => (linear f16 ?x ?w)");
    assert_eq!(test_rule(&rule, 0, 8), Verdict::NeverApplicable);
}

#[test]
fn rules_print_as_they_load() {
    let builtin = RuleSet::builtin();
    let again = RuleSet::parse("again", &builtin.text()).unwrap();
    assert_eq!(again.text(), builtin.text());
    for (a, b) in builtin.iter().zip(&again) {
        assert_eq!((&a.left, &a.right, &a.types, &a.conditions), (&b.left, &b.right, &b.types, &b.conditions));
        assert!(a.equation.contains('=') || a.equation.contains('~'), "{} has no equation", a.name);
        assert_eq!(a.within.is_some(), a.equation.contains('~'), "{}", a.name);
    }
}

#[test]
fn sets_merge_and_leave_out() {
    let builtin = RuleSet::builtin();
    assert!(builtin.clone().without("fuse-*").iter().all(|rule| !rule.name.starts_with("fuse-")));
    assert!(builtin.clone().without("fuse-*").get("linear-f16").is_some());
    assert!(builtin.clone().without("*").is_empty());
    let error = builtin.clone().merge(builtin).unwrap_err();
    assert!(error.message.contains("exists already, from fuse.rules"), "{error}");
}

#[test]
fn errors_name_the_place_and_what_was_expected() {
    for (text, line, column, words) in [
        ("rule", 1, 5, "expected the rule's name, found the end"),
        ("rules x", 1, 1, "expected `rule`, found `rules`"),
        ("rule a/b (neg ?x) => ?x", 1, 6, "`a/b` is no name"),
        ("rule r\n  where ?x: f32[..]\n  (relu ?x) => ?x", 3, 4, "`relu` is neither an op"),
        ("rule r where ?x: f33[..] (neg ?x) => ?x", 1, 18, "`f33` is no element type"),
        ("rule r where ?x: sizes (neg ?x) => ?x", 1, 18, "`sizes` is no type"),
        ("rule r where ?x: f32[K, ..] (neg ?x) => ?x", 1, 25, "`..` must be the first"),
        ("rule r where ?x: f32[..] ?x: f32[..] (neg ?x) => ?x", 1, 26, "declared twice"),
        ("rule r where ?x: f32[..] ?y: f32[..] (neg ?x) => ?x", 1, 38, "?y is declared but not on the left"),
        ("rule r (neg ?x) => ?x", 1, 13, "?x has no type"),
        ("rule r where ?x: f32[..] (neg ?x ?x) => ?x", 1, 34, "neg takes 0 attributes, then 1 operands, and no more"),
        ("rule r where ?x: f32[..] (add ?x) => ?x", 1, 33, "add takes 0 attributes, then 2 operands"),
        ("rule r where ?x: f32[..] ?t: format (neg ?t) => ?x", 1, 42, "?t: format stands where a fragment"),
        ("rule r where ?x: f32[..] (neg (load ?x)) => (neg ?x)", 1, 50, "?x stands for a stored value"),
        ("rule r where ?x: f32[..] (neg (mat f32 ?x)) => ?x", 1, 32, "expected a fragment"),
        ("rule r where ?x: f32[..] (slice 0 a 1 ?x) => ?x", 1, 35, "expected an attribute, found `a`"),
        ("rule r where ?x: f32[..] (cast 7 ?x) => ?x", 1, 27, "attribute `dtype` of cast"),
        ("rule r where ?x: f32[..] ?w: f32[..] (linear c64 ?x ?w) => ?x", 1, 39, "attribute `precision` of linear"),
        ("rule r where ?x: f32[..] when (depends-on-input ?y) (neg ?x) => ?x", 1, 49, "?y has no type"),
        ("rule r where ?x: f32[..] when (lossless ?x ?x) (neg ?x) => ?x", 1, 41, "does not fit this condition"),
        ("rule r where ?x: f32[..] when (precision-allows f17) (neg ?x) => ?x", 1, 49, "`f17` is no dtype"),
        ("rule r where ?x: f32[..] within -1 (neg ?x) => ?x", 1, 33, "positive number"),
        ("rule r where ?x: f32[..] (load (mat f16 ?x)) => ?x", 1, 49, "its own round trip"),
        ("rule r where ?x: f32[..] (neg ?x) => (load (mat f32 (neg ?x)))", 1, 38, "its own round trip"),
        ("rule r where ?x: f32[..] (rfft (fft-size ?x) ?x) => (rfft 8 ?x)", 1, 33, "on the right"),
        ("rule r where ?x: f32[..] (neg ?x) (neg ?x)", 1, 35, "expected `=>`"),
        ("rule r where ?x: f32[..] (neg (neg ?x)) => ?x )", 1, 47, "expected `rule` or the end"),
        (
            "rule r where ?x: f32[..] (neg (neg ?x)) => ?x\nrule r where ?x: f32[..] (abs ?x) => ?x",
            2,
            1,
            "exists already, from line 1",
        ),
    ] {
        let error = RuleSet::parse("my.rules", text).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.message.contains(words), "{text}: {error}");
        assert!(error.to_string().starts_with(&format!("my.rules:{line}:{column}: ")));
    }
}

/// The table in the documentation, as it must be.
fn table() -> String {
    let mut table = "| rule | equation | when | within |\n|---|---|---|---|\n".to_owned();
    for rule in &RuleSet::builtin() {
        let conditions: Vec<String> = rule.conditions.iter().map(|condition| format!("`{condition}`")).collect();
        let within = rule.within.map_or(String::new(), |bound| format!("{bound:?}"));
        let equation = rule.equation.replace('\n', " ").replace('|', "\\|").replace('*', "\\*");
        table.push_str(&format!("| `{}` | {equation} | {} | {within} |\n", rule.name, conditions.join(" ")));
    }
    table
}

#[test]
fn the_documentation_lists_every_rule() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rules.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (start, end) = ("<!-- rules: begin -->\n", "<!-- rules: end -->");
    let (before, rest) = text.split_once(start).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{start}{}{end}{after}", table())).unwrap();
    } else {
        assert_eq!(found, table(), "run the test with UPDATE_DOCS=1 to write the table anew");
    }
}
