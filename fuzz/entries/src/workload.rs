//! Recorded workloads and benchmark commands.

use crate::{PART, assert_message, in_time, text};
use plimsoll_ingest::workload::{Format, Import, Options, Summary, import};
use plimsoll_replay::{
    scenario::{Part, Workload},
    workload::{bench, describe::describe},
};

/// A recorded workload; a first line with the name of a format and `%%` behind it says how it is read. What
/// is read strictly is read the same leniently, every index is one of a row, figures are finite, and
/// reading twice gives the same. A complaint has words and a line.
pub fn workload_trace(data: &[u8]) {
    let (options, data) = split(data);
    let strict = in_time(|| import(data, &Options { strict: true, ..options.clone() }));
    let lenient = in_time(|| import(data, &options));
    match &strict {
        Ok(strict) => assert_eq!(Some(strict), lenient.as_ref().ok(), "nothing was wrong"),
        Err(error) => assert_message(&error.to_string()),
    }
    match &lenient {
        Ok(read) => assert_trace(read),
        Err(error) => assert_message(&error.to_string()),
    }
    if let (Ok(first), Ok(again)) = (&lenient, import(data, &options)) {
        assert_eq!(first, &again, "reads otherwise a second time");
    }
}

fn split(data: &[u8]) -> (Options, &[u8]) {
    let named = Format::ALL.into_iter().find_map(|format| {
        let rest = data.strip_prefix(format.name().as_bytes())?.strip_prefix(PART.as_bytes())?;
        Some((format, rest.strip_prefix(b"\n")?))
    });
    match named {
        Some((format, rest)) => (Options { format: Some(format), ..Options::default() }, rest),
        None => (Options::default(), data),
    }
}

fn assert_trace(read: &Import) {
    let trace = &read.trace;
    assert!(!trace.rows.is_empty(), "read without a row");
    let row = |at: u32| assert!((at as usize) < trace.rows.len(), "row {at}");
    for link in &trace.links {
        row(link.row);
        row(link.on);
    }
    assert!(trace.links.is_sorted(), "links in order");
    for (at, row) in trace.rows.iter().enumerate() {
        assert!(row.input > 0 && row.output > 0, "row {at} is empty");
        assert!(
            row.history().is_none_or(|before| before < at),
            "row {at} goes on from a later one"
        );
        assert!(trace.blocks(at).iter().all(|run| run.len > 0 && run.first < 1 << 40));
    }
    assert!(trace.rows.iter().any(|row| row.at.0 == 0), "no row is the first");
    let summary = Summary::of(trace);
    assert_eq!(summary.requests, trace.rows.len() as u64);
    let figures = [summary.rate, summary.gap_cv, summary.prefix_share, Some(summary.input.mean)];
    assert!(
        figures.into_iter().flatten().all(|figure| figure.is_finite() && figure >= 0.0),
        "{summary:?}"
    );
    for dropped in &read.dropped {
        assert!(dropped.count > 0 && !dropped.lines.is_empty() && dropped.lines[0] > 0);
        assert_message(&dropped.to_string());
    }
    read.notes.iter().for_each(|note| assert_message(note));
}

/// A benchmark command: what it stands for can be drawn, and its requests have tokens.
pub fn bench_command(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match in_time(|| bench::part(text)) {
        Ok(Part::Trace(trace)) => assert!(trace.speedup > 0.0, "it never ends"),
        Ok(Part::Group(mut group)) => {
            group.requests = group.requests.min(MOST_REQUESTS);
            let workload = Workload { parts: vec![Part::Group(group)] };
            let described = in_time(|| describe(&workload, &[], 1));
            let summary = &described[0].summary;
            assert!(summary.requests > 0 && summary.output.p50 > 0, "{summary:?}");
        }
        Err(error) => assert_message(&error),
    }
}

/// Requests that are enough to find a mistake.
const MOST_REQUESTS: u64 = 200;

/// A small file of each format, also under the name of another.
pub(crate) fn traces() -> Vec<Vec<u8>> {
    macro_rules! seeds {
        ($($file:literal),+ $(,)?) => {
            vec![$(include_bytes!(concat!("../../seeds/workload_trace/", $file)).to_vec()),+]
        };
    }
    let mut seeds = seeds!(
        "mooncake.jsonl",
        "alibaba.jsonl",
        "azure.csv",
        "burstgpt.csv",
        "sharegpt.json",
        "vidur.csv",
        "llmservingsim.jsonl",
        "delta.jsonl",
        "agentic.jsonl",
        "plimsoll.jsonl",
        "vllm-bench.json",
        "sglang-bench.jsonl",
    );
    let format =
        |seed: &Vec<u8>| import(seed.as_slice(), &Options::default()).map(|read| read.trace.format);
    let named = |seed: &Vec<u8>| {
        let name = format(seed).map_or("", Format::name);
        [name.as_bytes(), PART.as_bytes(), b"\n", seed].concat()
    };
    let named: Vec<Vec<u8>> = seeds.iter().map(named).collect();
    seeds.extend(named);
    seeds
}

pub(crate) const TRACE_WORDS: &[&str] = &[
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
    "session_id",
    "delay",
    "request_id",
    "dependencies",
    "trigger",
    "dispatch",
    "completion",
    "wait_for",
    "block_size",
    "t_ns",
    "after",
    "conversations",
    "value",
    "tokens",
    "input_lens",
    "output_lens",
    "start_times",
    "Infinity",
    "NaN",
    "null",
    "-1",
    "1e400",
    "9999999999999999999",
    "0.5",
    "Timestamp,Request tokens,Response tokens",
    "2024-02-29 23:59:60",
    "\"",
    ",",
    "%%\n",
    "mooncake%%\n",
    "azure%%\n",
];

pub(crate) fn bench_commands() -> Vec<Vec<u8>> {
    [
        "python3 -m sglang.bench_serving --backend sglang --dataset-name random --num-prompts 20 \\\n --random-input-len 64 --random-range-ratio 0.5 --request-rate 4",
        "python -m sglang.bench_serving --dataset-name generated-shared-prefix --gsp-num-groups 3 --gsp-prompts-per-group 4 --gsp-num-turns 2 --gsp-group-distribution zipf",
        "vllm bench serve --model m --random-input-len 100 --random-range-ratio 0.25 --request-rate 2.5 --burstiness 0.5 --max-concurrency 3 --num-prompts 30 --ignore-eos",
        "vllm bench serve --dataset-name prefix_repetition --num-prompts 12 --prefix-repetition-num-prefixes 3 --ramp-up-strategy exponential --ramp-up-start-rps 1 --ramp-up-end-rps 9",
        "vllm bench serve --dataset-name timed_trace --dataset-path t.jsonl --temperature 0.5 --top-p 0.9",
    ]
    .map(|command| command.as_bytes().to_vec())
    .to_vec()
}

pub(crate) const BENCH_WORDS: &[&str] = &[
    "python -m sglang.bench_serving",
    "vllm bench serve",
    "--dataset-name",
    "--dataset-path",
    "random",
    "sharegpt",
    "mooncake",
    "sonnet",
    "--num-prompts",
    "--request-rate",
    "inf",
    "--burstiness",
    "--max-concurrency",
    "--random-range-ratio",
    "--gsp-system-prompt-len",
    "--gsp-zipf-alpha",
    "--ramp-up-strategy",
    "linear",
    "--extra-request-body",
    "{\"temperature\": 1}",
    "--seed",
    "0.0",
    "-1",
    "1073741824",
    "18446744073709551616",
    "'",
    "\\\n",
];
