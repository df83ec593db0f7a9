//! Measured times, and profiles that were fitted on them.

use crate::{assert_message, in_time, line_count, text};
use plimsoll_ingest::measured::{MAX_REQUESTS, MAX_TOKENS, MeasuredError, requests, windows};
use plimsoll_replay::profile::Profile;

/// A client's file or a log. What is read is in order, and times run forward; a broken line is there.
pub fn measured_times(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for window in in_time(|| windows(text)) {
        assert!((1..=line_count(text) as u64).contains(&window.line), "line {}", window.line);
        assert!(window.running >= 1.0 && window.output_per_second > 0.0, "{window:?}");
    }
    match in_time(|| requests(text)) {
        Ok(read) => {
            assert!((1..=MAX_REQUESTS).contains(&read.list.len()), "{} requests", read.list.len());
            assert!(read.list.is_sorted_by_key(|request| request.arrival), "out of order");
            for request in &read.list {
                assert!(request.first <= request.last, "{request:?}");
                assert!((1..=MAX_TOKENS).contains(&request.input), "{request:?}");
                assert!((1..=MAX_TOKENS).contains(&request.output), "{request:?}");
            }
        }
        Err(error) => {
            assert_message(&error.to_string());
            if let MeasuredError::Line { line, .. } = error {
                assert!(line <= line_count(text) as u64, "line {line}");
            }
        }
    }
}

/// A profile. What is read can be written and read again; mistakes have a place.
pub fn profile(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match in_time(|| Profile::parse("profile.yaml", text)) {
        Ok(profile) => {
            let again = profile.to_text().map(|text| Profile::parse("again.yaml", &text));
            assert!(matches!(&again, Ok(Ok(again)) if *again == profile), "{again:?}");
        }
        Err(problems) => {
            assert!(!problems.list.is_empty(), "no profile and no problem");
            assert!(!problems.render().is_empty(), "nothing is said");
        }
    }
}

/// Each form of times.
pub(crate) fn times() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../seeds/measured_times/rows.jsonl").to_vec(),
        include_bytes!("../../seeds/measured_times/vllm.json").to_vec(),
        include_bytes!("../../seeds/measured_times/sglang.jsonl").to_vec(),
        include_bytes!("../../seeds/measured_times/server.log").to_vec(),
    ]
}

pub(crate) const TIMES_WORDS: &[&str] = &[
    "\"input_toks\": ",
    "\"output_toks\": ",
    "\"arrival_time\": ",
    "\"queued_ts\": ",
    "\"first_token_ts\": ",
    "\"last_token_ts\": ",
    "\"ttft\": ",
    "\"latency\": ",
    "\"input_lens\": [",
    "\"output_lens\": [",
    "\"ttfts\": [",
    "\"itls\": [[",
    "\"start_times\": [",
    "\"request_rate\": \"inf\"",
    "\"max_concurrency\": ",
    "1e300",
    "-1",
    "null",
    "Decode batch",
    "#running-req: ",
    "gen throughput (token/s): ",
    "Avg prompt throughput: ",
    "Running: ",
];

/// A profile with every key.
pub(crate) fn profiles() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../seeds/profile/llama.yaml").to_vec()]
}

pub(crate) const PROFILE_WORDS: &[&str] = &[
    "schema: plimsoll.profile/1",
    "holds_for:",
    "time:",
    "- name: step_ns",
    "matmul_ppm",
    "value: ",
    "basis: fitted",
    "basis: assumed",
    "deviation_ppm: ",
    "memory:",
    "graph_memory",
    "sources:",
    "residual:",
    "18446744073709551615",
    "-1",
    "null",
];
