//! `workload`, and runs whose workload stands on the command line.

use super::{run, schema_check::check, snapshot, transcript, verbs::folder};
use serde_json::Value;
use std::fs;

const DATA: &str = "scenarios/workloads/data/";
const TURNS: &str = "scenarios/workloads/turns-outputs-cached-0.5.23.yaml";

fn json(args: &[&str]) -> Value {
    let shown = run(&[&["workload", "--format", "json"][..], args].concat());
    assert_eq!(shown.code, 0, "{args:?}: {}", shown.stderr);
    let value = serde_json::from_str(&shown.stdout).expect("JSON");
    let schema = serde_json::from_str(&run(&["schema", "workload"]).stdout).expect("JSON");
    assert_eq!(check(&schema, &value), Vec::<String>::new(), "{args:?}");
    value
}

#[test]
fn every_kind_of_workload_is_described() {
    for file in fs::read_dir(super::root().join(DATA)).expect("data") {
        let name = file.expect("a file").file_name();
        let path = format!("{DATA}{}", name.to_string_lossy());
        let part = &json(&[&path])["parts"][0];
        // The names of the files say their format.
        let format = part["file"]["format"].as_str().expect("a format");
        assert!(path.contains(format), "{path} is read as {format}");
    }
    for name in plimsoll_replay::workload::presets::NAMES {
        assert_eq!(json(&[name, "--seed", "3"])["parts"][0]["name"], *name);
    }
    let command = "vllm bench serve --num-prompts 50 --request-rate 5 --random-prefix-len 30";
    assert_eq!(json(&[command])["parts"][0]["requests"], 50);
    let parts = json(&["scenarios/workloads/preset-and-trace.yaml"]);
    assert_eq!(parts["parts"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_description_fits_on_a_screen() {
    let mut text = String::new();
    for args in [
        &["workload", "list"][..],
        &["workload", "code-azure"],
        &["workload", "scenarios/workloads/data/office.burstgpt.csv", "--smear-arrivals"],
        &["workload", "scenarios/workloads/data/sessions.mooncake-delta.jsonl", "--format", "csv"],
        &["workload", TURNS, "--format", "md"],
    ] {
        let shown = run(args);
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        text.push_str(&transcript(args, &shown));
        text.push('\n');
    }
    snapshot("workload", &text);
}

#[test]
fn mistakes_are_named() {
    let bad = folder("workload").join("bad.csv");
    fs::write(&bad, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,x,5\n")
        .expect("written");
    let bad = bad.display().to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["workload", "chat-shrot"], "did you mean `chat-short`?"),
        (&["workload", "Cargo.toml"], "shows no format that is known"),
        (&["workload", &bad, "--strict-input"], "line 3, column 3: `num_prefill_tokens` is `x`"),
        (&["workload", "vllm bench serve --sed 4"], "did you mean `--seed`?"),
        (&["workload", &bad, "--input-format", "azure"], "needs a column `TIMESTAMP`"),
        (&["run", TURNS, "--workload", &bad, "--strict-input"], "line 3, column 3"),
        (
            &["run", TURNS, "--bench", "vllm bench serve --random-range-ratio 2"],
            "`--random-range-ratio` cannot be `2`",
        ),
    ];
    for (args, part) in cases {
        let shown = run(args);
        assert_eq!((shown.code, shown.stdout.as_str()), (2, ""), "{args:?}");
        assert!(shown.stderr.contains(part), "{args:?}: {}", shown.stderr);
    }
    assert_eq!(run(&["workload", &bad]).code, 0, "a row is left out");
}

#[test]
fn a_workload_on_the_command_line_is_recorded_and_run_again() {
    let folder = folder("workload-again");
    let recording = folder.join("run.jsonl").display().to_string();
    let trace = folder.join("rows.csv");
    let rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,50,5\n1,60,6\n";
    fs::write(&trace, rows).expect("written");
    let file = trace.display().to_string();
    let expect = ["--set", "expect={outcome: finished, finished_requests: 2}"];
    let args = [&["run", TURNS, "--workload", &file, "--record", &recording][..], &expect].concat();
    let first = run(&args);
    assert_eq!(first.code, 0, "{}", first.stdout);
    assert!(first.stderr.contains("rows.csv (vidur): 2 requests in 1.0 s"), "{}", first.stderr);
    let again = run(&["replay", &recording]);
    assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);
    fs::write(&trace, format!("{rows}2,70,7\n")).expect("written");
    let other = run(&["replay", &recording]);
    assert_eq!(other.code, 2);
    assert!(other.stderr.contains("not what it was when the run was recorded"), "{}", other.stderr);
    let bench = "vllm bench serve --num-prompts 2 --random-input-len 50 --random-output-len 5";
    let bench = run(&[&["run", TURNS, "--bench", bench][..], &expect].concat());
    assert_eq!(bench.code, 0, "{}{}", bench.stdout, bench.stderr);
}
