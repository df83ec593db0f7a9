//! SGLang's failures, each from a log of its own, with the near misses that must be something else or nothing.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

use std::{fs, path::Path};

use plimsoll_diagnosis::{Case, Finding, Level, Value, codes, findings};
use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_ingest::log::read_text;
use proptest::prelude::*;

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
    ("prefill-of-another-rank", "activations-outside-pool", "activations_outside_pool", "lower"),
    ("client-went-away", "-", "-", "-"),
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
    ("decode-slots-not-full", "scheduler-bug", "scheduler_bug", "no_effect"),
    ("one-request-assertion", "pool-too-small", "pool_too_small", "raise"),
    ("capacity-not-printed", "wrong-capacity", "wrong_or_unknown_capacity", "no_effect"),
    ("optional-import-missing", "-", "-", "-"),
];

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sglang");
    fs::read_to_string(folder.join(format!("{name}.log"))).unwrap()
}

/// The log of that name; its first line `$ …` is the command.
fn case(name: &str) -> Case {
    let text = text(name);
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

/// Value of the first lever of that flag.
fn value(finding: &Finding, flag: &str) -> Option<String> {
    finding.help.iter().find(|lever| lever.flag == flag)?.value.clone()
}

fn number(finding: &Finding, name: &str) -> Option<Value> {
    finding.numbers.iter().find(|number| number.name == name).map(|number| number.value)
}

#[test]
fn values_follow_from_the_figures() {
    const FRACTION: &str = "--mem-fraction-static";
    // 0.6701 of 46.20 GiB are weights; the next hundredth that leaves a fiftieth for the pools.
    let floor = first("floor-printed");
    assert_eq!(value(&floor, FRACTION).as_deref(), Some("0.70"));
    assert_eq!(floor.feasible, Some((0.6701, 1.0)));
    // 826.80 MiB of 78.10 GiB are short: 0.0104, so a step of 0.02 does.
    let capture = first("capture-plain");
    assert_eq!(value(&capture, FRACTION).as_deref(), Some("0.92"));
    assert!(
        capture
            .arithmetic
            .iter()
            .any(|line| line == "1.20 GiB asked − 402.00 MiB free = 826.80 MiB short")
    );
    // (66.20 GB − 10 GiB) / 2 ranks = 27.7 GB.
    assert_eq!(value(&first("hicache-reserve"), "--hicache-size").as_deref(), Some("27"));
    // 2 GiB for 16,384 tokens; 1.40 GiB free hold 8,192 of them.
    assert_eq!(value(&first("prefill-experts"), "--chunked-prefill-size").as_deref(), Some("8192"));
    // −116,207 tokens of 70,272 B: 1 − (54.60 + 7.61) / 139.10.
    let profiled = first("profiled-negative-known-model");
    let Some(Value::Float(fraction)) = number(&profiled, "fraction_in_force") else {
        unreachable!("the model is in the catalog")
    };
    assert!((fraction - 0.5528).abs() < 0.0001, "{fraction}");
    // 79.10 − 0.59 free − 28.33 of PyTorch.
    let others = first("others-in-container");
    assert!(others.because.contains("50.18 GiB"), "{}", others.because);
}

#[test]
fn a_log_cut_anywhere_is_judged_without_panic() {
    for (name, ..) in CASES {
        let whole = text(name);
        let lines: Vec<&str> = whole.lines().collect();
        for end in 0..lines.len() {
            let log = read_text(&lines.get(..end).unwrap().join("\n"));
            let case = Case { log, launch: None, ..Case::default() };
            assert!(findings(&case).len() < 20, "{name} cut at {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_figures_are_judged_without_panic(which in 0..CASES.len(), seed in any::<u64>()) {
        let (name, ..) = CASES.get(which).unwrap();
        let mut state = seed | 1;
        let mut strange = String::new();
        for part in text(name).split_inclusive(|c: char| !c.is_ascii_digit()) {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let swapped = match (digits.is_empty(), state >> 61) {
                (true, _) | (_, 0..=3) => digits.to_owned(),
                (_, 4) => "0".to_owned(),
                (_, 5) => u64::MAX.to_string(),
                (_, 6) => i64::MAX.to_string(),
                _ => (state >> 20).to_string(),
            };
            strange.push_str(&swapped);
            strange.push_str(part.get(digits.len()..).unwrap_or_default());
        }
        let case = Case { log: read_text(&strange), launch: None, ..Case::default() };
        prop_assert!(findings(&case).len() < 20);
    }
}
