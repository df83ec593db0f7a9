//! `run --junit`: the file that CI systems read.

use super::{run, verbs::folder};
use std::fs;

const START: &str = "tests/cli/start.yaml";

#[test]
fn every_path_is_a_case() {
    let file = folder("junit").join("report.xml").display().to_string();
    let lower = "engine.flags.mem-fraction-static=0.85";
    let args = ["run", START, "tests/cli/none.yaml", "tests/vectors", "--set", lower];
    let shown = run(&[&args[..], &["--junit", &file, "--format", "json"]].concat());
    assert_eq!(shown.code, 2);
    assert!(shown.stdout.starts_with('{'), "the other format stays: {}", shown.stdout);
    let text = fs::read_to_string(&file).expect("written");
    super::snapshot("junit", &text);
    let again = run(&[&args[..], &["--junit", &file]].concat());
    assert_eq!(again.code, 2);
    assert_eq!(fs::read_to_string(&file).expect("written"), text);
}

#[test]
fn a_file_that_cannot_be_written_is_told() {
    let shown = run(&["run", START, "--junit", "tests/no-such-folder/x.xml"]);
    assert_eq!(shown.code, 2);
    assert!(shown.stderr.starts_with("error: cannot write tests/no-such-folder/x.xml: "));
}
