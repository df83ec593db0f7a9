//! The founding cases turn where memory says, and nowhere else: chunk, batch, margin and neighbours are
//! varied, and the points at which the outcome turns are printed (`--nocapture`).

use plimsoll_core::{
    engine::serving::{PassFailure, ServeEnd, Totals},
    units::{Bytes, GIB, MIB},
};
use plimsoll_replay::{
    blind::blind,
    run::{RunOptions, ScenarioRun, run_with},
    scenario::{Override, Scenario},
};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/founding").join(name)
}

/// A founding scenario with other values, without its claims.
fn run(name: &str, sets: &[String]) -> ScenarioRun {
    let mut overrides = vec!["expect=".parse::<Override>().unwrap()];
    overrides.extend(sets.iter().map(|set| set.parse().unwrap()));
    let scenario = match Scenario::load(&file(name), &overrides) {
        Ok(scenario) => scenario,
        Err(problems) => panic!("{}", problems.render()),
    };
    run_with(scenario, &file(name), RunOptions::default()).unwrap()
}

fn end(run: &ScenarioRun) -> &ServeEnd {
    &run.served.as_ref().expect("it starts").served.end
}

fn death(run: &ScenarioRun) -> &PassFailure {
    match end(run) {
        ServeEnd::OutOfMemory(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn lives(name: &str, sets: &[String]) -> bool {
    match end(&run(name, sets)) {
        ServeEnd::Finished => true,
        ServeEnd::OutOfMemory(_) => false,
        other => panic!("{other:?}"),
    }
}

/// The last value of `low..high` for which `holds`, which holds at `low`, fails at `high` and changes once.
fn turn(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    assert!(holds(low), "holds at {low}");
    assert!(!holds(high), "fails at {high}");
    while high - low > 1 {
        let middle = low.midpoint(high);
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

fn prompts(count: u64, tokens: u64) -> String {
    format!("workload={{requests: {count}, at: 0 s, prompt_tokens: {tokens}, output_tokens: 4}}")
}

const MARGIN: &str = "margin-0.93.yaml";

/// The scenario's machine with this much more taken by graphs, so that less is left.
fn left(gib: f64) -> String {
    // 6.5826 GiB of slack and 2 GiB of request table at 0.93, as the start accounts them.
    format!(
        "machine.readings.free_after_graphs={{value: {gib} GiB, calibrated: true, source: varied}}"
    )
}

#[test]
fn the_margin_turns_between_a_chunks_peak_and_a_little_more() {
    let sets = |mib: u64| {
        vec![
            "machine.readings.graph_memory=".to_owned(),
            left(mib as f64 / 1024.0),
            prompts(1, 8192),
        ]
    };
    let dies_until = turn(840, 4096, |mib| !lives(MARGIN, &sets(mib)));
    println!("one chunk of 8,192 tokens dies with {dies_until} MiB left, lives with one more");
    // The tape peaks at 1,528 MiB; rounding to segments takes a little more.
    assert!((1528..1528 + 80).contains(&dies_until), "{dies_until}");
}

#[test]
fn the_margin_case_turns_with_the_chunk_and_with_the_batch() {
    let longest = turn(1000, 8192, |tokens| lives(MARGIN, &[prompts(1, tokens)]));
    println!("0.82 GiB serve a prompt of {longest} tokens, and no token more");
    assert!((4200..4600).contains(&longest), "{longest}");
    let chunk = |tokens: u64| format!("engine.flags.chunked-prefill-size={tokens}");
    let long = |size: u64| vec![prompts(1, 8000), chunk(size)];
    assert!(lives(MARGIN, &long(2048)), "chunks of 2,048 fit");
    assert!(!lives(MARGIN, &long(8192)), "a chunk of 8,192 does not");
    // Short prompts together are one chunk too.
    let together = turn(1, 40, |count| lives(MARGIN, &[prompts(count, 300)]));
    println!("0.82 GiB serve {together} prompts of 300 tokens in one pass");
    assert!((longest / 300 - 1..=longest / 300).contains(&together), "{together}");
    let died = run(MARGIN, &[prompts(1, 8192)]);
    let died = death(&died);
    assert_eq!(died.refused.buffer.to_string(), "layer 1 mlp.experts.intermediate_cache13");
    assert_eq!(died.refused.error.segment, 896 * MIB);
}

#[test]
fn neighbours_take_the_wide_margin_too_and_the_weakest_rank_decides() {
    let name = "margin-0.85.yaml";
    let sets = |mib: u64| {
        let event = format!("events=[{{at: 0 s, rank: 3, others_hold: {mib} MiB}}]");
        vec![event, prompts(1, 8192)]
    };
    let most = turn(0, 9 * 1024, |mib| lives(name, &sets(mib)));
    println!("at 0.85 a neighbour on one card may take {most} MiB");
    // 8.34 GiB left less what a chunk needs.
    assert!((6900..7020).contains(&most), "{most}");
    let died = run(name, &sets(most + 64));
    assert_eq!(death(&died).refused.rank.0, 3);
}

#[test]
fn the_empty_pool_turns_with_the_growth_of_others() {
    let growth = |mib: u64| vec![format!("events=[{{at: 0 s, others_hold: {mib} MiB}}]")];
    let most = |name: &str, high: u64| turn(0, high, |mib| lives(name, &growth(mib)));
    let automatic = most("empty-pool-0.872.yaml", 6 * 1024);
    let careful = most("empty-pool-0.4.yaml", 40 * 1024);
    println!("others may grow by {automatic} MiB at 0.872, by {careful} MiB at 0.4");
    // The pools differ by 14.0 GiB, the snapshots by 10.2.
    let more = (careful - automatic) * MIB;
    assert!(more > 24 * GIB - 512 * MIB && more < 24 * GIB + 512 * MIB, "{more}");
    let died = run("empty-pool-0.872.yaml", &growth(automatic + 1));
    let totals = &died.served.as_ref().unwrap().served.totals;
    assert!(totals.peak_used_tokens * 10 < totals.pool_tokens, "an almost empty pool");
}

#[test]
fn the_hierarchical_cache_changes_nothing_on_the_device() {
    let [with, without] =
        ["margin-0.93.yaml", "margin-0.93-no-hicache.yaml"].map(|name| run(name, &[]));
    assert_eq!(death(&with), death(&without));
    let totals = |run: &ScenarioRun| run.served.as_ref().unwrap().served.totals.clone();
    let with = totals(&with);
    assert!(with.backed_up_tokens > 0 && with.loaded_back_tokens == 0);
    assert_eq!(Totals { backed_up_tokens: 0, ..with }, totals(&without));
}

#[test]
fn the_prediction_from_the_configuration_stands_beside_the_calibrated_start() {
    for (name, tokens) in [
        ("margin-0.93.yaml", 231_120),
        ("margin-0.88.yaml", 159_276),
        ("margin-0.85.yaml", 116_171),
    ] {
        let run = run(name, &[]);
        let beside = blind(&run.assembled.case).expect("it rests on calibrated readings");
        println!("{name}: {tokens} tokens; blind: {}", beside.text());
        let blind_tokens = beside.pool_tokens.expect("a pool");
        assert!(blind_tokens.abs_diff(tokens) * 50 < tokens, "within 2 %: {blind_tokens}");
        let left = run.ran.start.reading("after_graphs").expect("ready").least();
        let interval = beside.left.expect("ready");
        assert!(left + Bytes::gib(2) > interval.low, "{left} {interval:?}");
    }
}
