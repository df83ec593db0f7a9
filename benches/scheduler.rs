//! SGLang's scheduler alone: turns a second of a full server. `cargo bench --bench scheduler`.
//!
//! Requests arrive as others finish, so that 64 run: prompts of 1,000 tokens, 300 outputs. First with a pool
//! that the cache fills, so that every admission evicts; then the same workload with pools of 10^5, 10^6 and
//! 10^7 tokens, which must cost the same.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::{
    kv::Runs,
    policy::sglang::version::Version,
    sched::{
        Decision, NewRequest, RequestId, Scheduler as _,
        sglang::{LoopKind, PrefixCache, SglangConfig, SglangScheduler},
    },
};
use std::hint::black_box;

const TURNS: u64 = 3000;

/// A server in which 64 requests run at once.
fn server(version: Version, page_size: u64, loop_kind: LoopKind) -> SglangScheduler {
    SglangScheduler::new(SglangConfig {
        page_size,
        max_running_requests: 64,
        request_rows: 64,
        loop_kind,
        ..SglangConfig::new(version, 120_000, 32_768)
    })
    .unwrap()
}

/// Turns with a closed loop of 96 clients; returns how many requests finished.
fn turns(scheduler: &mut SglangScheduler, count: u64) -> u64 {
    let mut log = Vec::new();
    let (mut next, mut finished) = (0, 0);
    let mut send = |scheduler: &mut SglangScheduler, log: &mut Vec<Decision>| {
        let prompt = Runs::of(next * 10_000, 1000);
        scheduler.submit(NewRequest::plain(RequestId(next), prompt, 200 + next % 200), log);
        next += 1;
    };
    (0..96).for_each(|_| send(scheduler, &mut log));
    for _ in 0..count {
        log.clear();
        black_box(scheduler.turn(&mut log).unwrap());
        scheduler.complete(&mut log).unwrap();
        let ended = log.iter().filter(|d| matches!(d, Decision::Finished { .. })).count();
        (0..ended).for_each(|_| send(scheduler, &mut log));
        finished += ended as u64;
    }
    finished
}

fn scheduler(c: &mut Criterion) {
    let mut group = c.benchmark_group("scheduler");
    group.throughput(Throughput::Elements(TURNS));
    group.sample_size(10);
    let (v8, v23) = (Version::new(0, 5, 8), Version::new(0, 5, 23));
    let cases = [
        ("0.5.8 page 1, overlap", v8, 1, LoopKind::Overlap),
        ("0.5.8 page 64, normal", v8, 64, LoopKind::Normal),
        ("0.5.23 page 1, overlap", v23, 1, LoopKind::Overlap),
    ];
    for (name, version, page, loop_kind) in cases {
        group.bench_function(name, |b| {
            b.iter(|| turns(&mut server(version, page, loop_kind), TURNS));
        });
    }
    group.finish();
}

/// What a turn costs as the pool grows and the workload stays. Without a prefix cache the pool's use is the
/// same at every size. (With one a larger pool keeps more, and evicts nothing: other work.)
fn pools(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    group.throughput(Throughput::Elements(TURNS));
    group.sample_size(10);
    for page_size in [1, 64] {
        let mut finished = Vec::new();
        for tokens in [100_000, 1_000_000, 10_000_000] {
            let server = || {
                SglangScheduler::new(SglangConfig {
                    page_size,
                    max_running_requests: 64,
                    request_rows: 64,
                    prefix_cache: PrefixCache::Off,
                    ..SglangConfig::new(Version::new(0, 5, 8), tokens, 32_768)
                })
                .unwrap()
            };
            finished.push(turns(&mut server(), TURNS));
            assert!(finished[0] > 300 && finished.iter().all(|it| *it == finished[0]));
            group.bench_function(format!("{tokens} tokens, page {page_size}"), |b| {
                b.iter(|| turns(&mut server(), TURNS));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, scheduler, pools);
criterion_main!(benches);
