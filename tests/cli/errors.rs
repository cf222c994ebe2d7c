//! Bad input: each error names the thing, what was expected and what was found, and has its exit code.

use predicates::prelude::*;

use crate::support::{File, Folder, Tensor, failure, golden, hyenac};

/// `run` on the CPU with these weights.
fn run(weights: &str) -> assert_cmd::Command {
    let mut command = hyenac();
    command.args(["run", "--device", "cpu", "--weights", weights]);
    command
}

/// The message holds all of these.
#[track_caller]
fn names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in:\n{message}");
    }
}

#[test]
fn no_such_file() {
    names(&failure(&mut run("/nowhere/block.safetensors"), 2), &["/nowhere/block.safetensors", "No such file"]);
}

#[test]
fn a_folder_is_no_weights_file() {
    names(&failure(&mut run("tests/golden"), 2), &["tests/golden", "not a regular file"]);
}

#[test]
fn truncated_anywhere() {
    let whole = std::fs::read(golden("tiny_b2_l21")).unwrap();
    let folder = Folder::new();
    for length in [0, 1, 7, 8, 9, 100, 1000, whole.len() - 1] {
        let path = folder.write("short.safetensors", &whole[..length]);
        names(&failure(&mut run(&path), 2), &[&path, "not a valid safetensors file"]);
    }
}

#[test]
fn a_header_that_claims_more_than_there_is() {
    let folder = Folder::new();
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"{}");
    let path = folder.write("hostile.safetensors", &bytes);
    names(&failure(&mut run(&path), 2), &["18446744073709551615", "10 bytes"]);

    let header = br#"{"norm1_weight":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    let path = folder.write("hostile.safetensors", &bytes);
    names(&failure(&mut run(&path), 2), &[&path, "not a valid safetensors file"]);

    let header = br#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&[0; 4]);
    let path = folder.write("hostile.safetensors", &bytes);
    names(&failure(&mut run(&path), 2), &[&path, "not a valid safetensors file"]);
}

#[test]
fn a_header_that_is_no_json() {
    let folder = Folder::new();
    for header in [&b"not json"[..], b"[]", b"{\"a\": 1}", &[0xff, 0xfe, 0x00], &b"[".repeat(100_000)] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        let path = folder.write("text.safetensors", &bytes);
        names(&failure(&mut run(&path), 2), &[&path, "header"]);
    }
}

#[test]
fn a_missing_tensor() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        file.tensors.remove("sin_freq");
    });
    names(&failure(&mut run(&path), 2), &["sin_freq", "F32"]);
}

#[test]
fn a_misspelt_tensor_is_suggested() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        let tensor = file.tensors.remove("out_proj_weight").unwrap();
        file.tensors.insert("out_proj_wieght".to_owned(), tensor);
    });
    names(&failure(&mut run(&path), 2), &["`out_proj_weight`", "did you mean `out_proj_wieght`"]);
}

#[test]
fn a_wrong_shape() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        let tensor = Tensor::f32(&[17], &[0.0; 17]);
        file.tensors.insert("filter_bias".to_owned(), tensor);
    });
    names(&failure(&mut run(&path), 2), &["filter_bias", "[16]", "[17]"]);
}

#[test]
fn a_wrong_dtype() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        let tensor = file.tensors.get_mut("filter_bias").unwrap();
        tensor.dtype = "BF16".to_owned();
        tensor.bytes.truncate(32);
    });
    names(&failure(&mut run(&path), 2), &["filter_bias", "F32", "BF16"]);
}

#[test]
fn bad_metadata() {
    let folder = Folder::new();
    for (key, value) in [("l_max", "many"), ("l_max", "0"), ("layer_norm_eps", "-1"), ("exp_mod_shift", "NaN")] {
        let path = folder.changed(|file| file.metadata[key] = value.into());
        names(&failure(&mut run(&path), 2), &[key, value]);
    }
}

#[test]
fn an_unknown_tensor_is_a_warning() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        file.tensors.insert("optimizer_state".to_owned(), Tensor::f32(&[1], &[1.0]));
    });
    run(&path)
        .assert()
        .success()
        .stderr(predicate::str::contains("warning").and(predicate::str::contains("optimizer_state")));
}

#[test]
fn an_input_of_another_width() {
    let folder = Folder::new();
    let input = File {
        metadata: serde_json::json!({}),
        tensors: [("hidden_states".to_owned(), Tensor::f32(&[1, 4, 24], &[0.5; 96]))].into(),
    };
    let path = folder.write("x.safetensors", &input.bytes());
    let message = failure(run(&golden("tiny_b2_l21")).args(["--input", &path]), 2);
    names(&message, &["hidden_states", "16", "24"]);
}

#[test]
fn no_input_at_all() {
    let folder = Folder::new();
    let path = folder.changed(|file| {
        file.tensors.remove("hidden_states");
    });
    names(&failure(&mut run(&path), 2), &["hidden_states", "--input"]);
}

#[test]
fn sizes_that_contradict_the_input() {
    let message = failure(run(&golden("tiny_b2_l21")).args(["--seq-len", "22"]), 2);
    names(&message, &["--seq-len", "22", "21"]);
    let message = failure(run(&golden("tiny_b2_l21")).args(["--batch", "3"]), 2);
    names(&message, &["--batch", "3", "2"]);
}

#[test]
fn what_is_not_finite_is_warned_about_by_run_and_reported_by_check() {
    let folder = Folder::new();
    for (tensor, value) in [("filter_bias", f32::NAN), ("hidden_states", f32::INFINITY)] {
        let path = folder.changed(|file| {
            let tensor = file.tensors.get_mut(tensor).unwrap();
            tensor.bytes[20..24].copy_from_slice(&value.to_le_bytes());
        });
        let finding = || predicate::str::contains(tensor).and(predicate::str::contains(value.to_string()));
        run(&path).assert().success().stderr(finding());
        let check = hyenac().args(["check", "--device", "cpu", "--weights", &path]).assert().code(1);
        check.stdout(finding());
    }
}

#[test]
fn sizes_without_end() {
    let huge = "4611686018427387904";
    for sizes in [["--batch", huge], ["--seq-len", huge]] {
        let message = failure(hyenac().args(["explain", "--device", "cpu"]).args(sizes), 2);
        assert!(message.contains("bytes") || message.contains(huge), "{message}");
    }
    // Fits into the IR's limit of one value, and into no memory.
    let message = failure(hyenac().args(["demo", "--device", "cpu", "--batch", "100000", "--seq-len", "100000"]), 2);
    names(&message, &["memory", "bytes"]);
}

#[test]
fn a_sequence_longer_than_the_filter() {
    let weights = golden("tiny_lmax16_l21");
    run(&weights).assert().success();
    let message = failure(run(&weights).args(["--variant", "hyenadna"]), 2);
    names(&message, &["21", "16"]);
}

#[test]
fn cuda_without_a_gpu() {
    if std::path::Path::new("/dev/nvidia0").exists() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    let message = failure(hyenac().args(["demo", "--device", "cuda", "--seq-len", "64"]), 3);
    names(&message, &["driver", "--device cpu"]);
    let message = failure(hyenac().args(["bench", "--device", "cuda", "--suite", "1x64"]), 3);
    names(&message, &["--device cpu"]);
    names(&failure(hyenac().args(["tune", "--suite", "1x64"]), 3), &["driver"]);
    names(&failure(hyenac().args(["tune", "--suite", "1x64", "--target", "a100"]), 3), &["driver"]);
}

#[test]
fn tuning_databases_that_are_none() {
    let folder = Folder::new();
    let explain = |tuning: &str| {
        let mut command = hyenac();
        command.args(["explain", "--seq-len", "64", "--target", "h200", "--tuning", tuning]);
        command
    };
    names(&failure(&mut explain("/nowhere/t.json"), 2), &["/nowhere/t.json", "No such file"]);
    let path = folder.write("t.json", b"{\"schema\": 1, \"target\": \"h200\"}");
    names(
        &failure(&mut explain(&path), 2),
        &[&path, "is no tuning database", "device", "hyenac tune", "--tuning none"],
    );
    let path = folder.write("t.json", b"{\"schema\": 2}");
    names(&failure(&mut explain(&path), 2), &[&path, "version 2", "reads 1"]);
    let text = r#"{"schema": 1, "target": "a100", "device": "A100", "driver": null, "nvrtc": null, "date": null,
                   "entries": []}"#;
    let path = folder.write("t.json", text.as_bytes());
    names(&failure(&mut explain(&path), 2), &[&path, "a100", "h200"]);
    explain("none").assert().success();

    // What is added to is looked at before a device is.
    let path = folder.write("t.json", b"[]");
    names(&failure(hyenac().args(["tune", "--out", &path]), 2), &[&path, "is no tuning database"]);
    names(&failure(hyenac().args(["tune", "--device", "cpu"]), 2), &["--device cpu", "GPU"]);
    names(&failure(hyenac().args(["tune", "--missing"]), 2), &["--out"]);
}

#[test]
fn unknown_names_list_the_known_ones() {
    names(&failure(hyenac().args(["explain", "--target", "h300"]), 2), &["h300", "h200", "a100", "b200", "cpu"]);
    let folder = Folder::new();
    let message = failure(hyenac().args(["emit", "--arch", "sm_42", "--out", &folder.text("out")]), 2);
    names(&message, &["sm_42", "sm_80", "sm_90a", "sm_100"]);
    names(&failure(hyenac().args(["run", "--weights", "w", "--variant", "hyena"]), 2), &["benchmark", "hyenadna"]);
}

#[test]
fn usage() {
    for arguments in [
        &["run"][..],
        &["emit"],
        &["dmeo"],
        &["demo", "--batch", "0"],
        &["demo", "--batch", "-1"],
        &["demo", "--seq-len", "many"],
        &["demo", "--eps", "-1e-5"],
        &["demo", "--eps", "NaN"],
        &["demo", "--shift", "inf"],
        &["demo", "-q", "-v"],
        &["bench", "--suite", "1x0"],
        &["bench", "--suite", "everything"],
        &["bench", "--repetitions", "0"],
        &["check", "--suite", "1x"],
        &["check", "--suite", "1x8", "--weights", "w.safetensors"],
    ] {
        let message = failure(hyenac().args(arguments), 2);
        assert!(message.contains("error"), "{arguments:?}: {message}");
    }
}

#[test]
fn output_that_cannot_be_written() {
    let message = failure(run(&golden("tiny_b2_l21")).args(["--output", "/nowhere/y.safetensors"]), 2);
    names(&message, &["/nowhere/y.safetensors"]);
    let message =
        failure(hyenac().args(["explain", "--device", "cpu", "--seq-len", "16", "--json", "/nowhere/x.json"]), 2);
    names(&message, &["/nowhere/x.json"]);
    let message = failure(hyenac().args(["emit", "--seq-len", "16", "--out", "/proc/nowhere"]), 2);
    names(&message, &["/proc/nowhere"]);
}

#[test]
fn a_failure_leaves_the_old_output() {
    let folder = Folder::new();
    let old = folder.write("y.safetensors", b"precious");
    let bad = folder.changed(|file| {
        file.tensors.remove("sin_freq");
    });
    failure(run(&bad).args(["--output", &old]), 2);
    assert_eq!(std::fs::read(&old).unwrap(), b"precious");
    run(&golden("tiny_b2_l21")).args(["--output", &old]).assert().success();
    let output = File::read(&old);
    assert_eq!(output.tensors.keys().collect::<Vec<_>>(), ["output"]);
    assert_eq!(
        (output.tensors["output"].dtype.as_str(), &output.tensors["output"].shape[..]),
        ("F32", &[2, 21, 16][..])
    );
    let leftovers = std::fs::read_dir(folder.path("")).unwrap().count();
    assert_eq!(leftovers, 2, "temporary files stay behind");
}

#[test]
fn bad_rules() {
    let folder = Folder::new();
    names(&failure(hyenac().args(["rules", "test", "/nowhere.rules"]), 2), &["/nowhere.rules"]);
    let path = folder.write("bad.rules", b"this is no rule\n");
    for arguments in
        [&["rules", "test", &path][..], &["explain", "--device", "cpu", "--seq-len", "16", "--rules", &path]]
    {
        names(&failure(hyenac().args(arguments), 2), &[&path]);
    }
    let message =
        failure(hyenac().args(["explain", "--device", "cpu", "--seq-len", "16", "--without", "no-such-rule-*"]), 2);
    names(&message, &["no-such-rule-*"]);
}
