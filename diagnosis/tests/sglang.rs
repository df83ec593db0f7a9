//! SGLang's failures, each from a log of its own, with the near misses that must be something else or nothing.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

use std::{fs, path::Path};

use plimsoll_diagnosis::{Case, Finding, Level, codes, findings};
use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_ingest::log::read_text;

/// Log, code, cause, direction of the first finding; `-` where there must be no error.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("floor-printed", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("floor-at-one", "model-too-big", "model_too_big", "no_effect"),
    ("refusal-bare", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("fixed-pools-above-floor", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("draft-window-empty", "empty-window", "empty_feasible_window", "no_effect"),
    ("draft-low-fraction", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("profiled-negative", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("cap-above-profile", "-", "-", "-"),
    ("load-oom", "model-too-big", "model_too_big", "no_effect"),
    ("load-repack-peak", "load-time-peak", "load_time_peak", "no_effect"),
    ("pool-refused", "neighbour-while-sizing", "neighbour_during_sizing", "lower"),
    ("draft-after-target", "draft-not-budgeted", "draft_not_budgeted", "lower"),
    ("capture-plain", "outside-pool-too-small", "graphs_or_workspace_outside_pool", "lower"),
    ("capture-workspace", "attention-workspace", "attention_workspace", "lower"),
    ("capture-triton-logits", "attention-workspace", "attention_workspace", "lower"),
    ("capture-deepep", "outside-pool-too-small", "graphs_or_workspace_outside_pool", "lower"),
    ("capture-mamba-copies", "mamba-state", "mamba_state", "lower"),
    ("prefill-indexer", "grows-with-context", "grows_with_context", "lower"),
    ("prefill-experts", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("prefill-hip-chunk", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("prompt-logprobs", "prompt-logprobs", "prompt_logprobs", "no_effect"),
    ("decode-sampler", "sampler-buffers", "sampler_buffers", "lower"),
    ("fragmentation", "fragmentation", "fragmentation", "lower"),
    ("idle-below-request", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("vision-tower", "encoder", "vision_or_audio_encoder", "lower"),
    ("others-listed", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("others-in-container", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("wrapped-figure", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("refused-with-room", "shared-memory-machine", "shared_or_unified_memory", "lower"),
    ("npu-brackets", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("request-table", "request-table", "request_table", "lower"),
    ("lora-pool", "lora-buffers", "lora_buffers", "lower"),
    ("pinned-host-pool", "host-memory", "host_memory", "no_effect"),
    ("prefill-slots", "scheduler-bug", "scheduler_bug", "no_effect"),
    ("decode-slots-alone", "pool-too-small", "pool_too_small", "raise"),
    ("request-slots", "scheduler-bug", "scheduler_bug", "no_effect"),
    ("lost-slots", "leak", "leak", "no_effect"),
    ("retraction-storm", "preemption-storm", "preemption_storm", "raise"),
    ("input-above-pool", "pool-too-small", "pool_too_small", "raise"),
    ("input-above-context", "not-memory", "not_memory", "no_effect"),
    ("hicache-reserve", "host-memory", "host_memory", "no_effect"),
    ("hicache-short", "host-memory", "host_memory", "no_effect"),
    ("hicache-killed", "host-memory", "host_memory", "no_effect"),
    ("hicache-fine", "-", "-", "-"),
    ("unbalanced", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("leftover-npu", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("restart-too-early", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("neighbour-left", "neighbour-while-sizing", "neighbour_during_sizing", "no_effect"),
    ("loading-garbage", "load-time-garbage", "load_time_garbage", "raise"),
    ("capture-illegal-access", "not-memory", "not_memory", "no_effect"),
    ("capture-on-chip", "not-memory", "not_memory", "no_effect"),
    ("capture-traceback-cut", "not-memory", "not_memory", "no_effect"),
    ("capture-log-ends", "-", "-", "-"),
    ("detokenizer-silent", "not-memory", "not_memory", "no_effect"),
    ("detokenizer-after-oom", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("import-error", "not-memory", "not_memory", "no_effect"),
    ("killed-while-loading", "host-memory", "host_memory", "no_effect"),
    ("killed-quietly", "host-memory", "host_memory", "no_effect"),
    ("killed-after-refusal", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("killed-after-days", "leak", "leak", "no_effect"),
    ("shared-memory-full", "host-memory", "host_memory", "no_effect"),
    ("driver-alone", "misleading-message", "misleading_message", "unknown"),
    ("driver-in-capture", "outside-pool-too-small", "graphs_or_workspace_outside_pool", "lower"),
    ("metal", "wrong-capacity", "wrong_or_unknown_capacity", "lower"),
    ("no-pages", "shared-memory-machine", "shared_or_unified_memory", "no_effect"),
    ("lora-silent", "lora-buffers", "lora_buffers", "unknown"),
    ("mamba-silent", "mamba-state", "mamba_state", "lower"),
    ("aiter-stops", "attention-workspace", "attention_workspace", "lower"),
    ("aiter-goes-on", "-", "-", "-"),
    ("flashinfer-overflow", "attention-workspace", "attention_workspace", "no_effect"),
    ("capture-fails-tight", "outside-pool-too-small", "graphs_or_workspace_outside_pool", "lower"),
    ("ends-without-reason", "not-memory", "not_memory", "no_effect"),
    ("host-reading", "wrong-capacity", "wrong_or_unknown_capacity", "no_effect"),
    ("profiled-negative-known-model", "weights-above-fraction", "weights_above_fraction", "raise"),
    ("beside-trainer", "shared-memory-machine", "shared_or_unified_memory", "lower"),
    ("desktop-beside-server", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("second-server-beside", "shared-memory-machine", "shared_or_unified_memory", "lower"),
    ("running-reduced", "-", "-", "-"),
];

/// The log of that name; its first line `$ …` is the command.
fn case(name: &str) -> Case {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sglang");
    let text = fs::read_to_string(folder.join(format!("{name}.log"))).unwrap();
    let (command, log) = text.strip_prefix("$ ").and_then(|t| t.split_once('\n')).unwrap();
    let launch = parse_command(LaunchInput::Text(command), &Context::default()).unwrap();
    Case { log: read_text(log), launch: Some(launch), ..Case::default() }
}

fn first(name: &str) -> Finding {
    findings(&case(name)).into_iter().next().unwrap()
}

#[test]
fn the_first_finding_is_the_answer() {
    let mut wrong = Vec::new();
    for (name, code, cause, way) in CASES {
        let found = findings(&case(name));
        let said = found.first().map_or(("none", "none", "none"), |finding| {
            (finding.code, finding.cause.name(), finding.fraction.name())
        });
        let right = if *code == "-" {
            found.iter().all(|finding| finding.level < Level::Error)
        } else {
            said == (*code, *cause, *way)
        };
        if !right {
            wrong.push(format!("{name}: {said:?} instead of {:?}", (code, cause, way)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_code_is_known_and_every_finding_says_what_it_rests_on() {
    for (name, ..) in CASES {
        for finding in findings(&case(name)) {
            assert!(codes::find(finding.code).is_some(), "{name}: {}", finding.code);
            assert!(!finding.headline.is_empty(), "{name}: {}", finding.code);
            if finding.level == Level::Error {
                assert!(!finding.evidence.is_empty(), "{name}: {}", finding.code);
            }
        }
    }
}
