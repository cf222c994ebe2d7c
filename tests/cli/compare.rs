//! `bench --compare`, `--from` and `--plot`, and the script that measures PyTorch. No measurement needs a GPU here.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Folder, failure, hyenac, stdout};

const SCRIPT: &str = "bench/peers/torch_peers.py";

/// The script's interpreter, without installed packages: PyTorch is missing.
fn python(arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["-I", "-S", "-B"]).args(arguments);
    command.output().expect("python3 runs the script")
}

fn case(batch: u64, seq_len: u64, mode: &str, median_us: f64) -> Value {
    json!({
        "batch": batch, "seq_len": seq_len, "mode": mode, "median_us": median_us, "min_us": median_us,
        "p95_us": median_us, "hot_us": median_us, "empty_graph_us": 4.0, "floor_us": 2.5, "kernels": 7,
        "conv": "direct", "max_abs_err": 1e-3, "rel_l2_err": 5e-4, "match_ratio": 0.5,
    })
}

/// A file as an earlier hyenac wrote it.
fn ours() -> Value {
    json!({
        "schema": 1,
        "device": { "name": "NVIDIA <H200>", "sm": "sm_90", "driver": "13.0", "nvrtc": "13.0" },
        "target": "h200", "rules_hash": "0", "precision": "mixed", "variant": "benchmark", "inputs": "trained",
        "protocol": { "clock": "cuda_events", "repetitions": 50, "warmup": 10, "flushed_bytes": 125829120 },
        "cases": [
            case(1, 64, "live", 20.0), case(1, 64, "frozen", 10.0),
            case(2, 128, "live", 40.0), case(2, 128, "frozen", 32.0),
        ],
        "mean_us": { "live": 30.0, "frozen": 21.0 },
    })
}

/// What the script writes of these medians, measured on `device`.
fn peers(device: &str, medians: &[(u64, u64, &str, f64)]) -> Value {
    let program = "
import json, sys
sys.path.insert(0, 'bench/peers')
import torch_peers as peers
device, medians = json.loads(sys.argv[1])
protocol = {'clock': 'cuda_events', 'repetitions': 50, 'warmup': 10, 'flushed_bytes': 125829120}
measured = lambda time: {**peers.statistics([time - 1, time, time + 1]), 'hot_us': time, **peers.errors(None, None)}
cases = [peers.case_report(b, l, variant, measured(time), None) for b, l, variant, time in medians]
about = {'name': device, 'sm': 'sm_90', 'driver': None, 'nvrtc': None}
json.dump(peers.report('PyTorch 2.11.0', about, protocol, 'trained', cases), sys.stdout)
";
    let output = python(&["-c", program, &json!([device, medians]).to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const MEDIANS: [(u64, u64, &str, f64); 4] = [
    (1, 64, "eager-fp32", 200.0),
    (1, 64, "compile-tf32", 80.0),
    (2, 128, "eager-fp32", 100.0),
    (2, 128, "compile-tf32", 90.0),
];

impl Folder {
    fn json(&self, name: &str, value: &Value) -> String {
        self.write(name, value.to_string().as_bytes())
    }
}

#[test]
fn stored_measurements_are_compared_and_drawn() {
    let folder = Folder::new();
    let ours = folder.json("ours.json", &ours());
    let peers = folder.json("peers.json", &peers("NVIDIA <H200>", &MEDIANS));
    let (json, plot) = (folder.text("both.json"), folder.text("both.svg"));
    let mut command = hyenac();
    command.args(["bench", "--from", &ours, "--compare", &peers, "--json", &json, "--plot", &plot]);
    let text = stdout(&mut command);
    for part in [
        "live beside PyTorch 2.11.0, NVIDIA <H200>",
        "200.0 (10.00x)",
        "80.0 (4.00x)",
        "100.0 (2.50x)",
        "90.0 (2.25x)",
        "passed",
    ] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let ratios = |row: &str| row.split_whitespace().filter(|word| word.contains('x')).collect::<Vec<_>>().join(" ");
    assert_eq!(ratios(row("geometric mean")), "(5.00x) (3.00x)", "{text}");
    assert_eq!(ratios(row("minimum")), "(2.50x) (2.25x)", "{text}");
    assert!(text.lines().filter(|line| !line.starts_with("from")).all(|line| line.chars().count() <= 100), "{text}");

    let written: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let compared = written["comparisons"].as_array().unwrap();
    let named: Vec<_> =
        compared.iter().map(|one| format!("{} {}", one["mode"], one["peer"]).replace('"', "")).collect();
    assert_eq!(named, ["live eager-fp32", "live compile-tf32", "frozen eager-fp32", "frozen compile-tf32"]);
    let near = |value: &Value, expected: f64| assert!((value.as_f64().unwrap() - expected).abs() < 1e-9, "{value}");
    near(&compared[1]["geometric_mean"], 3.0);
    near(&compared[1]["minimum"], 2.25);
    near(&compared[3]["cases"][0]["ratio"], 8.0);
    assert_eq!(compared[0]["software"], "PyTorch 2.11.0");

    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
    for part in [
        "NVIDIA &lt;H200&gt;",
        "microseconds",
        "hyenac live",
        "hyenac frozen",
        "PyTorch 2.11.0 eager-fp32",
        "PyTorch 2.11.0 compile-tf32",
        "floor",
        "1x64",
        "2x128",
        "2.25x",
    ] {
        assert!(picture.contains(part), "`{part}` is missing in:\n{picture}");
    }

    // What was written holds all that is needed, and is read without the peers' file.
    let again = folder.text("again.svg");
    let text = stdout(hyenac().args(["bench", "--from", &json, "--plot", &again]));
    assert!(text.contains("(4.00x)"), "{text}");
    assert_eq!(std::fs::read_to_string(again).unwrap(), picture);
}

#[test]
fn what_differs_is_warned_about() {
    let folder = Folder::new();
    let ours = folder.json("ours.json", &ours());
    let mut other = peers("NVIDIA B200", &MEDIANS);
    other["protocol"]["flushed_bytes"] = 7.into();
    let peers = folder.json("peers.json", &other);
    let assert = hyenac().args(["bench", "--from", &ours, "--compare", &peers]).assert().success();
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    for part in ["peers.json: was measured on NVIDIA B200, here NVIDIA <H200>", "flushed 7 bytes, here 125829120 bytes"]
    {
        assert!(said.contains(part), "`{part}` is missing in:\n{said}");
    }
    // The same file twice: names stay apart.
    let text = stdout(hyenac().args(["bench", "-q", "--from", &ours, "--compare", &peers, "--compare", &peers]));
    assert!(text.contains("compile-tf32 (2)"), "{text}");
}

#[test]
fn a_stored_failure_is_a_failure() {
    let folder = Folder::new();
    let mut bad = ours();
    bad["cases"][2]["rel_l2_err"] = 2e-3.into();
    let ours = folder.json("ours.json", &bad);
    let assert = hyenac().args(["bench", "--from", &ours]).assert().code(1);
    assert!(String::from_utf8_lossy(&assert.get_output().stdout).contains("FAILED"));
}

#[test]
fn measurements_are_compared_with_earlier_ones() {
    let folder = Folder::new();
    let (earlier, plot) = (folder.text("earlier.json"), folder.text("plot.svg"));
    let bench = ["bench", "--device", "cpu", "--no-check", "--mode", "frozen", "--suite"];
    hyenac().args(bench).args(["1x16", "-q", "--json", &earlier]).assert().success();
    let text = stdout(hyenac().args(bench).args(["1x16", "--compare", &earlier, "--plot", &plot]));
    assert!(text.contains("mixed frozen") && text.contains("geometric mean"), "{text}");
    assert!(std::fs::read_to_string(plot).unwrap().contains("hyenac mixed frozen"));
    // Told before anything is measured.
    let message = failure(hyenac().args(bench).args(["1x16,1x24,2x8", "--compare", &earlier]), 2);
    assert!(message.contains("earlier.json: has no `frozen` of 1x24, 2x8"), "{message}");
}

#[test]
fn files_that_are_no_measurements() {
    let folder = Folder::new();
    let good = folder.json("ours.json", &ours());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value = ours();
        change(&mut value);
        value.to_string()
    };
    let lacking = changed(&|file| drop(file["cases"].as_array_mut().unwrap().remove(3)));
    for (content, part) in [
        ("no JSON".to_owned(), "is no JSON of `hyenac bench --json`"),
        ("[1, 2]".to_owned(), "is no JSON of `hyenac bench --json`"),
        ("{\"schema\": 1}".to_owned(), "missing field"),
        (changed(&|file| file["schema"] = 2.into()), "has version 2 of the format, this hyenac reads 1"),
        (changed(&|file| file["cases"] = json!([])), "holds no case"),
        (changed(&|file| file["cases"][0]["median_us"] = 0.0.into()), "`live` of 1x64 has a median of 0 us"),
        (changed(&|file| file["cases"][2] = file["cases"][0].clone()), "holds `live` of 1x64 twice"),
        (changed(&|file| file["cases"][0]["median_us"] = Value::Null), "expected f64"),
        (lacking, "has no `frozen` of 2x128"),
    ] {
        let bad = folder.write("bad.json", content.as_bytes());
        let message = failure(hyenac().args(["bench", "--from", &good, "--compare", &bad]), 2);
        assert!(message.contains("bad.json") && message.contains(part), "`{part}` is missing in:\n{message}");
    }
    for flag in ["--from", "--compare"] {
        let message = failure(hyenac().args(["bench", flag, "/nowhere.json"]), 2);
        assert!(message.contains("/nowhere.json"), "{message}");
    }
    let message = failure(hyenac().args(["bench", "--from", &good, "--plot", "/nowhere/plot.svg"]), 2);
    assert!(message.contains("/nowhere/plot.svg"), "{message}");
    for flags in [["--suite", "1x64"], ["--mode", "live"], ["--device", "cpu"], ["--rules", "r"]] {
        let message = failure(hyenac().args(["bench", "--from", &good]).args(flags), 2);
        assert!(message.contains("cannot be used with") && message.contains(flags[0]), "{message}");
    }
}

#[test]
fn the_script_says_what_is_wrong() {
    let said = |arguments: &[&str], code: i32| {
        let output = python(&[&[SCRIPT], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains("Traceback"), "{text}");
        text
    };
    let help = said(&["--help"], 0);
    assert!(help.contains("examples:") && help.contains("compile-tf32"), "{help}");
    let missing = said(&[], 3);
    assert!(missing.contains("PyTorch cannot be imported") && missing.contains("pip install torch"), "{missing}");
    assert!(said(&["--variants", "compile-tf16"], 2).contains("compile-tf16"));
    assert!(said(&["--cases", "1x0"], 2).contains("1x1024,2x4096"));
    assert!(said(&["--repetitions", "5"], 2).contains("from 50"));
    assert!(said(&["--json", "/nowhere/peers.json"], 2).contains("/nowhere/peers.json"));
}

#[test]
fn the_script_times_the_shapes_of_the_suite() {
    let pairs = |path: &str, start: &str| {
        let source = std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let list = source.split_once(start).unwrap().1.split_once(']').unwrap().0;
        list.split('(').skip(1).map(|pair| pair.split(')').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let theirs = pairs(SCRIPT, "\nSOL051 = [");
    assert_eq!(theirs.len(), 16);
    assert_eq!(pairs("src/bench/suite.rs", "SOL051: [(usize, usize); 16] = ["), theirs);
}
