//! The founding crash as a whole run, in this process: scenario read, start on eight ranks, load, death in a
//! prefill, decision log checked. `cargo bench --bench run`.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll_core::sched::LogDetail;
use plimsoll_replay::{
    run::{RunOptions, ScenarioRun, run_with},
    scenario::{Scenario, expect::Ending},
};
use std::{hint::black_box, path::PathBuf};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios/founding").join(name)
}

fn run(name: &str, detail: LogDetail) -> ScenarioRun {
    let file = file(name);
    let scenario = Scenario::load(&file, &[]).unwrap();
    run_with(scenario, &file, RunOptions { detail, ..RunOptions::default() }).unwrap()
}

fn founding(c: &mut Criterion) {
    let mut group = c.benchmark_group("founding");
    group.sample_size(10);
    for (name, ending) in
        [("margin-0.93.yaml", Ending::OutOfMemory), ("margin-0.85.yaml", Ending::Finished)]
    {
        // A fast wrong answer is no result.
        assert_eq!(run(name, LogDetail::Decisions).outcome.ending, ending, "{name}");
        group.bench_function(name, |b| b.iter(|| black_box(run(name, LogDetail::Decisions))));
    }
    let name = "margin-0.93.yaml";
    group.bench_function("margin-0.93.yaml, slots told", |b| {
        b.iter(|| black_box(run(name, LogDetail::Slots)));
    });
    group.finish();
}

criterion_group!(benches, founding);
criterion_main!(benches);
