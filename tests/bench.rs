//! `bench` and `chat`: a tiny model in the process, and behind a real socket.

use crate::{
    cli::schema_check::check,
    serve::{
        Server,
        files::{Gguf, Scratch},
        model, plimsoll, spread,
    },
};
use plimsoll::{Call, Stop, invoke};
use serde_json::Value;
use std::{
    io::Write as _,
    process::{Output, Stdio},
    thread,
    time::Duration,
};

/// Flags of a start that is the same on every machine.
const ENGINE: [&str; 6] = ["--threads", "1", "--page-size", "4", "--max-total-tokens", "512"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    let said = text(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// `bench --format json` with an engine in the process: its result, which is as its schema says.
fn bench(model: &str, code: i32, flags: &[&str]) -> Value {
    let args = [&["bench", "--model-path", model, "--format", "json"], &ENGINE[..], flags].concat();
    checked(&plimsoll(&args).output().unwrap(), code)
}

fn checked(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    let result = json(output);
    let schema = json(&plimsoll(&["schema", "bench"]).output().unwrap());
    assert_eq!(check(&schema, &result), Vec::<String>::new(), "{result:#}");
    result
}

/// Of equal lengths, all numbers are known.
#[test]
fn a_closed_loop_is_measured_on_both_sides_and_decided_again() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let log = scratch.0.join("bench.log").display().to_string();
    let flags = [
        &["--num-prompts", "12", "--input-len", "12", "--shared-prefix-len", "8"][..],
        &["--output-len", "6", "--max-concurrency", "3", "--record", &log],
    ];
    let result = bench(&model, 0, &flags.concat());
    assert_eq!((&result["verdict"], &result["requests"]), (&"completed".into(), &12.into()));
    let (outside, inside) = (&result["metrics"], &result["engine"]["metrics"]);
    for metrics in [outside, inside] {
        assert_eq!(metrics["finished_requests"], 12);
        assert_eq!(metrics["input_tokens"], 240);
        assert_eq!(metrics["output_tokens"], 72);
        assert!(metrics["ttft_p99_ns"].as_u64() > Some(0), "{metrics}");
        assert!(metrics["e2e_mean_ns"].as_u64() > metrics["ttft_mean_ns"].as_u64());
    }
    // Two pages of the prefix are found by every request that comes after the first has its own.
    let cached = outside["cached_tokens"].as_u64().unwrap();
    assert!((9 * 8..=11 * 8).contains(&cached), "{cached}");
    assert_eq!(result["engine"]["cached_tokens"], cached);
    assert!(inside["running_max"].as_u64() <= Some(3), "three connections");
    // What a client cannot see is not there; the engine has it.
    for name in ["pool_usage_peak_ppm", "queue_time_mean_ns", "retractions", "running_max"] {
        assert!(outside[name].is_null() && !inside[name].is_null(), "{name}");
    }
    let share = result["engine"]["scheduler_share_ppm"].as_u64().unwrap();
    assert!(share > 0 && result["engine"]["loop_time_ns"].as_u64() > Some(0));
    let again = plimsoll(&["replay", &log]).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
}

#[test]
fn an_offline_batch_fills_the_engine_and_has_every_form() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let flags = [
        &["--max-running-requests", "4", "--num-prompts", "10"][..],
        &["--input-len", "9", "--output-len", "12"],
    ]
    .concat();
    let result = bench(&model, 0, &flags);
    assert_eq!(result["engine"]["metrics"]["running_max"], 4);
    assert_eq!(result["metrics"]["output_tokens"], 120);
    let shown = |format: &str| {
        let args =
            [&["bench", "--model-path", &model, "--format", format], &ENGINE[..], &flags].concat();
        let output = plimsoll(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let human = shown("human");
    for part in ["completed: tiny in this process", "10 of 10 requests", "TTFT", "of a step"] {
        assert!(human.contains(part), "{part}: {human}");
    }
    assert!(human.lines().count() < 40 && human.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(shown("jsonl").lines().count(), 1);
    let csv = shown("csv");
    assert!(csv.starts_with("metric,client,engine\n"), "{csv}");
    assert!(csv.contains("\noutput_tokens,120,120\n"), "{csv}");
    assert!(csv.contains("\nretractions,,0\n"), "{csv}");
    assert!(shown("md").contains("| output_tokens"));
}

/// Later turns find what was said before, the answers that were really made among it.
#[test]
fn conversations_go_on_with_the_answers_that_were_made() {
    let scratch = Scratch::new();
    let command = "python -m sglang.bench_serving --dataset-name generated-shared-prefix \
                   --gsp-num-groups 2 --gsp-prompts-per-group 2 --gsp-system-prompt-len 6 \
                   --gsp-question-len 4 --gsp-output-len 4 --gsp-num-turns 3";
    let model = model(&scratch);
    let args = ["bench", "--model-path", &model, "--format", "json", "--page-size", "1"];
    let more = ["--threads", "1", "--max-total-tokens", "512", "--workload", command];
    let result = checked(&plimsoll(&[&args[..], &more].concat()).output().unwrap(), 0);
    assert_eq!(result["metrics"]["finished_requests"], 12);
    // A second turn goes on after 14 tokens, a third after 22; the last token of each answer has no keys yet.
    let cached = result["metrics"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 4 * (13 + 21), "{cached}");
}

#[test]
fn requests_that_fail_are_counted_and_the_code_says_so() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let flags = ["--num-prompts", "3", "--input-len", "80", "--output-len", "4"];
    let result = bench(&model, 1, &flags);
    assert_eq!(result["verdict"], "failed");
    assert_eq!(result["metrics"]["refused_requests"], 3);
    assert_eq!(result["failures"][0]["reason"], "prompt_too_long");
    assert_eq!(result["failures"][0]["count"], 3);
    assert_eq!(result["metrics"]["ttft_mean_ns"], Value::Null);
}

#[test]
fn bad_flags_are_refused_before_anything_is_loaded() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let model = model.as_str();
    let with = |flags: &[&'static str]| {
        let args = [&["bench", "--model-path", model][..], flags].concat();
        (args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>(), 2)
    };
    let plain = |args: &[&str], code| (args.iter().map(|arg| (*arg).to_owned()).collect(), code);
    let none = scratch.0.join("none.gguf").display().to_string();
    for (args, code) in [
        with(&["--base-url", "http://127.0.0.1:1"]),
        with(&["--workload", "chat-short", "--input-len", "5"]),
        with(&["--workload", "chat-shot"]),
        with(&["--request-rate", "fast"]),
        with(&["--num-prompts", "0"]),
        with(&["--model-name", "x"]),
        with(&["--format", "sarif"]),
        plain(&["bench"], 2),
        plain(&["bench", "--page-size", "4"], 2),
        plain(&["bench", "--model-path", &none], 2),
        plain(&["bench", "--base-url", "ftp://x"], 2),
        plain(&["bench", "--base-url", "http://127.0.0.1:1", "--record", "x"], 2),
        plain(&["bench", "--base-url", "http://127.0.0.1:1", "--token-ids", "9..3"], 2),
        plain(&["bench", "--base-url", "http://127.0.0.1:1"], 3),
        plain(&["chat"], 2),
        plain(&["chat", "--model-path", &none], 2),
        plain(&["chat", "--model-path", model, "--temperature", "3"], 2),
        plain(&["chat", "--model-path", model, "--format", "json"], 2),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = plimsoll(&args).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("error: ") && output.stdout.is_empty(), "{args:?}: {said}");
    }
}

#[test]
fn a_server_is_measured_from_outside() {
    let scratch = Scratch::new();
    let server = Server::start(&model(&scratch), &["--max-total-tokens", "512"]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let online = |flags: &[&str]| {
        let args = [&["bench", "--base-url", &url, "--format", "json"][..], flags].concat();
        plimsoll(&args).output().unwrap()
    };
    let load = ["--num-prompts", "10", "--max-concurrency", "4", "--output-len", "5"];
    let ids = ["--input-len", "10", "--shared-prefix-len", "8", "--token-ids", "0..250"];
    let result = checked(&online(&[&load[..], &ids].concat()), 0);
    let metrics = &result["metrics"];
    assert_eq!((&result["model"], &result["engine"]), (&"tiny".into(), &Value::Null));
    assert_eq!(
        (&metrics["finished_requests"], &metrics["output_tokens"]),
        (&10.into(), &50.into())
    );
    assert!(metrics["itl_p50_ns"].as_u64() > Some(0) && metrics["pool_usage_mean_ppm"].is_null());
    assert!(metrics["cached_tokens"].as_u64() >= Some(6 * 8), "{metrics}");
    assert_eq!(result["notes"].as_array().map(Vec::len), Some(0), "tokens as they were meant");
    let words =
        checked(&online(&[&load[..], &["--input-len", "6", "--prompt-as", "text"]].concat()), 0);
    assert_eq!(words["metrics"]["finished_requests"], 10);
    // Words of this vocabulary are several tokens each.
    assert!(words["notes"][0].as_str().unwrap().contains("the server counts"), "{words}");
    let wrong =
        checked(&online(&[&load[..], &["--input-len", "70", "--token-ids", "0..250"]].concat()), 1);
    assert_eq!(wrong["failures"][0]["reason"], "status_413");
    assert_eq!(server.drain().code(), Some(0));
}

#[test]
fn a_server_that_goes_ends_the_load_with_what_was_measured() {
    let scratch = Scratch::new();
    let server = Server::start(&model(&scratch), &["--max-total-tokens", "512"]);
    let url = format!("http://127.0.0.1:{}", server.port);
    // Minutes of load.
    let args = ["bench", "--base-url", &url, "--format", "json", "--num-prompts", "10000"];
    let more = ["--request-rate", "50", "--input-len", "6", "--output-len", "2"];
    let mut command = plimsoll(&[&args[..], &more, &["--token-ids", "0..250"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Until it has been at work.
    while !server.ask("GET", "/metrics", "").1.lines().any(|line| {
        line.contains("num_requests_total") && !line.starts_with('#') && !line.ends_with(" 0")
    }) {
        thread::sleep(Duration::from_millis(20));
    }
    drop(server);
    let result = checked(&child.wait_with_output().unwrap(), 3);
    assert_eq!(result["verdict"], "lost");
    assert!(result["metrics"]["arrived_requests"].as_u64() > Some(0));
}

#[test]
fn a_host_program_has_bench_and_chat_too() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let load = ["--num-prompts", "4", "--input-len", "6", "--output-len", "3"];
    let args =
        [&["bench", "--model-path", &model, "--format", "json"], &ENGINE[..], &load].concat();
    let answer = invoke(&args);
    assert_eq!((answer.code, answer.stderr.as_str()), (0, ""));
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(result["metrics"]["output_tokens"], 12);
    let stop = Stop::default();
    stop.ask();
    let ended = Call::new(&args).until(stop).answer();
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(result["verdict"], "interrupted");
    let talk = talking(&model, &["--max-tokens", "8"]);
    let told = Call::new(&talk).stdin(*b"ab\n\nba").answer();
    assert_eq!(told.code, 0, "{}", told.stderr);
    let mut child = plimsoll(&talk);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"ab\n\nba").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), told.stdout, "both doors");
}

fn talking<'a>(model: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["chat", "--model-path", model, "--temperature", "0"], &ENGINE[..], flags].concat()
}

fn said(model: &str, flags: &[&str]) -> (String, String) {
    let output = plimsoll(&talking(model, flags)).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_model_without_a_template_goes_on_with_a_text() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let (first, notes) = said(&model, &["--prompt", "ab ab", "--max-tokens", "8"]);
    assert!(notes.contains("no chat template") && notes.contains("tokens/s"), "{notes}");
    assert!(first.len() > 1 && first.ends_with('\n'), "{first:?}");
    // Lines of stdin are answered one by one, and into a file as well.
    let (second, _) = said(&model, &["--prompt", "ba", "--max-tokens", "8"]);
    let file = scratch.0.join("said.txt").display().to_string();
    let args = talking(&model, &["--max-tokens", "8", "--output", &file]);
    let told = Call::new(args).stdin(*b"ab ab\nba\n").answer();
    assert_eq!((told.code, told.stdout.as_str()), (0, ""), "{}", told.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{first}{second}"));
}

#[test]
fn a_conversation_keeps_its_turns_until_the_context_is_full() {
    let scratch = Scratch::new();
    let mut file = Gguf::new("llama");
    spread(&mut file);
    let template = "{% for m in messages %}{{ m.role[:1] }}{{ m.content }};{% endfor %}a";
    file.texts.push(("tokenizer.chat_template".to_owned(), template.to_owned()));
    let model = scratch.file("talks.gguf", file.bytes()).display().to_string();
    let args = talking(&model, &["--system", "be", "--max-tokens", "6"]);
    // Each turn takes about ten tokens of 64.
    let questions = "abc\n".repeat(12);
    let told = Call::new(args).stdin(questions.into_bytes()).answer();
    assert_eq!(told.code, 0, "{}", told.stderr);
    let turns: Vec<&str> = told.stderr.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(turns.len(), 12, "{}", told.stderr);
    assert!(turns[0].contains("prompt 9, 0 of them cached"), "sbe;uabc;a: {}", turns[0]);
    assert!(turns[1..].iter().any(|line| !line.contains(" 0 of them cached")), "{turns:?}");
    assert!(told.stderr.contains("the oldest question"), "{}", told.stderr);
}
