//! Numbers worked out by hand, and random lives of small servers against a recomputation from every token.

mod hand;
mod life;
mod naive;

use super::*;
use crate::{
    kv::{EvictionPolicy, Runs},
    policy::sglang::version::Version,
    sched::{
        Batch, Mode, NewRequest, Usage,
        sglang::{LoopKind, MixedChunk, PrefixCache, SglangConfig},
    },
    units::Bytes,
};
use life::{Stamps, live};
use naive::Naive;
use proptest::prelude::*;

/// What a watcher is told, kept.
#[derive(Clone, Debug)]
enum Told {
    Arrived(Arrival),
    Decided(Decision, Nanos),
    Passed { batch: Batch, at: Nanos, elapsed: Nanos, usage: Usage, beside: u64 },
}

/// Tells every pass by itself.
fn tell_each(told: &[Told], watcher: &mut dyn Watcher) {
    for (step, one) in (0..).zip(told) {
        tell(one, step, watcher);
    }
}

fn tell(one: &Told, step: u64, watcher: &mut dyn Watcher) {
    match one {
        Told::Arrived(arrival) => watcher.arrived(arrival),
        Told::Decided(decision, now) => watcher.decided(decision, *now),
        Told::Passed { batch, at, elapsed, usage, beside } => watcher.passed(&PassSeen {
            step,
            batch,
            at: *at,
            elapsed: *elapsed,
            usage: *usage,
            beside: *beside,
            free: Bytes::ZERO,
        }),
    }
}

/// Tells decode passes of one batch together, at most `most` at once.
fn tell_quietly(told: &[Told], most: usize, watcher: &mut dyn Watcher) {
    let mut at = 0;
    while let Some(one) = told.get(at) {
        tell(one, at as u64, watcher);
        at += 1;
        let Told::Passed { batch, at: from, elapsed, .. } = one else { continue };
        if batch.mode != Mode::Decode {
            continue;
        }
        let mut first = from.0 + elapsed.0;
        loop {
            let same = told[at..].iter().map_while(|next| follows(batch, next)).take(most);
            let run: Vec<(Nanos, Usage)> = same.collect();
            let Some((_, usage)) = run.last().copied() else { break };
            let elapsed: Vec<Nanos> = run.iter().map(|(elapsed, _)| *elapsed).collect();
            let (first_step, requests) = (at as u64, batch.rows.len() as u64);
            let told =
                QuietRun { first_step, at: Nanos(first), elapsed: &elapsed, requests, usage };
            watcher.repeated(&told);
            first += elapsed.iter().map(|elapsed| elapsed.0).sum::<u64>();
            at += run.len();
        }
    }
}

/// The pass, where it has the requests of `batch`.
fn follows(batch: &Batch, next: &Told) -> Option<(Nanos, Usage)> {
    let Told::Passed { batch: other, elapsed, usage, .. } = next else { return None };
    let who = |batch: &Batch| batch.rows.iter().map(|row| row.request).collect::<Vec<_>>();
    let same = other.mode == Mode::Decode && who(batch) == who(other);
    same.then_some((*elapsed, *usage))
}

fn arrival(at: u64, id: u64, prompt: Runs, outputs: u64) -> Arrival {
    let request = NewRequest::plain(RequestId(id), prompt, outputs);
    Arrival { at: Nanos(at), request, sampling: crate::engine::serving::Sampling::default() }
}

const V8: Version = Version::new(0, 5, 8);
const V23: Version = Version::new(0, 5, 23);

prop_compose! {
    fn any_config()(
        version in prop_oneof![Just(V8), Just(V23)],
        page_size in prop_oneof![Just(1_u64), Just(4), Just(16)],
        pool in prop_oneof![100_u64..300, 300_u64..3000],
        chunk in prop_oneof![Just(None), (1_u64..6).prop_map(|n| Some(n * 16))],
        running in prop_oneof![1_u64..4, Just(64)],
        conservativeness in prop_oneof![Just(1.0), Just(0.01)],
        loop_kind in prop_oneof![Just(LoopKind::Normal), Just(LoopKind::Overlap)],
        mixed_chunk in prop_oneof![3 => Just(MixedChunk::Off), 1 => Just(MixedChunk::On)],
        cache in prop_oneof![
            3 => Just(PrefixCache::Radix(EvictionPolicy::Lru)),
            1 => Just(PrefixCache::Off)
        ],
    ) -> SglangConfig {
        SglangConfig {
            page_size,
            chunked_prefill_size: chunk,
            max_running_requests: running,
            request_rows: 64,
            conservativeness,
            loop_kind,
            mixed_chunk,
            prefix_cache: cache,
            ..SglangConfig::new(version, pool, 4096)
        }
    }
}

prop_compose! {
    /// Requests in order of arrival that fit the pool alone.
    fn any_arrivals()(
        shapes in proptest::collection::vec(
            (0_u64..30_000, 0_u64..3, 0_u64..60, 1_u64..80, 1_u64..90), 1..20),
    ) -> Vec<(u64, Runs, u64)> {
        let mut now = 0;
        let shapes = shapes.into_iter().enumerate().map(|(id, (gap, family, shared, own, outputs))| {
            let mut prompt = Runs::of(family * 10_000, shared);
            prompt.extend(&Runs::of(1_000_000 + id as u64 * 10_000, own));
            now += gap;
            (now, prompt, outputs)
        });
        shapes.collect()
    }
}

fn fitting(arrivals: Vec<(u64, Runs, u64)>, config: &SglangConfig) -> Vec<Arrival> {
    let most = config.pool_tokens.saturating_sub(3 * config.page_size + 8);
    let fits = |(_, prompt, outputs): &(u64, Runs, u64)| prompt.len() + outputs <= most;
    let numbered = (0..).zip(arrivals.into_iter().filter(fits));
    numbered.map(|(id, (at, prompt, outputs))| arrival(at, id, prompt, outputs)).collect()
}

/// After everything.
const END: Nanos = Nanos(u64::MAX);

const SLO: Slo = Slo { ttft: Some(Nanos(60_000)), tpot: Some(Nanos(4_500)), e2e: None };

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// The metrics are those of a recomputation from every token, and the same however passes are told.
    #[test]
    fn metrics_are_those_of_every_token(
        config in any_config(),
        arrivals in any_arrivals(),
        stamps in prop_oneof![Just(Stamps::AtOnce), Just(Stamps::OfTheResult)],
        most in prop_oneof![1_usize..4, Just(usize::MAX)],
        turns in prop_oneof![Just(5_000_u64), 1_u64..200],
    ) {
        let told = live(&config, fitting(arrivals, &config), stamps, turns);
        let mut each = Metrics::new(config.page_size, SLO);
        tell_each(&told, &mut each);
        let mut quiet = Metrics::new(config.page_size, SLO);
        tell_quietly(&told, most, &mut quiet);
        prop_assert_eq!(each.report(END), quiet.report(END));
        let naive = Naive::of(&told).report(SLO);
        let report = each.report(END);
        let near = |a: u64, b: u64| a.abs_diff(b) * 2048 <= a.max(b) + 2048;
        match (report.itl, naive.itl) {
            (Some(itl), Some(exact)) => {
                prop_assert_eq!((itl.mean, itl.max), (exact.mean, exact.max));
                for (a, b) in [(itl.p50, exact.p50), (itl.p90, exact.p90), (itl.p95, exact.p95),
                    (itl.p99, exact.p99)] {
                    prop_assert!(near(a, b), "{} is not {}", a, b);
                }
            }
            (a, b) => prop_assert_eq!(a, b),
        }
        prop_assert_eq!(MetricsReport { itl: None, ..report }, MetricsReport { itl: None, ..naive });
    }
}

#[test]
fn every_metric_has_a_name_and_a_value_of_its_own() {
    let values = Metrics::new(1, Slo::default()).report(END).values();
    assert_eq!(values.len(), METRICS.len());
    let mut names: Vec<&str> = values.iter().map(|(spec, _)| spec.full_name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), METRICS.len());
}
