//! Bad input: exit 2, the place, the value, what is allowed, a near name; and never a panic.

use super::{run, snapshot, transcript};

const QWEN: [&str; 5] = ["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B"];

fn qwen(more: &[&'static str]) -> Vec<&'static str> {
    [&QWEN, more].concat()
}

fn launch(command: &[&'static str]) -> Vec<&'static str> {
    [&["plan", "--device", "H100", "--"], command].concat()
}

fn sglang(more: &[&'static str]) -> Vec<&'static str> {
    let start = ["python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"];
    launch(&[&start, more].concat())
}

/// Arguments, and what the message has to say.
fn mistakes() -> Vec<(Vec<&'static str>, &'static [&'static str])> {
    let mut all = of_plan();
    all.extend(of_launches());
    all.extend(of_other_verbs());
    all
}

fn of_plan() -> Vec<(Vec<&'static str>, &'static [&'static str])> {
    vec![
        (vec!["plan"], &["launch command after `--`", "--model"]),
        (vec!["plan", "--device", "H10", "--model", "x"], &["--device H10", "near: H100"]),
        (vec!["plan", "--device", "RTX", "--model", "x"], &["--device RTX", "any of", "4090"]),
        (vec!["plan", "--device", "", "--model", "x"], &["--device"]),
        (
            vec!["plan", "--device", "H100", "--model", "Qwen/Qwen3-9B"],
            &["Qwen/Qwen3-9B", "near: Qwen/Qwen3-4B", "--kv-bytes-per-token"],
        ),
        (
            vec!["plan", "--device", "H100", "--model", "x", "--kv-bytes-per-token", "1KiB"],
            &["weights of x", "--weights"],
        ),
        (qwen(&["--min-margin", "2"]), &["--min-margin", "`2` has no unit", "2 GiB"]),
        (qwen(&["--others", "2 parsecs"]), &["--others", "parsecs", "GiB"]),
        (qwen(&["--others", "-1 GiB"]), &["--others"]),
        (qwen(&["--others", "200 GiB"]), &["--others 200.00 GiB", "at most 79.65 GiB"]),
        (qwen(&["--free-before-load", "81 GiB"]), &["--free-before-load 81.00 GiB", "79.65 GiB"]),
        (
            qwen(&["--free-before-load", "70 GiB", "--free-after-graphs", "71 GiB"]),
            &["--free-after-graphs 71.00 GiB", "70.00 GiB"],
        ),
        (qwen(&["--weights", "0 GiB"]), &["--weights 0 B", "above 0 B"]),
        (qwen(&["--weights", "99999999999999999999 GiB"]), &["--weights"]),
        (qwen(&["--tp", "0"]), &["--tp 0", "at least 1"]),
        (qwen(&["--tp", "3"]), &["query heads (32)", "(3)"]),
        (qwen(&["--tp", "-1"]), &["-1"]),
        (qwen(&["--tp", "eight"]), &["eight", "--tp"]),
        (qwen(&["--mem-fraction-static", "1.2"]), &["--mem-fraction-static 1.2", "at most 1"]),
        (qwen(&["--mem-fraction-static", "nan"]), &["mem-fraction-static"]),
        (qwen(&["--engine-version", "newest"]), &["--engine-version", "`newest`", "0.5.8"]),
        (qwen(&["--set", "=1"]), &["--set =1", "NAME=VALUE"]),
        (qwen(&["--set", "page-size=big"]), &["page-size", "big"]),
        (qwen(&["--from-log", "tests/none.log"]), &["--from-log tests/none.log"]),
        (qwen(&["--from-log", "Cargo.toml"]), &["Cargo.toml", "Load weight begin. avail mem="]),
        (qwen(&["--format", "xml"]), &["xml", "human", "jsonl"]),
        (qwen(&["--min-margn", "2GiB"]), &["--min-margn", "--min-margin"]),
        (vec!["plan", "--device", "H100", "--model", "tests"], &["tests: no config.json"]),
        (vec!["plan", "--device", "H100", "--model", "Cargo.toml"], &["Cargo.toml"]),
    ]
}

fn of_launches() -> Vec<(Vec<&'static str>, &'static [&'static str])> {
    vec![
        (launch(&["echo", "hello"]), &["neither SGLang nor vLLM", "vllm serve MODEL"]),
        (
            [
                &["plan", "--tp", "2"],
                &launch(&["image: vllm/vllm-openai:v0.11.0\nargs: [--model, x]"])[1..],
            ]
            .concat(),
            &["--tensor-parallel-size: cannot be put into this text"],
        ),
        (launch(&["vllm", "serve"]), &["the model is missing"]),
        (launch(&["vllm serve \"x"]), &["no end"]),
        (sglang(&["--mem-fraction-static"]), &["--mem-fraction-static"]),
        (sglang(&["--mem-fraction-static", "88"]), &["--mem-fraction-static 88", "0.88"]),
        (sglang(&["--tp", "two"]), &["--tp", "two"]),
        (sglang(&["--kv-cache-dtype", "fp9"]), &["--kv-cache-dtype", "fp9"]),
        (sglang(&["--config", "tests/none.yaml"]), &["tests/none.yaml"]),
        (
            [&["plan", "--device", "H100", "--engine", "vllm"], &sglang(&[])[3..]].concat(),
            &["--engine", "starts SGLang"],
        ),
    ]
}

fn of_other_verbs() -> Vec<(Vec<&'static str>, &'static [&'static str])> {
    const START: &str = "tests/cli/start.yaml";
    vec![
        (vec![], &["Usage: plimsoll"]),
        (vec!["plna"], &["plna", "plan"]),
        (vec!["run"], &["SCENARIO"]),
        (vec!["run", "none.yaml"], &["none.yaml"]),
        (vec!["run", "tests/vectors"], &["tests/vectors", "no scenario"]),
        (vec!["run", "Cargo.toml"], &["Cargo.toml"]),
        (vec!["run", START, "--set", "a=1"], &["`a`", "allowed", "`machine`"]),
        (vec!["run", START, "--set", "a"], &["--set"]),
        (vec!["run", START, "--set", "machine.device=H10"], &["H10", "near: H100"]),
        (vec!["run", START, "--set", "seed=-1"], &["seed", "-1"]),
        (vec!["run", START, "--log", "tests/no/x"], &["tests/no/x"]),
        (vec!["diff", "none", START], &["cannot read none"]),
        (vec!["diff", START, START], &["cannot read tests/cli/start.yaml"]),
        (vec!["schema", "pla"], &["pla", "plan"]),
        (vec!["completions", "cmd"], &["cmd", "bash"]),
        (vec!["doctor", "--gpu"], &["--gpu"]),
    ]
}

#[test]
fn every_mistake_is_named_with_its_value_and_what_is_allowed() {
    let (mut text, mut wrong) = (String::new(), Vec::new());
    for (args, says) in mistakes() {
        let shown = run(&args);
        let record = transcript(&args, &shown);
        if shown.code != 2 || !shown.stdout.is_empty() {
            wrong.push(format!("not an error:\n{record}"));
        }
        let missing = says.iter().filter(|part| !shown.stderr.contains(**part));
        wrong.extend(missing.map(|part| format!("{part:?} is missing in\n{record}")));
        text.push_str(&record);
        text.push('\n');
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    snapshot("errors", &text);
}

/// On macOS the memory names the device.
#[cfg(not(target_os = "macos"))]
#[test]
fn a_machine_without_a_gpu_needs_a_device() {
    let args = ["plan", "--model", "Qwen/Qwen3-8B"];
    let shown = run(&args);
    assert_eq!(shown.code, 2);
    snapshot("no-device", &transcript(&args, &shown));
}

/// Pieces put together without sense.
#[test]
fn no_arguments_make_it_panic() {
    let pieces = [
        "",
        "-",
        "--",
        "=",
        "\u{0}x",
        "-1",
        "0",
        "1e999",
        "NaN",
        "18446744073709551616",
        "é\u{301}",
        "--tp",
        "--set",
        "tp=99999999999",
        "--set",
        "max-total-tokens=0",
        "--mem-fraction-static",
        "0.0001",
        "--weights",
        "1 B",
        "--others",
        "79 GiB",
        "--kv-bytes-per-token",
        "16777216 TiB",
        "--free-after-graphs",
        "0 GiB",
        "--engine-version",
        "0.0.0",
        "--engine",
        "vllm",
        "--why",
        "--set",
        "context-length=18446744073709551615",
        "--set",
        "chunked-prefill-size=-1",
        "--engine-version",
        "999.999.999",
        "--set",
        "max-running-requests=18446744073709551615",
    ];
    let mut state = 0x5eed_u64;
    let mut next = |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for _ in 0..120 {
        let mut args = QWEN.to_vec();
        for _ in 0..=next(5) {
            let at = next(pieces.len());
            // A flag with the piece after it.
            args.extend(pieces.iter().skip(at).take(2).filter(|piece| !piece.contains('\u{0}')));
        }
        let shown = run(&args);
        let record = transcript(&args, &shown);
        assert!((0..=2).contains(&shown.code), "{record}");
        assert!(!shown.stderr.contains("panicked"), "{record}");
    }
}
