//! The door for host programs: the same answers as the binary's, and calls that do not see each other.

use plimsoll::{Answer, Call, Stop, invoke};
use std::{path::Path, process::Command, sync::Barrier, thread};

const START: &str = "tests/cli/start.yaml";
const LOG: &str = "docs/samples/kimi-k2.5-0.93.log";

/// The binary, in the environment of this test: the two doors then read the same one.
fn binary(args: &[&str]) -> Answer {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(args)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("the binary runs");
    Answer {
        code: u8::try_from(output.status.code().expect("no signal")).expect("a code"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

#[test]
fn both_doors_answer_alike() {
    let cases: [(u8, &[&str]); 12] = [
        (0, &["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B"]),
        (0, &["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B", "--format", "json"]),
        (2, &["plan", "--device", "H1000", "--model", "Qwen/Qwen3-8B"]),
        (0, &["run", START, START, "--threads", "2"]),
        (1, &["run", START, "--set", "engine.flags.mem-fraction-static=0.85"]),
        (2, &["run", "tests/cli/none.yaml", START, "tests/vectors"]),
        (1, &["diagnose", LOG]),
        (2, &["run"]),
        (2, &["rum"]),
        (0, &["--version"]),
        (0, &["run", "--help"]),
        (2, &["plan", "--format", "sarif"]),
    ];
    for (code, args) in cases {
        let answer = invoke(args);
        assert_eq!(answer, binary(args), "{args:?}");
        assert_eq!(answer.code, code, "{args:?}");
    }
}

#[test]
fn calls_at_the_same_time_do_not_mix() {
    // One writes to stdout alone, one to stderr alone, one to both.
    let asked: [&[&str]; 3] = [
        &["run", START, START, "--threads", "2"],
        &["run", "tests/cli/none.yaml"],
        &["run", "tests/vectors", START],
    ];
    let alone = asked.map(invoke);
    let barrier = Barrier::new(asked.len() * 2);
    thread::scope(|scope| {
        for turn in 0..asked.len() * 2 {
            let (args, alone, barrier) = (asked[turn % 3], &alone[turn % 3], &barrier);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..3 {
                    assert_eq!(invoke(args), *alone, "{args:?}");
                }
            });
        }
    });
}

#[test]
fn stdin_is_what_the_host_gives() {
    let text = std::fs::read(LOG).expect("the sample");
    let given = Call::new(["diagnose", "--format", "json"]).stdin(text).answer();
    assert_eq!((given.code, given.stderr.as_str()), (1, ""));
    let file = invoke(["diagnose", LOG, "--format", "json"]);
    assert_eq!(given.stdout.replace("<stdin>", LOG), file.stdout);
    let none = invoke(["diagnose"]);
    assert_eq!(none.code, 2);
    assert!(none.stderr.starts_with("error: give a log"), "{}", none.stderr);
}

#[test]
fn a_scenario_can_be_a_text() {
    let text = std::fs::read(START).expect("the scenario");
    let args = ["run", "-", "--format", "json"];
    let given = Call::new(args).stdin(text).answer();
    assert_eq!(given, invoke(["run", START, "--format", "json"]));
    let broken = Call::new(args).stdin(*b"name: x\nseed: -1\n").answer();
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.contains("<stdin>:2:7"), "{}", broken.stderr);
    let none = invoke(args);
    assert_eq!(none.code, 2);
}

/// A recording keeps the text, though stdin can be read only once.
#[test]
fn a_run_of_stdin_can_be_recorded() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("invoke-stdin.jsonl");
    let name = file.display().to_string();
    let text = std::fs::read(START).expect("the scenario");
    assert_eq!(Call::new(["run", "-", "--record", &name]).stdin(text).answer().code, 0);
    let again = invoke(["replay", &name]);
    assert_eq!(again.code, 0, "{again:?}");
}

#[test]
fn the_host_can_end_a_call() {
    let stop = Stop::default();
    let call = Call::new(["run", "scenarios/founding/margin-0.93.yaml"]);
    stop.ask();
    let answer = call.until(stop).answer();
    assert_eq!((answer.code, answer.stderr.as_str()), (130, "interrupted\n"));
    let stop = Stop::default();
    stop.ask();
    let answer = Call::new(["diagnose", LOG]).until(stop).answer();
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.ends_with("interrupted\n"), "{}", answer.stderr);
}
