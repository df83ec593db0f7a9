//! Logs of vLLM and of servers that are not modelled, written anew: what the first finding says of each. Every
//! refusal has a neighbour that looks like it and is none.

#![allow(clippy::unwrap_used, reason = "a test stops where a file is missing")]

use std::{fs, path::Path};

use plimsoll_diagnosis::{Case, Direction, Finding, Level, codes, findings};
use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_ingest::log::read_text;

use Direction::{Lower, NoEffect, Raise, Unknown};
use Level::{Error, Note, Warning};

/// Log, code of the first finding, its level, what it says of the fraction.
type Row = (&'static str, &'static str, Level, Direction);

const VLLM: &[Row] = &[
    ("weights_above_fraction", "weights-above-fraction", Error, Raise),
    ("weights_above_fraction_total", "weights-above-fraction", Error, Raise),
    ("profile_peak_takes_pool", "profile-run-peak", Error, Raise),
    ("model_too_big", "model-too-big", Error, NoEffect),
    ("graph_estimate_too_large", "accounting-bug", Error, NoEffect),
    ("charged_for_others", "shared-memory-machine", Error, Raise),
    ("second_server_v0", "shared-memory-machine", Error, Raise),
    ("two_starts_at_once", "neighbour-while-sizing", Error, Raise),
    ("one_request_too_long", "pool-too-small", Error, Raise),
    ("given_pool_too_small", "pool-too-small", Error, NoEffect),
    ("one_request_fits", "healthy", Note, NoEffect),
    ("long_profile_v0", "profile-run-peak", Error, Raise),
    ("free_below_desired", "shared-memory-machine", Error, Lower),
    ("free_enough", "healthy", Note, NoEffect),
    ("free_grew", "neighbour-while-sizing", Error, NoEffect),
    ("sampler_warmup", "sampler-buffers", Error, Lower),
    ("capture_v0", "outside-pool-too-small", Error, Lower),
    ("capture_v1_lora_ends", "outside-pool-too-small", Warning, Lower),
    ("capture_lora_done", "healthy", Note, NoEffect),
    ("graphs_above_estimate", "outside-pool-too-small", Warning, Lower),
    ("graphs_below_estimate", "healthy", Note, NoEffect),
    ("state_blocks", "mamba-state", Error, Raise),
    ("profile_run_fails", "profile-run-peak", Error, NoEffect),
    ("profile_run_pieces", "fragmentation", Error, NoEffect),
    ("profile_run_moe", "moe-workspace", Error, NoEffect),
    ("encoder_profile_v1", "encoder", Error, NoEffect),
    ("encoder_worst_v0", "encoder", Error, NoEffect),
    ("encoder_worst_alive", "encoder", Warning, NoEffect),
    ("encoder_item", "encoder", Warning, NoEffect),
    ("load_fails", "model-too-big", Error, NoEffect),
    ("load_beside_others", "shared-memory-machine", Error, NoEffect),
    ("load_repack", "load-time-peak", Error, NoEffect),
    ("pool_sleep_mode", "wrong-capacity", Error, Lower),
    ("pool_unified", "shared-memory-machine", Error, Lower),
    ("serving_grows", "grows-with-context", Error, Lower),
    ("nccl_buffers", "outside-pool-too-small", Error, Lower),
    ("serving_engine_process", "activations-outside-pool", Error, Lower),
    ("serving_activations", "activations-outside-pool", Error, Lower),
    ("serving_fragmentation", "fragmentation", Error, Lower),
    ("prompt_logprobs", "prompt-logprobs", Error, NoEffect),
    ("prompt_logprobs_chunk", "prompt-logprobs", Error, NoEffect),
    ("draft_v0", "draft-not-budgeted", Error, Lower),
    ("draft_v1", "activations-outside-pool", Error, Lower),
    ("preempted_v0", "preemption-storm", Warning, Raise),
    ("preempted_metric", "preemption-storm", Warning, Raise),
    ("preempted_never", "healthy", Note, NoEffect),
    ("no_swap_space", "preemption-storm", Error, Raise),
    ("swap_refused", "host-memory", Error, NoEffect),
    ("swap_possible", "host-memory", Warning, NoEffect),
    ("workspace_locked", "moe-workspace", Error, NoEffect),
    ("segments_and_sleep", "not-memory", Error, NoEffect),
    ("hybrid_pool", "healthy", Note, NoEffect),
];

const OTHER: &[Row] = &[
    ("llama_weights", "model-too-big", Error, NoEffect),
    ("llama_compute", "outside-pool-too-small", Error, NoEffect),
    ("llama_recovered", "healthy", Warning, NoEffect),
    ("llama_prompt_cache", "host-memory", Error, NoEffect),
    ("llama_context", "pool-too-small", Error, NoEffect),
    ("llama_checkpoints", "outside-pool-too-small", Error, Unknown),
    ("ollama_host", "host-memory", Error, NoEffect),
    ("ollama_runner", "outside-pool-too-small", Error, NoEffect),
    ("trt_buffers", "outside-pool-too-small", Error, NoEffect),
    ("trt_starved", "outside-pool-too-small", Error, NoEffect),
    ("trt_greedy", "pool-oversized", Note, Lower),
    ("tgi_prefill", "profile-run-peak", Error, NoEffect),
    ("tgi_few", "misleading-message", Error, NoEffect),
    ("tgi_total", "model-too-big", Error, NoEffect),
    ("lmdeploy_blocks", "pool-too-small", Error, Raise),
    ("lmdeploy_oom", "activations-outside-pool", Error, Lower),
];

/// Nothing is said of these.
const QUIET: &[&str] = &["llama_fit", "llama_prompt_cache_fine", "trt_enough"];

fn found(folder: &str, name: &str) -> Vec<Finding> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(name);
    let log = read_text(&fs::read_to_string(path.with_extension("log")).unwrap());
    let launch = fs::read_to_string(path.with_extension("cmd"))
        .ok()
        .map(|text| parse_command(LaunchInput::Text(&text), &Context::default()).unwrap());
    findings(&Case { log, launch, ..Case::default() })
}

fn wrong(folder: &str, rows: &[Row]) -> Vec<String> {
    let judge = |(name, code, level, fraction): &Row| {
        let found = found(folder, name);
        let Some(first) = found.first() else { return Some(format!("{name}: nothing found")) };
        let said = (first.code, first.level, first.fraction);
        (said != (*code, *level, *fraction))
            .then(|| format!("{name}: {} {} {} ({})", said.0, said.1, said.2, first.headline))
    };
    rows.iter().filter_map(judge).collect()
}

#[test]
fn vllm_first_findings() {
    assert_eq!(wrong("vllm", VLLM), [""; 0]);
}

#[test]
fn first_findings_of_other_servers() {
    assert_eq!(wrong("other", OTHER), [""; 0]);
    for name in QUIET {
        assert_eq!(found("other", name), [], "{name}");
    }
}

#[test]
fn every_log_has_its_row() {
    for (folder, rows, quiet) in [("vllm", VLLM, &[][..]), ("other", OTHER, QUIET)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let known = rows.iter().any(|row| row.0 == name) || quiet.contains(&name.as_str());
            assert!(known, "{folder}/{name} is in no table");
        }
    }
}

#[test]
fn codes_belong_to_their_causes() {
    for (folder, rows) in [("vllm", VLLM), ("other", OTHER)] {
        for (name, ..) in rows {
            for finding in found(folder, name) {
                let entry = codes::find(finding.code).unwrap_or_else(|| panic!("{}", finding.code));
                assert_eq!(entry.cause, finding.cause, "{folder}/{name}: {}", finding.code);
                assert!(
                    !finding.evidence.is_empty(),
                    "{folder}/{name}: {} shows no line",
                    finding.code
                );
            }
        }
    }
}

#[test]
fn advised_values_follow_from_the_figures() {
    let lever = |name: &str, flag: &str| {
        let first = found("vllm", name).remove(0);
        let help = first.help.into_iter().find(|lever| lever.flag == flag);
        let help = help.unwrap_or_else(|| panic!("{name} has no {flag}"));
        (help.value.unwrap_or_default(), help.gives.unwrap_or_default())
    };
    let utilization = "--gpu-memory-utilization";
    // 0.85 + 1.105 / 79.185 = 0.864, to the next hundredth.
    let (value, gives) = lever("weights_above_fraction_total", utilization);
    assert_eq!((&*value, gives.contains("1.58 GiB more")), ("0.87", true), "{gives}");
    // 0.8 + 2.01 / 47.495 = 0.8423.
    assert_eq!(lever("one_request_too_long", utilization).0, "0.85");
    assert_eq!(lever("one_request_too_long", "--max-model-len").0, "49152");
    // 41.295 / 79.195 = 0.521, half a hundredth to spare.
    assert_eq!(lever("free_below_desired", utilization).0, "0.51");
    // 512 rows asked 878.91 MiB of 310.25 MiB free: 90 rows with half to spare, 64 as a power of two.
    assert_eq!(lever("sampler_warmup", "--max-num-seqs").0, "64");
    // 3.5 GiB more than weights, pool, peak and graphs: 0.95 − 3.51 / 79.19 = 0.905.
    assert_eq!(lever("serving_grows", utilization).0, "0.90");
    // 1.1 of 1.5 GiB were free: half the batch fits.
    assert_eq!(lever("serving_activations", "--max-num-batched-tokens").0, "8192");
    assert_eq!(lever("state_blocks", "--max-num-seqs").0, "180");
}
