//! Every scenario decides the same, byte by byte: pass by pass and with quiet ones skipped, on one thread
//! and on two, in this process and as a command. That the release build does too is `scripts/same-digests.sh`.

use crate::runs::{log, on_threads, one, runs, scenarios};
use plimsoll_core::engine::serving::Pace;
use plimsoll_replay::run::RunOptions;
use std::{collections::BTreeMap, path::Path, process::Command};

#[test]
fn taking_every_decode_pass_by_itself_writes_the_same_log() {
    let mut decisions = BTreeMap::new();
    for ((_, first), again) in runs().iter().zip(scenarios()) {
        let (_, second) = one(again, RunOptions { pace: Pace::Stepped, ..RunOptions::default() });
        let name = first.scenario.name.clone();
        assert_eq!(log(first), log(&second), "{name}");
        // And no other scenario's.
        if let Some(other) = decisions.insert(first.digests.decisions.clone(), name.clone()) {
            panic!("{other} and {name} have the same digest");
        }
    }
}

#[test]
fn two_threads_write_the_logs_of_one() {
    let files = scenarios();
    let second = on_threads(2, &files, |it| log(&one(it.clone(), RunOptions::default()).1));
    for ((_, first), second) in runs().iter().zip(second) {
        assert_eq!(log(first), second, "{}", first.scenario.name);
    }
}

/// Digests by scenario, as the command prints them.
fn digests(args: &[&str]) -> Vec<(String, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let output = command.args(["run", "--format", "jsonl"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let digests = &value["digests"];
        (text(&value["scenario"]), text(&digests["decisions"]), text(&digests["full"]))
    };
    text.lines().map(line).collect()
}

#[test]
fn the_command_on_two_threads_has_the_digests_of_this_process() {
    let printed = digests(&["--threads", "2", "scenarios"]);
    let ours = runs().iter().map(|(_, run)| {
        let digests = run.digests.clone();
        (run.scenario.name.clone(), digests.decisions, digests.full)
    });
    assert_eq!(printed, ours.collect::<Vec<_>>());
}
