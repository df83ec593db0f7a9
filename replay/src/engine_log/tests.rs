//! Lines of told passes, worked out by hand.

use super::*;
use plimsoll_core::{
    engine::serving::Sampling,
    kv::Runs,
    policy::sglang::version::Version,
    sched::{Batch, Finish, Mode, NewRequest, RequestId, Row},
    units::Bytes,
};

const SECOND: u64 = 1_000_000_000;

fn sglang(overlap: bool) -> EngineLog {
    let setup = SglangSetup {
        version: Version::new(0, 5, 8),
        page_size: 4,
        overlap,
        interval: 2,
        conservativeness: 1.0,
        largest_decode_graph: 1,
        largest_prefill_graph: 0,
    };
    let lines = Lines { text: String::new(), form: Form::Sglang(" TP0".to_owned()) };
    EngineLog { lines, serving: Serving::Sglang(Box::new(SglangLines::new(setup))) }
}

fn arrive(log: &mut EngineLog, id: u64, prompt: u64) {
    let request = NewRequest::plain(RequestId(id), Runs::of(id * 1_000, prompt), 3);
    log.arrived(&Arrival { at: Nanos(0), request, sampling: Sampling::default() });
}

fn admit(log: &mut EngineLog, id: u64, prefix: u64, now: u64) {
    let request = RequestId(id);
    let decision = Decision::Admitted { request, prefix, extend: 1, chunked: false };
    log.decided(&decision, Nanos(now));
}

fn used(used: u64, running: u64, waiting: u64) -> Usage {
    Usage { pool: 1_000, available: 1_000 - used, evictable: 0, window: None, running, waiting }
}

fn pass(log: &mut EngineLog, at: u64, mode: Mode, rows: &[(u64, u64, u64)], usage: Usage) {
    let row = |(request, prefix, extend): &(u64, u64, u64)| Row {
        request: RequestId(*request),
        prefix: *prefix,
        extend: *extend,
        more_follows: false,
    };
    let batch = Batch { mode, rows: rows.iter().map(row).collect() };
    let (at, elapsed) = (Nanos(at), Nanos(SECOND / 2));
    let seen =
        PassSeen { step: 0, batch: &batch, at, elapsed, usage, beside: 0, free: Bytes::ZERO };
    log.passed(&seen);
}

fn end(log: EngineLog, usage: Usage) -> String {
    let mut log = log;
    match &mut log.serving {
        Serving::Sglang(lines) => lines.ended(usage, &mut log.lines),
        Serving::Vllm(lines) => lines.ended(usage, &mut log.lines),
    }
    log.lines.text
}

#[test]
fn sglang_lines_show_the_pool_before_a_prefill_and_after_the_frees_of_a_decode() {
    let mut log = sglang(false);
    arrive(&mut log, 0, 10);
    arrive(&mut log, 1, 6);
    admit(&mut log, 0, 0, SECOND);
    admit(&mut log, 1, 4, SECOND);
    // Pages of 12 and 4 slots; 4 cached ones are locked.
    pass(&mut log, SECOND, Mode::Prefill, &[(0, 0, 10), (1, 4, 2)], used(20, 0, 0));
    pass(&mut log, 3 * SECOND / 2, Mode::Decode, &[(0, 10, 1), (1, 6, 1)], used(20, 2, 0));
    pass(&mut log, 2 * SECOND, Mode::Decode, &[(0, 11, 1), (1, 7, 1)], used(20, 2, 0));
    let finished = Decision::Finished { request: RequestId(1), outputs: 3, finish: Finish::Length };
    log.decided(&finished, Nanos(5 * SECOND / 2));
    // The next pass takes a page of 4; before it 12 are used.
    pass(&mut log, 5 * SECOND / 2, Mode::Decode, &[(0, 12, 1)], used(16, 1, 0));
    let want = "\
[1970-01-01 00:00:01 TP0] Prefill batch, #new-seq: 2, #new-token: 16, #cached-token: 4, token usage: 0.00, #running-req: 0, #queue-req: 0, 
[1970-01-01 00:00:02 TP0] Decode batch, #running-req: 2, #token: 12, token usage: 0.01, cuda graph: False, gen throughput (token/s): 1.60, #queue-req: 0, 
";
    assert_eq!(end(log, used(0, 0, 0)), want);
}

#[test]
fn quiet_passes_give_the_same_lines_as_single_ones() {
    for overlap in [false, true] {
        let begin = |log: &mut EngineLog| {
            arrive(log, 0, 10);
            admit(log, 0, 0, 0);
            pass(log, 0, Mode::Prefill, &[(0, 0, 10)], used(12, 0, 3));
            pass(log, SECOND / 2, Mode::Decode, &[(0, 10, 1)], used(12, 1, 3));
        };
        let use_of = |length: u64| used(length.div_ceil(4) * 4, 1, 3);
        let (mut single, mut quiet) = (sglang(overlap), sglang(overlap));
        begin(&mut single);
        for done in 0..7 {
            let (at, prefix) = (SECOND + done * SECOND / 2, 11 + done);
            pass(&mut single, at, Mode::Decode, &[(0, prefix, 1)], use_of(prefix + 1));
        }
        begin(&mut quiet);
        let mut done = 0;
        while done < 7 {
            let passes = quiet.patience().min(7 - done);
            let elapsed = vec![Nanos(SECOND / 2); usize::try_from(passes).unwrap()];
            let at = Nanos(SECOND + done * SECOND / 2);
            done += passes;
            let usage = use_of(11 + done);
            quiet.repeated(&QuietRun { first_step: 0, at, elapsed: &elapsed, requests: 1, usage });
        }
        let (single, quiet) = (end(single, use_of(18)), end(quiet, use_of(18)));
        assert_eq!(single, quiet);
        assert_eq!(single.lines().count(), 5, "a prefill, and a line of every second of 8 results");
        assert!(single.contains("cuda graph: True, gen throughput (token/s): 2.00, #queue-req: 3"));
    }
}

#[test]
fn a_retraction_warns_with_both_ratios() {
    let mut log = sglang(false);
    arrive(&mut log, 0, 10);
    admit(&mut log, 0, 0, 0);
    pass(&mut log, 0, Mode::Prefill, &[(0, 0, 10)], used(12, 0, 0));
    pass(&mut log, SECOND / 2, Mode::Decode, &[(0, 10, 1)], used(12, 1, 0));
    let retracted = Decision::Retracted { request: RequestId(0), outputs: 2, slots: 12 };
    log.decided(&retracted, Nanos(SECOND));
    log.decided(&Decision::Ratio { new_token_ratio: 0.25 }, Nanos(SECOND));
    let text = end(log, used(0, 0, 1));
    let want = "[1970-01-01 00:00:01 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, \
                #new_tokens_gained: 12, #new_token_ratio: 0.6990 -> 0.2500\n";
    assert!(text.ends_with(want), "{text}");
}

#[test]
fn vllm_prints_a_line_every_ten_seconds_while_something_happens() {
    let lines = Lines::default();
    let mut log = EngineLog { lines, serving: Serving::Vllm(VllmLines::new()) };
    arrive(&mut log, 0, 400);
    admit(&mut log, 0, 100, 0);
    pass(&mut log, 0, Mode::Prefill, &[(0, 100, 300)], used(400, 1, 2));
    let elapsed = vec![Nanos(SECOND); 40];
    let usage = used(440, 1, 0);
    let at = Nanos(SECOND / 2);
    let run = QuietRun { first_step: 1, at, elapsed: &elapsed[..15], requests: 1, usage };
    log.repeated(&run);
    let text = end(log, used(440, 1, 0));
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "INFO 01-01 00:00:10 [loggers.py] Engine 000: Avg prompt throughput: 40.0 tokens/s, Avg \
         generation throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: \
         42.4%, Prefix cache hit rate: 25.0%"
    );
    assert!(lines.next().unwrap().contains("Avg prompt throughput: 0.0 tokens/s"));
    assert_eq!(lines.next(), None);
}
