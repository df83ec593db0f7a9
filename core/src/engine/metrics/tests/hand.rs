//! A story of three requests, with every number worked out by hand.

use super::*;
use crate::sched::Row;

fn pass(at: u64, elapsed: u64, mode: Mode, rows: &[(u64, u64, u64, bool)], used: u64) -> Told {
    let row = |(request, prefix, extend, more_follows): &(u64, u64, u64, bool)| Row {
        request: RequestId(*request),
        prefix: *prefix,
        extend: *extend,
        more_follows: *more_follows,
    };
    let batch = Batch { mode, rows: rows.iter().map(row).collect() };
    let usage = Usage { pool: 1_000, available: 1_000 - used, ..Usage::default() };
    Told::Passed { batch, at: Nanos(at), elapsed: Nanos(elapsed), usage, beside: 0 }
}

fn admitted(request: u64, prefix: u64, extend: u64, now: u64) -> Told {
    let request = RequestId(request);
    Told::Decided(Decision::Admitted { request, prefix, extend, chunked: false }, Nanos(now))
}

fn finished(request: u64, outputs: u64, now: u64) -> Told {
    let (request, finish) = (RequestId(request), Finish::Length);
    Told::Decided(Decision::Finished { request, outputs, finish }, Nanos(now))
}

/// Request 0: 100 prompt tokens in chunks of 60 and 40; 3 outputs. Request 1: 50 tokens, 20 of them cached;
/// retracted with one output, goes on, 2 outputs. Request 2 is turned away.
fn story() -> Vec<Told> {
    let retracted = Decision::Retracted { request: RequestId(1), outputs: 1, slots: 51 };
    let refused = Decision::Refused { request: RequestId(2), code: "queue_full" };
    vec![
        Told::Arrived(arrival(100, 0, Runs::of(0, 100), 3)),
        Told::Arrived(arrival(150, 1, Runs::of(0, 50), 2)),
        Told::Arrived(arrival(160, 2, Runs::of(0, 10), 2)),
        Told::Decided(refused, Nanos(200)),
        admitted(0, 0, 60, 200),
        pass(200, 100, Mode::Prefill, &[(0, 0, 60, true)], 60),
        admitted(0, 60, 40, 300),
        admitted(1, 20, 30, 300),
        pass(300, 100, Mode::Prefill, &[(0, 60, 40, false), (1, 20, 30, false)], 130),
        // The first tokens of both at 400. The token of request 1 at 450 is lost with its slots.
        pass(400, 50, Mode::Decode, &[(0, 100, 1, false), (1, 50, 1, false)], 132),
        Told::Decided(retracted, Nanos(450)),
        pass(450, 30, Mode::Decode, &[(0, 101, 1, false)], 102),
        finished(0, 3, 480),
        admitted(1, 20, 31, 500),
        pass(500, 20, Mode::Prefill, &[(1, 20, 31, false)], 51),
        finished(1, 2, 520),
    ]
}

#[test]
fn a_story_has_the_metrics_worked_out_by_hand() {
    let mut metrics = Metrics::new(1, Slo { e2e: Some(Nanos(375)), ..Slo::default() });
    tell_each(&story(), &mut metrics);
    let report = metrics.report(END);
    let counts = (report.arrived, report.finished, report.refused, report.aborted);
    assert_eq!(counts, (3, 2, 1, 0));
    assert_eq!((report.load_time, report.busy_time), (520 - 100, 300));
    assert_eq!((report.input_tokens, report.output_tokens), (150, 5));
    // 20 of 150 admitted prompt tokens; later admissions do not count.
    assert_eq!((report.cached_tokens, report.hit_rate_ppm), (20, Some(133_333)));
    // Request 1 computes positions 20 to 50 again.
    assert_eq!((report.retractions, report.recomputed_tokens, report.chunks), (1, 31, 1));
    // TTFT 300 and 250; end to end 380 and 370; 80 ns for two gaps, 120 ns for one.
    let ends = |summary: Option<Summary>| summary.map(|s| (s.mean, s.p50, s.max));
    assert_eq!(ends(report.ttft), Some((275, 275, 300)));
    assert_eq!(ends(report.e2e), Some((375, 375, 380)));
    assert_eq!(ends(report.tpot), Some((80, 80, 120)));
    // Gaps 50 and 30 of request 0, 120 of request 1.
    assert_eq!(ends(report.itl), Some((67, 50, 120)));
    assert_eq!(ends(report.queue_time), Some((125, 125, 150)));
    // One of three arrivals, in 420 ns.
    assert_eq!((report.good, report.slo_share_ppm()), (Some(1), Some(333_333)));
    assert_eq!(report.rate_milli_per_s(report.output_tokens), Some(11_904_761_905));
    // 60×100 + 130×100 + 132×50 + 102×30 + 51×20 = 29,680 of 1,000 slots × 300 ns.
    assert_eq!((report.pool_usage_mean_ppm, report.pool_usage_peak_ppm), (98_933, 132_000));
    // 1×100 + 2×100 + 2×50 + 1×30 + 1×20 = 450 request-ns in 300 ns.
    assert_eq!((report.running_mean_milli, report.running_max), (1_500, 2));
}

#[test]
fn a_pass_behind_the_last_token_brings_none() {
    let told = [
        Told::Arrived(arrival(0, 0, Runs::of(0, 10), 2)),
        admitted(0, 0, 10, 0),
        pass(0, 100, Mode::Prefill, &[(0, 0, 10, false)], 10),
        pass(100, 40, Mode::Decode, &[(0, 10, 1, false)], 11),
        pass(140, 900, Mode::Decode, &[(0, 11, 1, false)], 12),
        finished(0, 2, 140),
    ];
    let mut metrics = Metrics::new(1, Slo::default());
    tell_each(&told, &mut metrics);
    let report = metrics.report(END);
    assert_eq!((report.output_tokens, report.load_time), (2, 140));
    assert_eq!(report.itl.map(|itl| itl.max), Some(40));
    assert_eq!((report.good, report.slo_share_ppm()), (None, None));
}

#[test]
fn a_pass_that_still_runs_when_the_server_dies_brings_no_token() {
    let told = [
        Told::Arrived(arrival(0, 0, Runs::of(0, 10), 9)),
        admitted(0, 0, 10, 0),
        pass(0, 100, Mode::Prefill, &[(0, 0, 10, false)], 10),
        pass(100, 40, Mode::Decode, &[(0, 10, 1, false)], 11),
        pass(140, 900, Mode::Decode, &[(0, 11, 1, false)], 12),
    ];
    let mut metrics = Metrics::new(1, Slo::default());
    tell_each(&told, &mut metrics);
    let at = |now| {
        let report = metrics.report(Nanos(now));
        (report.output_tokens, report.load_time, report.itl.map(|itl| itl.max))
    };
    assert_eq!(at(1_000), (2, 140, Some(40)));
    assert_eq!(at(1_040), (3, 1_040, Some(900)));
}

#[test]
fn growth_that_pages_do_not_explain_is_a_straight_line() {
    let mut metrics = Metrics::new(1, Slo::default());
    tell(&Told::Arrived(arrival(0, 0, Runs::of(0, 10), 9)), 0, &mut metrics);
    tell(&pass(0, 10, Mode::Decode, &[(0, 10, 1, false)], 100), 0, &mut metrics);
    let usage = Usage { pool: 1_000, available: 860, ..Usage::default() };
    let elapsed = [Nanos(10); 4];
    let run = QuietRun { first_step: 1, at: Nanos(10), elapsed: &elapsed, requests: 1, usage };
    metrics.repeated(&run);
    // 100, 110, 120, 130, 140.
    assert_eq!(metrics.report(END).pool_usage_mean_ppm, 120_000);
}
