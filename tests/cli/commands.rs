//! Every subcommand, on the CPU with small sizes.

use predicates::prelude::*;
use serde_json::Value;

use crate::support::{File, Folder, failure, golden, hyenac, stdout};

const GOLDEN: [&str; 5] = ["tiny_b2_l21", "tiny_emb3_l64", "tiny_l1", "tiny_lmax16_l21", "tiny_shift0_eps1e-3_l40"];

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Every line fits a terminal of 100 columns.
#[track_caller]
fn fits(text: &str) {
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "longer than 100 columns: {long:#?}");
}

#[test]
fn without_a_subcommand_the_demo_runs() {
    let text = stdout(hyenac().arg("--quiet"));
    for part in ["1 x 1024", "d_model 256", "device", "plan", "compile", "time", "rel L2", "passed"] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
    fits(&text);
}

#[test]
fn demo_says_why_the_cpu_was_taken() {
    if std::path::Path::new("/dev/nvidia0").exists() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    let text = stdout(hyenac().args(["demo", "--seq-len", "48", "--batch", "2", "--variant", "hyenadna"]));
    assert!(text.contains("2 x 48") && text.contains("hyenadna") && text.contains("CPU"), "{text}");
    assert!(text.contains("driver"), "it does not say why:\n{text}");
}

#[test]
fn run_writes_what_the_golden_file_expects() {
    let folder = Folder::new();
    for name in GOLDEN {
        for (variant, mode) in [("benchmark", "live"), ("benchmark", "frozen"), ("hyenadna", "frozen")] {
            let weights = File::read(golden(name));
            let Some(expected) = weights.tensors.get(&format!("output.{variant}")) else { continue };
            let output = folder.text("y.safetensors");
            hyenac()
                .args(["run", "--device", "cpu", "--weights", &golden(name), "--output", &output])
                .args(["--variant", variant, "--mode", mode, "--precision", "ieee"])
                .assert()
                .success();
            let written = File::read(&output);
            assert_eq!(written.tensors["output"].shape, expected.shape);
            let expected: Vec<f64> =
                expected.bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
            let found = written.tensors["output"].values();
            let norm = expected.iter().map(|y| y * y).sum::<f64>().sqrt();
            let difference = found.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
            assert!(difference / norm < 5e-5, "{name} {variant} {mode}: {}", difference / norm);
        }
    }
}

#[test]
fn run_takes_the_input_from_a_file_of_its_own() {
    let folder = Folder::new();
    let mut file = File::read(golden("tiny_b2_l21"));
    let mut input = file.clone();
    input.tensors.retain(|name, _| name == "hidden_states");
    let first = folder.text("first.safetensors");
    let run = |weights: &str, input: Option<&str>, output: &str| {
        let mut command = hyenac();
        command.args(["run", "-q", "--device", "cpu", "--weights", weights, "--output", output]);
        command.args(input.iter().flat_map(|input| ["--input", input])).assert().success();
    };
    run(&golden("tiny_b2_l21"), None, &first);
    let input = folder.write("x.safetensors", &input.bytes());
    file.tensors.remove("hidden_states");
    let weights = folder.write("weights.safetensors", &file.bytes());
    let second = folder.text("second.safetensors");
    run(&weights, Some(&input), &second);
    assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
}

#[test]
fn run_without_an_output_file_describes_the_output() {
    let text = stdout(hyenac().args(["run", "--device", "cpu", "--weights", &golden("tiny_emb3_l64")]));
    assert!(text.contains("[3, 64, 16]") && text.contains("mean"), "{text}");
}

#[test]
fn flags_override_the_file_s_settings() {
    let folder = Folder::new();
    let output = |flags: &[&str]| {
        let path = folder.text("y.safetensors");
        let mut command = hyenac();
        command.args([
            "run",
            "-q",
            "--device",
            "cpu",
            "--weights",
            &golden("tiny_shift0_eps1e-3_l40"),
            "--output",
            &path,
        ]);
        command.args(flags).assert().success();
        File::read(path).tensors["output"].values()
    };
    let plain = output(&[]);
    assert_eq!(plain, output(&["--eps", "0.001", "--shift", "0"]));
    assert_ne!(plain, output(&["--eps", "1e-5"]));
    assert_ne!(plain, output(&["--shift", "0.05"]));
    assert_ne!(plain, output(&["--l-max", "20"]));
}

#[test]
fn check_agrees_with_every_golden_file() {
    for name in GOLDEN {
        for variant in ["benchmark", "hyenadna"] {
            if name == "tiny_lmax16_l21" && variant == "hyenadna" {
                continue;
            }
            let text =
                stdout(hyenac().args(["check", "--device", "cpu", "--weights", &golden(name), "--variant", variant]));
            for part in [&format!("output.{variant}"), "float64", "live", "frozen", "passed"] {
                assert!(text.contains(part), "`{part}` is missing in:\n{text}");
            }
            fits(&text);
        }
    }
}

#[test]
fn check_notices_another_expected_output() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        let output = file.tensors.get_mut("output.benchmark").unwrap();
        output.bytes[..8].copy_from_slice(&1e3f64.to_le_bytes());
    });
    let check = hyenac().args(["check", "--device", "cpu", "--weights", &path]).assert().code(1);
    check.stdout(predicate::str::contains("output.benchmark").and(predicate::str::contains("FAILED")));
}

#[test]
fn check_of_a_seeded_block_and_replays() {
    let text =
        stdout(hyenac().args(["check", "--device", "cpu", "--seq-len", "24", "--replays", "3", "--mode", "frozen"]));
    assert!(text.contains("3 replays") && text.contains("passed"), "{text}");
}

#[test]
fn check_of_a_suite_covers_every_combination() {
    let text = stdout(hyenac().args(["check", "--device", "cpu", "--suite", "2x9,1x24"]));
    fits(&text);
    for shape in ["2x9", "1x24"] {
        // Two presets, two distributions, two modes, fused and not.
        let rows = text.lines().filter(|line| line.starts_with(shape)).count();
        assert_eq!(rows, 16, "{shape}:\n{text}");
    }
    for word in ["benchmark", "hyenadna", "trained", "live", "frozen", "all", "none", "32 of 32 passed"] {
        assert!(text.contains(word), "`{word}` is missing in:\n{text}");
    }
}

#[test]
fn bench_measures_and_checks() {
    let folder = Folder::new();
    let path = folder.text("bench.json");
    let text = stdout(hyenac().args(["bench", "-q", "--device", "cpu", "--suite", "1x16,2x8", "--json", &path]));
    fits(&text);
    assert!(text.contains("wall clock") && text.contains("mean live") && text.contains("mean frozen"), "{text}");
    let report = json(&folder.path("bench.json"));
    assert_eq!(report["schema"], 1);
    assert_eq!((&report["precision"], &report["variant"]), (&"mixed".into(), &"benchmark".into()));
    assert_eq!((&report["inputs"], &report["target"]), (&"trained".into(), &"cpu".into()));
    assert!(report["protocol"]["repetitions"].as_u64().unwrap() >= 50);
    assert_eq!(report["rules_hash"].as_str().unwrap().len(), 64);
    let cases = report["cases"].as_array().unwrap();
    let modes: Vec<_> =
        cases.iter().map(|case| format!("{}x{} {}", case["batch"], case["seq_len"], case["mode"])).collect();
    assert_eq!(modes, ["1x16 \"live\"", "1x16 \"frozen\"", "2x8 \"live\"", "2x8 \"frozen\""]);
    for case in cases {
        let number = |key: &str| case[key].as_f64().unwrap_or_else(|| panic!("{key} of {case}"));
        assert!(number("min_us") > 0.0 && number("min_us") <= number("median_us"));
        assert!(number("median_us") <= number("p95_us") && number("hot_us") > 0.0);
        assert!(number("kernels") >= 1.0 && number("floor_us") > 0.0);
        assert!(number("rel_l2_err") < 1e-3 && number("match_ratio") > 0.98 && number("max_abs_err") < 1e-2);
        assert!(["direct", "fft"].contains(&case["conv"].as_str().unwrap()));
        assert!(case["empty_graph_us"].is_null() && case.get("launches").is_none());
    }
    for mode in ["live", "frozen"] {
        let times = cases.iter().filter(|case| case["mode"] == mode).map(|case| case["median_us"].as_f64().unwrap());
        let mean = times.sum::<f64>() / 2.0;
        assert!((report["mean_us"][mode].as_f64().unwrap() - mean).abs() < 1e-6 * mean);
    }
}

#[test]
fn bench_without_the_check() {
    let folder = Folder::new();
    let path = folder.text("bench.json");
    let arguments = ["--device", "cpu", "--suite", "1x8", "--mode", "frozen", "--no-check", "--inputs", "benchmark"];
    hyenac().args(["bench", "-q", "--json", &path]).args(arguments).assert().success();
    let report = json(&folder.path("bench.json"));
    assert!(report["cases"][0]["rel_l2_err"].is_null() && report["mean_us"]["live"].is_null());
    assert_eq!(report["inputs"], "benchmark");
}

#[test]
fn explain_shows_every_stage() {
    let text = stdout(hyenac().args(["explain", "-q", "--target", "h200", "--seq-len", "256"]));
    fits(&text);
    for part in [
        "Stages",
        "Rewriting",
        "Without a choice",
        "Plan",
        "Memory",
        "largest live set",
        "direct",
        "fft",
        "h200",
        "sm_90a",
        "~ begins before that launch has ended",
    ] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
}

#[test]
fn explain_writes_json_and_dot() {
    let folder = Folder::new();
    let (file, dot) = (folder.text("explain.json"), folder.text("block.dot"));
    hyenac()
        .args(["explain", "-q", "--target", "cpu", "--seq-len", "16", "--json", &file, "--dot", &dot])
        .assert()
        .success();
    let explained = json(&folder.path("explain.json"));
    assert!(
        explained["report"].is_object() && explained["reference"].is_string() && explained["optimized"].is_string()
    );
    let dot = std::fs::read_to_string(dot).unwrap();
    assert!(dot.starts_with("digraph") && dot.trim_end().ends_with('}'), "{dot}");
}

#[test]
fn explain_shows_what_fusion_buys() {
    let folder = Folder::new();
    let launches = |flags: &[&str]| {
        let path = folder.text("explain.json");
        let mut command = hyenac();
        command.args(["explain", "-q", "--target", "h200", "--json", &path]).args(flags).assert().success();
        json(&folder.path("explain.json"))["plan"]["launches"].as_array().unwrap().len()
    };
    let (live, frozen, unfused) = (launches(&[]), launches(&["--mode", "frozen"]), launches(&["--fuse", "none"]));
    assert!(live <= 12 && frozen <= 8 && unfused >= 20, "{live} live, {frozen} frozen, {unfused} unfused");
}

#[test]
fn emit_writes_the_same_files_every_time() {
    let folder = Folder::new();
    let emit = |name: &str| {
        let out = folder.text(name);
        hyenac().args(["emit", "-q", "--arch", "sm_80", "--seq-len", "40", "--out", &out]).assert().success();
        let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(out)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    };
    let files = emit("first");
    assert_eq!(
        files.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        emit("second").iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    assert!(files == emit("first"), "files differ from call to call");
    let plan: Value = serde_json::from_slice(&files.iter().find(|(name, _)| name == "plan.json").unwrap().1).unwrap();
    assert_eq!(plan["device"]["arch"], "sm_80");
    for (number, kernel) in plan["kernels"].as_array().unwrap().iter().enumerate() {
        let name = format!("{number:02}_{}.cu", kernel["name"].as_str().unwrap());
        let source = &files.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("no {name}")).1;
        assert_eq!(source, kernel["source"].as_str().unwrap().as_bytes());
    }
    // With NVRTC every kernel is compiled too.
    let compiled = files.iter().filter(|(name, _)| name.ends_with(".cubin")).count();
    if std::env::var_os("HYENAC_REQUIRE_NVRTC").is_some_and(|value| value == "1") || compiled > 0 {
        assert_eq!(compiled, plan["kernels"].as_array().unwrap().len());
        assert!(files.iter().any(|(name, _)| name == "resources.json"));
    }
}

#[test]
fn rules_list_is_a_rule_file() {
    let folder = Folder::new();
    let text = stdout(hyenac().args(["rules", "list"]));
    assert!(text.contains("rule fuse-layer-norm-x") && text.contains("# "), "{text}");
    let listed: Value = serde_json::from_str(&stdout(hyenac().args(["rules", "list", "--json"]))).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), text.lines().filter(|line| line.starts_with("rule ")).count());
    assert!(listed.iter().all(|rule| rule["equation"].as_str().is_some_and(|equation| !equation.is_empty())));
    // What is listed can be read back, as far as the loader is concerned.
    let path = folder.write("listed.rules", text.as_bytes());
    let message = failure(hyenac().args(["explain", "--target", "cpu", "--seq-len", "8", "--rules", &path]), 2);
    assert!(message.contains("exists already"), "{message}");
}

const SOUND: &str = "\
# x * y = y * x
rule swap-mul
  where ?x: f32[..]  ?y: f32[..]
  (mul ?x ?y)
  => (mul ?y ?x)
";

const UNSOUND: &str = "\
# x + x = x
rule drop-add
  where ?x: f32[..]
  (add ?x ?x)
  => (neg (neg ?x))
";

#[test]
fn rules_test_tells_sound_from_unsound() {
    let folder = Folder::new();
    let sound = folder.write("sound.rules", SOUND.as_bytes());
    let text = stdout(hyenac().args(["rules", "test", &sound]));
    assert!(text.contains("swap-mul") && text.contains("1 of 1 rules are sound"), "{text}");
    let unsound = folder.write("unsound.rules", [SOUND, "\n", UNSOUND].concat().as_bytes());
    let assert = hyenac().args(["rules", "test", &unsound]).assert().code(1);
    assert.stdout(predicate::str::contains("drop-add").and(predicate::str::contains("UNSOUND")));
}

#[test]
fn rules_test_of_the_built_in_rules() {
    let text = stdout(hyenac().args(["rules", "test", "-q"]));
    assert!(text.contains("fuse-layer-norm-x") && !text.contains("UNSOUND"), "{text}");
}

#[test]
fn a_file_with_an_unsound_rule_is_refused_unless_it_is_trusted() {
    let folder = Folder::new();
    let path = folder.write("unsound.rules", UNSOUND.as_bytes());
    let explain = ["explain", "-q", "--target", "cpu", "--seq-len", "8", "--rules", &path];
    let message = failure(hyenac().args(explain), 1);
    assert!(message.contains("drop-add") && message.contains("--trust-rules"), "{message}");
    hyenac().args(explain).arg("--trust-rules").assert().success();
}
