//! Results go to stdout, everything else to stderr, and neither is coloured when piped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use predicates::prelude::*;

use crate::support::{golden, hyenac};

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hyenac"))
        .args(["explain", "--device", "cpu", "--seq-len", "16"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The reader goes before the first line is written.
    drop(child.stdout.take());
    let mut errors = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        errors += &line.unwrap();
    }
    assert!(child.wait().unwrap().success(), "{errors}");
    assert!(!errors.contains("panicked") && !errors.contains("Broken pipe"), "{errors}");
}

#[test]
fn nothing_is_coloured_when_piped() {
    let plain = || predicate::str::contains("\u{1b}").not();
    let weights = golden("tiny_b2_l21");
    let success = hyenac().args(["check", "--device", "cpu", "--weights", &weights, "-v"]).assert().success();
    success.stdout(plain()).stderr(plain());
    hyenac().args(["run", "--weights", "/nowhere"]).assert().code(2).stderr(plain());
    hyenac().args(["run", "--wieghts", "/nowhere"]).assert().code(2).stderr(plain());
}

#[test]
fn quiet_says_nothing_on_stderr() {
    let success = hyenac().args(["demo", "-q", "--seq-len", "32"]).assert().success();
    success.stderr(predicate::str::is_empty()).stdout(predicate::str::is_empty().not());
}
