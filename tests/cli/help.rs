//! Help texts are part of the interface: a change shows as a snapshot's difference.

use crate::support::{hyenac, stdout};

fn help(name: &str, arguments: &[&str]) {
    let text = stdout(hyenac().args(arguments).arg("--help").env("COLUMNS", "100"));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "a line of {name} is longer than 100 columns:\n{text}"
    );
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/cli");
    insta::with_settings!({ snapshot_path => folder, prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(format!("help-{name}"), text);
    });
}

#[test]
fn top() {
    help("hyenac", &[]);
}

#[test]
fn of_each_subcommand() {
    for name in ["demo", "run", "check", "bench", "tune", "explain", "emit", "rules"] {
        help(name, &[name]);
    }
    help("rules-list", &["rules", "list"]);
    help("rules-test", &["rules", "test"]);
}

#[test]
fn version() {
    assert_eq!(stdout(hyenac().arg("--version")), format!("hyenac {}\n", env!("CARGO_PKG_VERSION")));
}
