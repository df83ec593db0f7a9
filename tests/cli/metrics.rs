//! Metrics and the engine's own log of a run, as the binary shows them.

use super::{run, schema_check::check, verbs::folder};
use plimsoll_ingest::log::start_figures;
use serde_json::Value;
use std::fs;

const FULL_POOL: &str = "scenarios/retraction/llama-3.1-8b-conservativeness-0.3.yaml";
const CRASH: &str = "scenarios/founding/margin-0.93.yaml";

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn metrics_are_claimed_shown_and_in_the_log() {
    let log = folder("metrics").join("log.jsonl").display().to_string();
    let args =
        ["run", FULL_POOL, "--slo", "ttft=2s,tpot=50ms", "--format", "json", "--record", &log];
    let shown = run(&args);
    let json = parse(&shown.stdout);
    let schema = parse(&run(&["schema", "run"]).stdout);
    assert_eq!(check(&schema, &json), Vec::<String>::new());
    let (metrics, measures) = (&json["metrics"], &json["measures"]);
    let number = |name: &str| metrics[name].as_u64().unwrap_or_else(|| panic!("{name}"));
    assert_eq!(metrics["finished_requests"], metrics["arrived_requests"]);
    assert!(number("recomputed_tokens") > 0, "the scenario is one of retractions");
    assert!(number("ttft_p50_ns") <= number("ttft_p99_ns"));
    assert!(number("slo_share_ppm") <= 1_000_000);
    assert_eq!(metrics["ttft_p99_ns"], measures["ttft_p99_ns"]);
    assert_eq!(metrics["least_free_bytes"], measures["least_free_bytes"]);
    // The same integers stand in the log, before its last record.
    let text = fs::read_to_string(&log).expect("a recording");
    let record = text.lines().find(|line| line.contains("\"kind\":\"metrics\"")).expect("metrics");
    let record = parse(record);
    for (name, value) in metrics.as_object().expect("metrics") {
        let told = name != "least_free_bytes" && !value.is_null();
        assert!(!told || record[name] == *value, "{name}: {value} in {record}");
    }
    // Whoever asks for other limits asks for another run.
    let again = run(&["replay", &log]);
    assert_eq!(again.code, 0, "{}", again.stdout);
}

#[test]
fn limits_that_cannot_be_are_named() {
    let wrong = |limits: &str| {
        let shown = run(&["run", FULL_POOL, "--slo", limits]);
        assert_eq!(shown.code, 2);
        shown.stderr
    };
    assert!(wrong("ttft").contains("`ttft` has no `=`"), "{}", wrong("ttft"));
    assert!(wrong("tftt=2s").contains("did you mean `ttft`?"), "{}", wrong("tftt=2s"));
    assert!(wrong("ttft=2").contains("a time with its unit"), "{}", wrong("ttft=2"));
    assert!(wrong("ttft=0 s").contains("more than 0"), "{}", wrong("ttft=0 s"));
}

#[test]
fn the_engines_log_reads_back_to_the_figures_of_the_start() {
    let file = folder("engine-log").join("sglang.log").display().to_string();
    let json = parse(&run(&["run", CRASH, "--engine-log", &file, "--format", "json"]).stdout);
    let text = fs::read_to_string(&file).expect("an engine's log");
    let figures = start_figures(&text);
    let measures = &json["measures"];
    let close = |seen: Option<u64>, name: &str| {
        let (seen, exact) = (seen.expect(name), measures[name].as_u64().expect(name));
        // Printed with two decimals of a GiB.
        assert!(seen.abs_diff(exact) <= (1 << 30) / 200 + 1, "{name}: {seen} is not {exact}");
    };
    let bytes = |seen: Option<plimsoll_ingest::log::Seen<plimsoll_core::units::Bytes>>| {
        seen.map(|seen| seen.value.0)
    };
    close(bytes(figures.free_after_load), "free_after_load_bytes");
    close(bytes(figures.weights), "weights_bytes");
    close(bytes(figures.free_after_pool), "free_after_pool_bytes");
    close(bytes(figures.free_after_graphs), "free_after_graphs_bytes");
    let tokens = figures.pool_tokens.expect("tokens").value;
    assert_eq!(measures["max_total_num_tokens"], tokens);
    // It serves, and dies in torch's words.
    assert!(text.contains("TP0] Prefill batch, #new-seq: 1, #new-token: "));
    assert!(text.contains("TP0] Decode batch, #running-req: "));
    assert!(
        text.contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.")
    );
}

#[test]
fn a_full_pool_warns_in_the_engines_log() {
    let shown = run(&["run", FULL_POOL, "--engine-log", "-"]);
    let warnings = shown
        .stdout
        .lines()
        .filter(|line| line.contains("KV cache pool is full. Retract requests."));
    assert!(warnings.count() > 0);
    assert!(shown.stdout.contains("throughput (token/s)"));
    let both = run(&["run", FULL_POOL, "--engine-log", "-", "--format", "json"]);
    assert_eq!(both.code, 2);
}

/// `Decode batch` lines never show more than the pool, and as many requests as run.
#[test]
fn lines_stay_within_the_pool() {
    let shown = run(&["run", FULL_POOL, "--engine-log", "-"]);
    let usage = |line: &str| -> Option<f64> {
        line.split_once("token usage: ")?.1.split(',').next()?.parse().ok()
    };
    let shares: Vec<f64> = shown.stdout.lines().filter_map(usage).collect();
    assert!(shares.len() > 20);
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
    assert!(shares.iter().any(|share| *share > 0.9), "the pool fills up");
}

#[test]
fn skipped_passes_change_no_metric_and_no_line() {
    for scenario in [FULL_POOL, CRASH] {
        let skipped = run(&["run", scenario, "--engine-log", "-"]);
        let stepped = run(&["run", scenario, "--engine-log", "-", "--step-by-step"]);
        assert_eq!(skipped.stdout, stepped.stdout);
    }
}
