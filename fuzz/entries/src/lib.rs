//! One function a reader of foreign text: it reads the bytes and asserts what must hold of the result.
//!
//! The fuzz targets and the smoke test inside `cargo test` call the same functions. "No panic" is the
//! least of it: errors carry a place that exists, what was read can be written and read again, edges
//! of intervals are in order, and no input takes long.

mod catalog;
mod http;
mod launch;
mod logs;
mod measured;
mod memory;
mod model;
pub mod mutate;
mod plan;
mod scenario;
pub mod seeds;
mod watch;
mod workload;

pub use catalog::{device_file, model_entry};
pub use http::http_body;
pub use launch::{launch_argv, launch_config, launch_text};
pub use logs::{decision_log, nvidia_smi, server_log};
pub use measured::{measured_times, profile};
pub use memory::{alloc_conf, memory_snapshot};
pub use model::{gguf, model_config, safetensors};
pub use plan::plan;
pub use scenario::scenario;
pub use watch::{server_page, watch_recording};
pub use workload::{bench_command, workload_trace};

use plimsoll_core::figure::Estimate;
use std::time::{Duration, Instant};

/// The separator line between the parts of an input that has several.
pub const PART: &str = "%%";
/// Longest that one input may take. Generous, for unoptimised builds on busy machines; what it is
/// to catch (an endless loop, a square of the input's length) takes far longer.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A reader, with what its fuzzing starts from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its function, its fuzz target and its folder of seeds.
    pub name: &'static str,
    /// Reads one input; panics when a property does not hold.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that its format knows.
    pub words: &'static [&'static str],
}

/// Every target, sorted by name.
pub const TARGETS: &[Target] = &[
    Target {
        name: "alloc_conf",
        run: alloc_conf,
        seeds: seeds::alloc_conf,
        words: seeds::ALLOC_WORDS,
    },
    Target {
        name: "bench_command",
        run: bench_command,
        seeds: workload::bench_commands,
        words: workload::BENCH_WORDS,
    },
    Target {
        name: "decision_log",
        run: decision_log,
        seeds: seeds::decision_log,
        words: seeds::LOG_WORDS,
    },
    Target {
        name: "device_file",
        run: device_file,
        seeds: seeds::device_file,
        words: seeds::DEVICE_WORDS,
    },
    Target { name: "gguf", run: gguf, seeds: seeds::gguf, words: seeds::GGUF_WORDS },
    Target { name: "http_body", run: http_body, seeds: http::bodies, words: http::BODY_WORDS },
    Target {
        name: "launch_argv",
        run: launch_argv,
        seeds: seeds::launch_argv,
        words: seeds::LAUNCH_WORDS,
    },
    Target {
        name: "launch_config",
        run: launch_config,
        seeds: seeds::launch_config,
        words: seeds::FLAG_WORDS,
    },
    Target {
        name: "launch_text",
        run: launch_text,
        seeds: seeds::launch_text,
        words: seeds::LAUNCH_WORDS,
    },
    Target {
        name: "measured_times",
        run: measured_times,
        seeds: measured::times,
        words: measured::TIMES_WORDS,
    },
    Target {
        name: "memory_snapshot",
        run: memory_snapshot,
        seeds: memory::snapshots,
        words: seeds::SNAPSHOT_WORDS,
    },
    Target {
        name: "model_config",
        run: model_config,
        seeds: seeds::model_config,
        words: seeds::MODEL_WORDS,
    },
    Target {
        name: "model_entry",
        run: model_entry,
        seeds: seeds::model_entry,
        words: seeds::MODEL_WORDS,
    },
    Target {
        name: "nvidia_smi",
        run: nvidia_smi,
        seeds: seeds::nvidia_smi,
        words: seeds::SMI_WORDS,
    },
    Target { name: "plan", run: plan, seeds: seeds::plan, words: seeds::LAUNCH_WORDS },
    Target {
        name: "profile",
        run: profile,
        seeds: measured::profiles,
        words: measured::PROFILE_WORDS,
    },
    Target {
        name: "safetensors",
        run: safetensors,
        seeds: seeds::safetensors,
        words: seeds::TENSOR_WORDS,
    },
    Target {
        name: "scenario",
        run: scenario,
        seeds: seeds::scenario,
        words: seeds::SCENARIO_WORDS,
    },
    Target {
        name: "server_log",
        run: server_log,
        seeds: seeds::server_log,
        words: seeds::SERVER_WORDS,
    },
    Target { name: "server_page", run: server_page, seeds: watch::pages, words: watch::PAGE_WORDS },
    Target {
        name: "watch_recording",
        run: watch_recording,
        seeds: watch::recordings,
        words: watch::RECORDING_WORDS,
    },
    Target {
        name: "workload_trace",
        run: workload_trace,
        seeds: workload::traces,
        words: workload::TRACE_WORDS,
    },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs `read` and asserts that it ends in time.
fn in_time<T>(read: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = read();
    let took = start.elapsed();
    assert!(took < TIME_LIMIT, "took {took:?}; allowed: {TIME_LIMIT:?}");
    result
}

/// The bytes as text; the readers of text are given text only.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// The two sides of the first separator line; the second is empty without one.
fn parts(text: &str) -> (&str, &str) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches(['\r', '\n']) == PART {
            return (&text[..at], &text[at + line.len()..]);
        }
        at += line.len();
    }
    (text, "")
}

/// Lines of a text as an editor counts them: one more than there are line ends.
fn line_count(text: &str) -> usize {
    text.split('\n').count()
}

/// A message: not empty, and without control characters, which would move a terminal's cursor.
fn assert_message(message: &str) {
    assert!(!message.trim().is_empty(), "an empty message");
    let control = message.chars().find(|c| c.is_control());
    assert!(control.is_none(), "the message holds {control:?}: {message:?}");
}

fn assert_in_order(what: &str, estimate: Estimate) {
    let Estimate { low, mid, high } = estimate;
    assert!(low <= mid && mid <= high, "{what}: {low:?} {mid:?} {high:?} are out of order");
}
