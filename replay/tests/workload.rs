//! Workloads: what is read, who sends when, and that nothing else moves it.

use crate::scenario::parse;
use plimsoll_core::{
    backend::Rank,
    engine::serving::{Arrival, Change, Clients, Sampling, SamplingChoice, When},
    kv::Run,
    sched::{EosRule, Finish, RequestId},
    units::{Bytes, GIB, Nanos},
};
use plimsoll_replay::{
    problem::{Code, Problems},
    scenario::{Limits, Scenario},
};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn scenario(rest: &str) -> Result<Scenario, Problems> {
    let head = "name: a\nwhy: b\nmachine: { device: x, ranks: 2 }\nmodel: m\n\
                engine: { name: sglang, version: 0.5.8 }\n";
    parse(&format!("{head}{rest}"), &[])
}

fn read(rest: &str) -> Scenario {
    scenario(rest).unwrap()
}

/// The only problem, its code and its sentence.
fn refusal(rest: &str) -> (Code, String) {
    let problems = scenario(rest).unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    (problems.list[0].code, problems.list[0].message.clone())
}

/// All arrivals when every request takes `service` and nothing else happens.
fn arrivals(clients: &mut impl Clients, service: Nanos) -> Vec<Arrival> {
    let mut all = Vec::new();
    let mut ends: Vec<(u64, RequestId)> = Vec::new();
    loop {
        let end = ends.iter().min().copied();
        match (clients.next_at(), end) {
            (Some(at), end) if end.is_none_or(|(end, _)| at.0 < end) => {
                let arrival = clients.take(at).unwrap();
                ends.push((arrival.at.0 + service.0, arrival.request.id));
                all.push(arrival);
            }
            (_, Some(end)) => {
                ends.retain(|other| *other != end);
                clients.finished(end.1, Finish::Stop, 1, Nanos(end.0));
            }
            (_, None) => break,
        }
    }
    assert!(clients.is_done());
    assert_eq!(clients.take(Nanos(u64::MAX)), None);
    all
}

fn times(rest: &str, service: u64) -> Vec<u64> {
    let mut clients = read(rest).clients(&[]).unwrap();
    arrivals(&mut clients, Nanos(service)).iter().map(|arrival| arrival.at.0).collect()
}

#[test]
fn a_closed_loop_sends_the_next_when_one_ends() {
    let group = "workload: { requests: 5, concurrency: 2, prompt_tokens: 8, output_tokens: 4";
    assert_eq!(times(&format!("{group} }}\n"), 3 * S), [0, 0, 3 * S, 3 * S, 6 * S]);
    let waits = format!("{group}, start: 1 s, think_time: 500 ms }}\n");
    assert_eq!(times(&waits, S), [S, S, 2 * S + S / 2, 2 * S + S / 2, 4 * S]);
    let mut clients = read(&format!("{group} }}\n")).clients(&[]).unwrap();
    assert!(clients.take(Nanos(0)).is_some() && clients.take(Nanos(0)).is_some());
    assert_eq!((clients.take(Nanos(u64::MAX)), clients.next_at()), (None, None));
    assert!(!clients.is_done());
    // An end that no client waits for changes nothing.
    clients.finished(RequestId(77), Finish::Abort, 1, Nanos(5));
    assert_eq!(clients.next_at(), None);
    clients.finished(RequestId(1), Finish::Abort, 1, Nanos(9));
    assert_eq!(clients.next_at(), Some(Nanos(9)));
}

#[test]
fn an_open_loop_follows_its_schedule() {
    let lengths = "prompt_tokens: 8, output_tokens: 4";
    let together = format!("workload: {{ requests: 3, at: 12 s, {lengths} }}\n");
    assert_eq!(times(&together, S), [12 * S; 3]);
    let even = format!(
        "workload: {{ requests: 4, rate: 3 /s, arrivals: constant, start: 1 s, {lengths} }}\n"
    );
    let third = [0, 333_333_333, 666_666_666, S].map(|at| S + at);
    assert_eq!(times(&even, S), third);
    // A limit of connections holds back what is due.
    let held = format!(
        "workload: {{ requests: 4, rate: 1 /s, arrivals: constant, concurrency: 1, {lengths} }}\n"
    );
    assert_eq!(times(&held, 5 * S), [0, 5 * S, 10 * S, 15 * S]);
    assert_eq!(times(&held, S / 2), [0, S, 2 * S, 3 * S]);
}

#[test]
fn random_gaps_have_their_rate_and_burstiness() {
    for (law, spread) in
        [("poisson", 1.0), ("gamma, burstiness: 0.25", 4.0), ("gamma, burstiness: 4", 0.25)]
    {
        let group = format!(
            "workload: {{ requests: 40000, rate: 5 /s, arrivals: {law}, prompt_tokens: 8, \
             output_tokens: 4 }}\n"
        );
        // Requests end at once, so the helper keeps no list.
        let at = times(&group, 0);
        assert_eq!(at[0], 0);
        let gaps: Vec<f64> = at.windows(2).map(|w| (w[1] - w[0]) as f64 / S as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.2).abs() < 0.01, "{law}: mean gap {mean} s");
        let found = square / (mean * mean);
        assert!((found / spread - 1.0).abs() < 0.1, "{law}: squared variation {found}");
    }
}

#[test]
fn a_request_is_what_its_group_says() {
    let scenario = read(
        "workload:
  - name: chat
    requests: 3
    concurrency: 3
    prompt_tokens: [10, 20]
    output_tokens: 30 tokens
    max_tokens: 4096
    ignore_eos: true
    shared_prefix: { tokens: 100 }
    priority: -1
    sampling: { top_p: 0.9, input_logprobs: 5, penalties: true }
  - { name: plain, requests: 1, at: 0 s, prompt_tokens: 7, output_tokens: 9 }
  - { name: open, requests: 1, at: 0 s, prompt_tokens: 7, output_tokens: 9, max_tokens: engine }
",
    );
    let all = arrivals(&mut scenario.clients(&[]).unwrap(), Nanos(1));
    let ids: Vec<u64> = all.iter().map(|arrival| arrival.request.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    let lens: Vec<u64> = all.iter().map(|arrival| arrival.request.prompt.len()).collect();
    assert_eq!(lens, [110, 120, 110, 7, 7]);
    let first = &all[0].request;
    assert_eq!(
        first.prompt.runs(),
        [Run { first: 1 << 63, len: 100 }, Run { first: 1 << 32, len: 10 }]
    );
    assert_eq!((first.max_new_tokens, first.output_len), (Some(4096), 30));
    assert_eq!(
        (first.eos, first.priority, first.logprob_start),
        (EosRule::Ignored, Some(-1), Some(5))
    );
    let sampling =
        Sampling { choice: SamplingChoice::TopKTopP, output_logprobs: true, penalties: true };
    assert_eq!(all[0].sampling, sampling);
    let plain = &all[3].request;
    assert_eq!(
        (plain.max_new_tokens, plain.eos, plain.logprob_start),
        (Some(9), EosRule::Ends, None)
    );
    assert_eq!(all[3].sampling, Sampling::default());
    assert_eq!(all[4].request.max_new_tokens, None);
}

#[test]
fn sampling_is_what_the_engine_would_make_of_it() {
    let choice = |sampling: &str| {
        let text = format!(
            "workload: {{ requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1, sampling: {sampling} }}\n"
        );
        read(&text).workload.unwrap().groups().next().unwrap().shape.sampling.choice
    };
    use SamplingChoice::{Greedy, MinP, Temperature, TopKTopP};
    let cases = [
        ("{ temperature: 0, top_p: 0.5 }", Greedy),
        ("{ top_p: 1, min_p: 0 }", Greedy),
        ("{ temperature: 0.7 }", Temperature),
        ("{ temperature: 0.7, top_p: 1 }", Temperature),
        ("{ top_k: 20 }", TopKTopP),
        ("{ top_k: 20, min_p: 0.1 }", MinP),
    ];
    for (text, expected) in cases {
        assert_eq!(choice(text), expected, "{text}");
    }
}

#[test]
fn lengths_keep_to_their_law() {
    let draw = |law: &str| -> Vec<u64> {
        let text = format!(
            "workload: {{ requests: 20000, at: 0 s, prompt_tokens: {law}, output_tokens: 1 }}\n"
        );
        let mut clients = read(&text).clients(&[]).unwrap();
        std::iter::from_fn(|| clients.take(Nanos(0))).map(|a| a.request.prompt.len()).collect()
    };
    let even = draw("{ uniform: [64, 67] }");
    for length in 64..=67 {
        let share = even.iter().filter(|l| **l == length).count();
        assert!((4700..5300).contains(&share), "{length}: {share} of 20000");
    }
    let mut log = draw("{ lognormal: { median: 101, sigma: 1.0, min: 4, max: 2048 } }");
    log.sort_unstable();
    assert_eq!((log[0], log[19_999]), (4, 2048));
    assert!((97..106).contains(&log[10_000]), "median {}", log[10_000]);
    // One deviation above the median, in logarithms: e times 101.
    assert!((262..288).contains(&log[16_827]), "84.1 %: {}", log[16_827]);
    let mean =
        draw("{ lognormal: { mean: 512, sigma: 0.5 } }").iter().sum::<u64>() as f64 / 20_000.0;
    assert!((mean - 512.0).abs() < 8.0, "mean {mean}");
}

const TWO: &str = "
  - { name: b, requests: 50, concurrency: 4, prompt_tokens: { lognormal: { median: 300, sigma: 1 } },
      output_tokens: { uniform: [1, 900] }, shared_prefix: { tokens: 9, groups: 3 } }
  - { name: c, requests: 50, rate: 2 /s, prompt_tokens: 5, output_tokens: { uniform: [1, 900] } }
";

type Facts = (u64, Vec<u64>, u64);

/// Time, lengths of runs and answer of the requests that ask for less than 2^20 tokens.
fn facts(scenario: &Scenario, seed: u64) -> Vec<Facts> {
    let mut clients = scenario.requests().unwrap().clients(&[], seed);
    arrivals(&mut clients, Nanos(S))
        .iter()
        .filter(|a| a.request.output_len < 1 << 20)
        .map(|a| {
            let runs = a.request.prompt.runs().iter().map(|run| run.len).collect();
            (a.at.0, runs, a.request.output_len)
        })
        .collect()
}

#[test]
fn another_group_moves_no_request() {
    let alone = read(&format!("workload:{TWO}"));
    let more = read(&format!(
        "workload:\n  - {{ name: a, requests: 30, rate: 7 /s, prompt_tokens: {{ uniform: [1, 9] }}, \
         output_tokens: 1048576 }}{TWO}"
    ));
    assert_eq!(facts(&alone, 1), facts(&alone, 1));
    assert_eq!(facts(&alone, 1), facts(&more, 1));
    assert_ne!(facts(&alone, 1), facts(&alone, 2));
}

/// 100,000 requests are drawn one at a time; nothing is kept of those that are over.
#[test]
fn requests_are_drawn_lazily() {
    let text = "workload: { requests: 100000, concurrency: 8, prompt_tokens: { uniform: [1, 9] }, \
                output_tokens: 4 }\n";
    let mut clients = read(text).clients(&[]).unwrap();
    assert_eq!(clients.total(), 100_000);
    let mut now = 0;
    while let Some(arrival) = clients.take(Nanos(now)) {
        now += 1;
        clients.finished(arrival.request.id, Finish::Length, 1, Nanos(now));
    }
    assert!(clients.is_done());
    assert_eq!(clients.sent(), 100_000);
}

#[test]
fn an_event_sends_one_request() {
    let scenario = read(
        "events: [{ at: 12 s, request: { prompt_tokens: 65536, output_tokens: 2, sampling: { logprobs: true } } }]\n",
    );
    assert!(scenario.workload.is_none());
    let all = arrivals(&mut scenario.clients(&[]).unwrap(), Nanos(0));
    assert_eq!((all.len(), all[0].at, all[0].request.prompt.len()), (1, Nanos(12 * S), 65_536));
    assert!(all[0].sampling.output_logprobs);
    assert!(read("").clients(&[]).is_none());
}

const ONE: &str = "workload: { requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1 }\n";

#[test]
fn events_become_single_changes_in_order() {
    let scenario = read(&format!(
        "{ONE}events:
  - {{ at: before_load, rank: 1, others_hold: 2 GiB }}
  - {{ at: 60 s, rank: 1, others_grow: {{ by: 64 GiB, over: 64 s }} }}
  - {{ at: {{ step: 40 }}, rank: 0, leak: {{ bytes: 1 MiB }} }}
  - {{ at: 10 s, leak: {{ bytes: 100 MiB, every: 5 s, until: 20 s }} }}
  - {{ at: 5 s, host_others_hold: 3 GiB }}
  - {{ at: 200 s, rank: 1, others_grow: {{ to: 1 GiB, over: 2 ns }} }}
"
    ));
    let changes = scenario.timed_changes(2);
    let at = |when: When, change: Change| {
        assert!(
            changes.iter().any(|c| c.when == when && c.change == change),
            "{when:?} {change:?}"
        );
    };
    let others = |rank, held| Change::DeviceOthers { rank: Rank(rank), held: Bytes(held) };
    let leak = |rank, bytes| Change::Leak { rank: Rank(rank), bytes: Bytes(bytes) };
    assert_eq!(changes.len(), 1 + 64 + 6 + 1 + 2);
    assert_eq!(changes[0].change, Change::HostOthers { held: Bytes(3 * GIB) });
    for (seconds, rank) in [(10, 0), (15, 1), (20, 0)] {
        at(When::At(Nanos(seconds * S)), leak(rank, 100 << 20));
    }
    // A growth begins at what is held, and ends where it says.
    at(When::At(Nanos(61 * S)), others(1, 3 * GIB));
    at(When::At(Nanos(124 * S)), others(1, 66 * GIB));
    at(When::At(Nanos(200 * S + 2)), others(1, GIB));
    at(When::At(Nanos(200 * S + 1)), others(1, 66 * GIB - 65 * GIB / 2));
    assert_eq!(
        changes.last().map(|c| (c.when, c.change)),
        Some((When::Step(40), leak(0, 1 << 20)))
    );
    assert!(changes.is_sorted_by_key(|change| change.when));
}

#[test]
fn limits_have_defaults() {
    assert_eq!(read("").limits, Limits { max_steps: 1_000_000, max_time: Nanos(24 * 3600 * S) });
    let given = read("limits: { max_steps: 7, max_time: 2 min }\n").limits;
    assert_eq!(given, Limits { max_steps: 7, max_time: Nanos(120 * S) });
}

#[test]
fn weaker_ranks_are_read() {
    let text = "name: a\nwhy: b\nmachine: { device: x, ranks: 2, ram: 64 GiB, page_cache: 6 GiB, \
                others_on_host: 12 GiB, weaker: { rank: 1, capacity: 80 GiB, others_hold: 3 GiB } }\n\
                model: m\nengine: { name: sglang, version: 0.5.8 }\n";
    let machine = parse(text, &[]).unwrap().machine;
    assert_eq!((machine.ram, machine.page_cache), (Some(Bytes(64 * GIB)), Some(Bytes(6 * GIB))));
    assert_eq!(machine.weaker_rank(1).and_then(|w| w.capacity), Some(Bytes(80 * GIB)));
    assert_eq!(
        (machine.others_at_start(1), machine.others_at_start(0)),
        (Some(Bytes(3 * GIB)), None)
    );
    let both = parse(text, &["machine.host_available=53 GiB"]).unwrap_err();
    assert!(both.list[0].message.contains("together above `machine.ram`"), "{both}");
    assert!(parse(text, &["machine.host_available=52 GiB"]).is_ok());
    let above = parse(text, &["machine.weaker.rank=2", "machine.page_cache=65 GiB"]).unwrap_err();
    assert_eq!(above.list.len(), 2, "{above}");
}

#[test]
fn what_cannot_be_is_refused() {
    let group = |rest: &str| {
        format!("workload: {{ requests: 2, prompt_tokens: 1, output_tokens: 1, {rest} }}\n")
    };
    let events = |rest: &str| format!("{ONE}events: [{rest}]\n");
    let bad = Code::BadValue;
    let cases = [
        (group("name: x"), bad, "when its requests arrive is not said"),
        (group("at: 1 s, rate: 1 /s"), bad, "exclude each other"),
        (group("at: 1 s, start: 1 s"), bad, "exclude each other"),
        (group("at: 1 s, think_time: 1 s"), bad, "needs `concurrency`"),
        (group("at: 1 s, arrivals: poisson"), bad, "need a `rate`"),
        (group("rate: 1 /s, burstiness: 2"), bad, "needs `arrivals: gamma`"),
        (group("rate: 1 /s, arrivals: gamma"), Code::MissingKey, "`workload.burstiness` is missing"),
        (group("rate: 5"), bad, "cannot be `5`"),
        (group("concurrency: 0"), bad, "cannot be `0`"),
        (group("at: 12"), bad, "cannot be `12`"),
        (group("at: 0 s, sampling: { top_p: 2 }"), bad, "`workload.sampling.top_p` cannot be `2`"),
        (group("at: 0 s, shared_prefix: {}"), Code::MissingKey, "shared_prefix.tokens` is missing"),
        (
            "workload: { requests: 1, at: 0 s, prompt_tokens: { uniform: [9, 1] }, output_tokens: 1 }\n"
                .into(),
            bad,
            "shortest first",
        ),
        (
            "workload: { requests: 1, at: 0 s, prompt_tokens: { lognormal: { mean: 5 } }, output_tokens: 1 }\n"
                .into(),
            Code::MissingKey,
            "prompt_tokens.lognormal.sigma` is missing",
        ),
        (
            "workload: [{ requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1 }, \
             { requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1 }]\n"
                .into(),
            Code::Contradiction, "have the name `requests`"),
        (events("{ at: 1 s }"), bad, "an event has one of"),
        (events("{ at: 1 s, others_hold: 1 B, host_others_hold: 1 B }"), bad, "an event has one of"),
        (events("{ at: after_load, host_others_hold: 1 B }"), bad, "only `others_hold` happens"),
        (events("{ at: { step: 3 }, others_grow: { by: 1 B, over: 1 s } }"), bad, "not at a step"),
        (events("{ at: 1 s, others_grow: { by: 1 B, to: 1 B, over: 1 s } }"), bad, "either `to` or `by`"),
        (events("{ at: 1 s, rank: 1, host_others_hold: 1 B }"), bad, "`rank` means a device"),
        (events("{ at: 1 s, leak: { bytes: 1 B, every: 1 ms, until: 9 s } }"), bad, "8001 losses"),
        (events("{ at: 9 s, leak: { bytes: 1 B, every: 1 ms, until: 8 s } }"), bad, "before it begins"),
        (
            events("{ at: 1 s, others_grow: { by: 1 B, over: 9 s } }, { at: 5 s, rank: 1, others_hold: 1 B }"),
            Code::Contradiction,
            "`events[1]` sets what others hold while `events[0]` lets them grow",
        ),
        ("events: [{ at: 1 s, others_hold: 1 B }]\n".into(), Code::Contradiction, "lies after the start"),
        ("expect: { outcome: hung }\n".into(), Code::Contradiction, "no request reaches the server"),
        (
            events("{ at: 1 s, host_others_grow: { by: 1 B, over: 9 s } }"),
            Code::MissingKey,
            "begins at what others hold of the host, which is not known",
        ),
        ("limits: { max_steps: 0 }\n".into(), bad, "cannot be `0`"),
    ];
    for (text, code, part) in cases {
        let (found, message) = refusal(&text);
        assert!(found == code && message.contains(part), "{text}: {found} {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the group, its requests arrive in order, in their number, and never above the limit.
    #[test]
    fn arrivals_are_ordered_and_limited(
        requests in 1u64..60, limit in 1usize..6, think in 0u64..3, service in 0u64..5,
        rate in prop::option::of(1u64..5), seed: u64,
    ) {
        let due = rate.map_or(String::new(), |rate| format!("rate: {rate} /s, "));
        let scenario = read(&format!(
            "seed: {seed}\nworkload: {{ requests: {requests}, concurrency: {limit}, {due}\
             think_time: {think} s, prompt_tokens: {{ uniform: [1, 9] }}, output_tokens: 1 }}\n"
        ));
        let all = arrivals(&mut scenario.clients(&[]).unwrap(), Nanos(service * S));
        prop_assert_eq!(all.len() as u64, requests);
        prop_assert!(all.is_sorted_by_key(|arrival| (arrival.at, arrival.request.id)));
        // A connection is busy for the service and the think time.
        for (first, next) in all.iter().zip(all.iter().skip(limit)) {
            prop_assert!(next.at.0 >= first.at.0 + (service + think) * S);
        }
    }
}
