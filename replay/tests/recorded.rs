//! Recorded workloads, conversations, bursts, and what benchmark commands stand for.

use plimsoll_core::{
    engine::serving::{Arrival, Clients},
    kv::{Run, Runs},
    sched::{Finish, OutputIds, RequestId},
    units::Nanos,
};
use plimsoll_replay::{
    problem::Code,
    scenario::{
        Gaps, Group, Lengths, Pacing, Part, PrefixChoice, RampLaw, Scenario, Schedule, TraceSource,
        Workload,
    },
    workload::{bench, describe::describe, presets},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

const HEAD: &str = "name: a\nwhy: b\nmachine: { device: x, ranks: 2 }\nmodel: m\n\
                    engine: { name: sglang, version: 0.5.8 }\n";

fn read(workload: &str) -> Scenario {
    Scenario::parse("a.yaml", &format!("{HEAD}workload: {workload}\n"), &[]).unwrap()
}

/// The only problem's code and words.
fn refusal(workload: &str) -> (Code, String) {
    let read = Scenario::parse("a.yaml", &format!("{HEAD}workload: {workload}\n"), &[]);
    let problems = read.unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    let problem = &problems.list[0];
    let help = problem.help.clone().unwrap_or_default();
    (problem.code, format!("{} {help}", problem.message))
}

/// A folder with one file, and a scenario beside it.
fn with_file(name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recorded-{name}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("data"), text).unwrap();
    folder.join("a.yaml")
}

/// All arrivals of a file's requests when every request takes `service`; `more` are keys of the trace.
fn replayed(name: &str, text: &str, more: &str, service: u64) -> Vec<Arrival> {
    let file = with_file(name, text);
    let scenario = read(&format!("{{ trace: {{ file: data{more} }} }}"));
    let traces = scenario.traces(&file, true).unwrap();
    arrivals(&mut scenario.clients(&traces).unwrap(), service)
}

fn arrivals(clients: &mut impl Clients, service: u64) -> Vec<Arrival> {
    let mut all: Vec<Arrival> = Vec::new();
    let mut ends: Vec<(u64, RequestId, u64)> = Vec::new();
    loop {
        let end = ends.iter().min().copied();
        match (clients.next_at(), end) {
            (Some(at), end) if end.is_none_or(|(end, ..)| at.0 < end) => {
                let arrival = clients.take(at).unwrap();
                let request = &arrival.request;
                ends.push((arrival.at.0 + service, request.id, request.output_len));
                all.push(arrival);
            }
            (_, Some(end)) => {
                ends.retain(|other| *other != end);
                clients.finished(end.1, Finish::Stop, end.2, Nanos(end.0));
            }
            (_, None) => break,
        }
    }
    assert!(clients.is_done());
    all
}

fn times(arrivals: &[Arrival]) -> Vec<u64> {
    arrivals.iter().map(|arrival| arrival.at.0).collect()
}

fn runs(arrival: &Arrival) -> Vec<(u64, u64)> {
    arrival.request.prompt.runs().iter().map(|run| (run.first, run.len)).collect()
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 10, "output_length": 6, "hash_ids": [7]}
{"timestamp": 6000, "input_length": 2000, "output_length": 7, "hash_ids": [0, 1, 2]}
"#;

#[test]
fn blocks_become_runs_of_tokens() {
    let all = replayed("blocks", MOONCAKE, "", S);
    assert_eq!(times(&all), [0, 3 * S, 3 * S, 6 * S]);
    let base = 1 << 62;
    // Blocks that follow each other are one run, and the last one is cut.
    assert_eq!(runs(&all[0]), [(base, 1100)]);
    assert_eq!(runs(&all[1]), [(base, 512), (base + 3 * 512, 512)]);
    // Tokens without a block are the request's own.
    assert_eq!(runs(&all[3]), [(base, 1536), (4 << 32, 464)]);
    assert_eq!((all[1].request.output_len, all[1].request.max_new_tokens), (6, Some(6)));
}

#[test]
fn recorded_times_are_changed_as_asked() {
    let at = |more: &str, service| times(&replayed("times", MOONCAKE, more, service));
    assert_eq!(at(", speedup: 2, start: 1 s", 0), [S, 5 * S / 2, 5 * S / 2, 4 * S]);
    assert_eq!(at(", limit: 2", 0), [0, 3 * S]);
    assert_eq!(at(", concurrency: 1", 4 * S), [0, 4 * S, 8 * S, 12 * S]);
    assert_eq!(at(", rate: 1 /s, arrivals: constant", 0), [0, S, 2 * S, 3 * S]);
    let smeared = at(", smear_arrivals: true", 0);
    let bin = |time: &u64| time / (3 * S);
    assert_eq!(smeared.iter().map(bin).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert!(smeared[1] < smeared[2], "the order of the file is kept: {smeared:?}");
    assert_eq!(smeared, at(", smear_arrivals: true", 0), "the same seed");
    let narrow = at(", smear_arrivals: 10 ms", 0);
    assert!(narrow.iter().all(|time| time % (3 * S) < 10 * MS), "{narrow:?}");
}

#[test]
fn rows_are_mixed_before_they_are_limited() {
    let rows: String = (1..=40).map(|n| format!("{},{n},1\n", n - 1)).collect();
    let table = format!("arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}");
    let all = replayed("mixed", &table, ", shuffle: true, limit: 5, rate: 1 /s", 0);
    let lens: Vec<u64> = all.iter().map(|arrival| arrival.request.prompt.len()).collect();
    assert_eq!(lens.len(), 5);
    assert_ne!(lens, [1, 2, 3, 4, 5]);
    let again = replayed("mixed", &table, ", shuffle: true, limit: 5, rate: 1 /s", 0);
    assert_eq!(all, again);
}

#[test]
fn sessions_carry_what_was_said() {
    let rows = r#"{"session_id":"s","timestamp":0,"input_length":16,"output_length":4,"hash_ids":[1]}
{"session_id":"s","timestamp":10,"delay":5,"input_length":8,"output_length":3,"hash_ids":[2]}"#;
    let all = replayed("sessions", rows, ", block_size: 16", 2 * S);
    assert_eq!(times(&all), [0, 2 * S + 5 * MS]);
    let outputs = OutputIds::default();
    let base = 1_u64 << 62;
    // 16 tokens, 4 of the answer of which the last is the end of sequence, 8 new ones.
    let expected = [(base + 16, 16), (outputs.first, 3), (outputs.eos, 1), (base + 32, 8)];
    assert_eq!(runs(&all[1]), expected);
}

#[test]
fn agents_start_when_others_let_them() {
    let rows = r#"{"hash_id_scope":"local","block_size":4,"version":2}
{"request_id":"root","input_length":4,"output_length":2,"hash_ids":[1]}
{"request_id":"a","input_length":4,"output_length":2,"dependencies":[{"request_id":"root","trigger":"dispatch","delay_ms":5}]}
{"request_id":"b","input_length":4,"output_length":2,"not_before_ms":1000,"dependencies":[{"request_id":"root","trigger":"dispatch"}]}
{"request_id":"join","input_length":4,"output_length":2,"dependencies":[{"request_id":"a","trigger":"completion"},{"request_id":"b","trigger":"completion","delay_ms":7}]}"#;
    let all = replayed("agents", rows, "", 3 * S);
    assert_eq!(times(&all), [0, 5 * MS, S, 4 * S + 7 * MS]);
    let fast = replayed("agents", rows, ", speedup: 2", 3 * S);
    assert_eq!(times(&fast), [0, 5 * MS / 2, S / 2, 7 * S / 2 + 7 * MS / 2]);
}

#[test]
fn two_traces_share_no_block() {
    let file = with_file("scopes", MOONCAKE);
    let scenario = read("[{ trace: { file: data } }, { trace: { file: data, name: b } }]");
    let traces = scenario.traces(&file, true).unwrap();
    let all = arrivals(&mut scenario.clients(&traces).unwrap(), 0);
    assert_eq!((runs(&all[0])[0].0, runs(&all[1])[0].0), (1 << 62, (1 << 62) + (1 << 56)));
}

#[test]
fn a_turn_begins_with_all_that_was_said() {
    let workload = "{ requests: 1, at: 0 s, prompt_tokens: 100, output_tokens: [10, 20, 30], \
                    shared_prefix: { tokens: 50 }, turns: { count: 3, think_time: 2 s, prompt_tokens: 7 } }";
    let all = arrivals(&mut read(workload).clients(&[]).unwrap(), S);
    assert_eq!(times(&all), [0, 3 * S, 6 * S]);
    let lens: Vec<u64> = all.iter().map(|arrival| arrival.request.prompt.len()).collect();
    assert_eq!(lens, [150, 150 + 10 + 7, 167 + 20 + 7]);
    let outputs: Vec<u64> = all.iter().map(|arrival| arrival.request.output_len).collect();
    assert_eq!(outputs, [10, 20, 30]);
    let mut expected = all[1].request.prompt.clone();
    expected.extend(&OutputIds::default().made(RequestId(1), 20, 20));
    expected.push(Run { first: 3 << 32, len: 7 });
    assert_eq!(all[2].request.prompt, expected);
}

#[test]
fn conversations_are_the_same_whoever_answers_first() {
    let workload = "{ requests: 20, concurrency: 4, prompt_tokens: { uniform: [1, 99] }, \
                    output_tokens: { uniform: [1, 99] }, turns: { count: { uniform: [1, 5] } } }";
    let scenario = read(workload);
    let lens = |service| {
        let mut clients = scenario.clients(&[]).unwrap();
        let all = arrivals(&mut clients, service);
        assert_eq!(all.len() as u64, clients.total());
        let mut lens: Vec<_> =
            all.iter().map(|a| (a.request.prompt.len(), a.request.output_len)).collect();
        lens.sort_unstable();
        lens
    };
    assert_eq!(lens(0), lens(S));
}

#[test]
fn a_conversation_that_is_given_up_ends_and_frees_its_connection() {
    let workload =
        "{ requests: 2, concurrency: 1, prompt_tokens: 5, output_tokens: 5, turns: { count: 4 } }";
    let mut clients = read(workload).clients(&[]).unwrap();
    let first = clients.take(Nanos(0)).unwrap();
    assert_eq!(clients.next_at(), None);
    clients.finished(first.request.id, Finish::Abort, 0, Nanos(9));
    assert_eq!(clients.next_at(), Some(Nanos(9)));
    assert_eq!(clients.take(Nanos(9)).unwrap().request.prompt, Runs::of(2 << 32, 5));
}

#[test]
fn answers_repeat_as_they_were_made() {
    let ids = OutputIds { first: 1000, stride: 100, eos: 2 };
    let runs = |count, len| {
        let made = ids.made(RequestId(3), count, len);
        made.runs().iter().map(|run| (run.first, run.len)).collect::<Vec<_>>()
    };
    assert_eq!(runs(3, 5), [(1300, 3)]);
    assert_eq!(runs(5, 5), [(1300, 4), (2, 1)]);
    assert_eq!(runs(8, 5), [(1300, 4), (2, 1), (1305, 3)]);
    assert_eq!((runs(0, 5), runs(1, 1)), (vec![], vec![(2, 1)]));
}

#[test]
fn bursts_come_and_go() {
    let group = |more: &str| {
        let text = format!(
            "{{ requests: 6, rate: 2 /s, arrivals: constant, {more}, prompt_tokens: 1, output_tokens: 1 }}"
        );
        times(&arrivals(&mut read(&text).clients(&[]).unwrap(), 0))
    };
    let half = S / 2;
    let bursts = group("bursts: { on: 1 s, off: 9 s }");
    assert_eq!(bursts, [0, half, 10 * S, 10 * S + half, 20 * S, 20 * S + half]);
    // Between the bursts one every 4 s: 9 s hold 2.25 gaps of the quiet rate.
    let quiet = group("bursts: { on: 1 s, off: 9 s, quiet_rate: 0.25 /s }");
    assert_eq!(quiet, [0, half, S, 5 * S, 9 * S, 10 * S + 3 * S / 8]);
}

fn group(command: &str) -> Group {
    match bench::part(command).unwrap() {
        Part::Group(group) => *group,
        Part::Trace(_) => panic!("{command} is a trace"),
    }
}

fn trace(command: &str) -> TraceSource {
    match bench::part(command).unwrap() {
        Part::Trace(trace) => *trace,
        Part::Group(_) => panic!("{command} is a group"),
    }
}

#[test]
fn a_range_ratio_means_what_its_client_means() {
    let sglang = |ratio: &str| {
        let command =
            "python -m sglang.bench_serving --dataset-name random --random-input-len 1000";
        group(&format!("{command} {ratio}")).shape.prompt_tokens
    };
    let vllm = |ratio: &str| {
        group(&format!("vllm bench serve --random-input-len 1000 {ratio}")).shape.prompt_tokens
    };
    let uniform = |low, high| Lengths::Uniform { low, high };
    assert_eq!(sglang(""), uniform(1, 1000));
    assert_eq!(sglang("--random-range-ratio 0.5"), uniform(500, 1000));
    assert_eq!(sglang("--random-range-ratio 1"), Lengths::Fixed(1000));
    assert_eq!(vllm(""), Lengths::Fixed(1000));
    assert_eq!(vllm("--random-range-ratio 0.5"), uniform(500, 1500));
    assert_eq!(vllm("--random-range-ratio 0.0625"), uniform(937, 1063));
    let error = bench::part("vllm bench serve --random-range-ratio 1").unwrap_err();
    assert!(
        error.contains("`--random-range-ratio` cannot be `1`; allowed: a number from 0"),
        "{error}"
    );
}

#[test]
fn the_clients_have_their_own_defaults() {
    use plimsoll_core::sched::EosRule;
    let sglang = group("python3 -m sglang.bench_serving --dataset-name random-ids");
    assert_eq!((sglang.requests, sglang.concurrency), (1000, None));
    assert_eq!(sglang.shape.output_tokens, Lengths::Uniform { low: 1, high: 1024 });
    assert_eq!(
        (sglang.shape.eos, sglang.schedule),
        (EosRule::Ignored, Schedule::Together { at: Nanos(0) })
    );
    let vllm = group("vllm bench serve --max-concurrency 8");
    assert_eq!((vllm.shape.output_tokens, vllm.concurrency), (Lengths::Fixed(128), Some(8)));
    assert_eq!(vllm.shape.eos, EosRule::Ends);
    let seeded = group("vllm bench serve --seed 7 --input-len 33");
    assert_eq!(
        (seeded.name.as_str(), seeded.shape.prompt_tokens),
        ("bench, seed 7", Lengths::Fixed(33))
    );
}

/// First and last time of `n` requests, seconds.
fn ends(command: &str) -> (f64, f64) {
    let part = bench::part(command).unwrap();
    let workload = Workload { parts: vec![part] };
    let all = times(&arrivals(&mut workload.clients(&[], 1), 0));
    (all[0] as f64 / 1e9, all[all.len() - 1] as f64 / 1e9)
}

#[test]
fn a_rate_goes_on_as_its_client_has_it() {
    let (first, _) = ends(
        "python -m sglang.bench_serving --dataset-name random --request-rate 4 --num-prompts 50",
    );
    assert_eq!(first, 0.0);
    // vLLM waits first, and stretches the gaps until the last request is due at n / rate.
    for burstiness in ["0.25", "1.0", "inf"] {
        let command =
            format!("vllm bench serve --request-rate 4 --num-prompts 50 --burstiness {burstiness}");
        let (first, last) = ends(&command);
        assert!(first > 0.0 && (last - 12.5).abs() < 1e-6, "{burstiness}: {first} {last}");
    }
    let ramp = "vllm bench serve --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 3 \
                --num-prompts 3 --burstiness inf";
    // Gaps of 1, 1/2 and 1/3 of a second.
    let (first, last) = ends(ramp);
    assert!((first - 1.0).abs() < 1e-6 && (last - 11.0 / 6.0).abs() < 1e-6, "{first} {last}");
    let Schedule::Rate { pacing, .. } = group(&ramp.replace("linear", "exponential")).schedule
    else {
        panic!("no rate")
    };
    assert_eq!(pacing, Pacing::Ramp { from: 1.0, to: 3.0, law: RampLaw::Exponential });
    let gamma = group("vllm bench serve --request-rate 2.5 --burstiness 0.5").schedule;
    assert!(matches!(gamma, Schedule::Rate { gaps: Gaps::Gamma { burstiness: 0.5 }, .. }));
}

#[test]
fn shared_prefixes_come_as_often_as_each_other() {
    let sglang = group(
        "python -m sglang.bench_serving --dataset-name generated-shared-prefix --gsp-num-groups 4 \
         --gsp-prompts-per-group 3 --gsp-system-prompt-len 100 --gsp-num-turns 2",
    );
    let prefix = sglang.shared_prefix.clone().unwrap();
    assert_eq!((sglang.requests, prefix.groups, prefix.choice), (12, 4, PrefixChoice::Even));
    assert_eq!(prefix.tokens, Lengths::Fixed(100));
    assert_eq!(sglang.turns.as_ref().unwrap().count, Lengths::Fixed(2));
    let count = |command: &str| {
        let workload = Workload { parts: vec![bench::part(command).unwrap()] };
        let all = arrivals(&mut workload.clients(&[], 1), 0);
        let mut firsts: Vec<u64> =
            all.iter().map(|arrival| runs(arrival)[0].0 & 0xffff_ffff_ffff).collect();
        let ordered = firsts.is_sorted();
        firsts.sort_unstable();
        let counts: Vec<usize> = firsts.chunk_by(|a, b| a == b).map(<[u64]>::len).collect();
        (counts, ordered)
    };
    let repetition = "vllm bench serve --dataset-name prefix_repetition --num-prompts 23 \
                      --prefix-repetition-num-prefixes 4";
    assert_eq!(count(repetition), (vec![5; 4], false));
    assert_eq!(count(&format!("{repetition} --disable-shuffle")), (vec![5; 4], true));
    let zipf = "python -m sglang.bench_serving --dataset-name generated-shared-prefix --gsp-num-groups 2 \
                --gsp-prompts-per-group 1000 --gsp-group-distribution zipf --gsp-zipf-alpha 2";
    let (counts, _) = count(zipf);
    // One to a quarter.
    assert!((1550..1650).contains(&counts[0]), "{counts:?}");
}

#[test]
fn files_of_the_clients_are_traces() {
    let sharegpt = trace("python -m sglang.bench_serving --dataset-path s.json --num-prompts 10");
    assert!(sharegpt.shuffle && sharegpt.limit == Some(10) && sharegpt.options.limit.is_none());
    let mooncake = trace(
        "python -m sglang.bench_serving --dataset-name mooncake --dataset-path m.jsonl \
         --mooncake-slowdown-factor 4",
    );
    assert_eq!((mooncake.speedup, mooncake.tokens_per_block), (0.25, Some(130)));
    assert_eq!((mooncake.schedule, mooncake.options.limit), (None, Some(1000)));
    let burst =
        trace("vllm bench serve --dataset-name burstgpt --dataset-path b.csv --request-rate 3");
    assert!(burst.schedule.is_some() && burst.shuffle);
    for (command, part) in [
        ("vllm bench serve --dataset-name sharegpt", "needs its file"),
        (
            "vllm bench serve --dataset-name hf",
            "`--dataset-name hf` of vLLM's bench serve is not emulated",
        ),
        (
            "vllm bench serve --dataset-name shargpt",
            "`--dataset-name` cannot be `shargpt`; allowed: `random`",
        ),
        ("vllm bench serve --num-prompts 0", "allowed: an integer from 1 to 10000000"),
        ("vllm bench serve --request-rate fast", "such as `8` or `0.5`, or `inf`"),
        ("vllm bench serve --ramp-up-strategy linear", "needs `--ramp-up-start-rps`"),
    ] {
        let error = bench::part(command).unwrap_err();
        assert!(error.contains(part), "{command}: {error}");
    }
}

#[test]
fn presets_have_the_figures_that_they_cite() {
    let described = |name: &str| {
        let part = Part::Group(Box::new(presets::named(name).unwrap().group));
        describe(&Workload { parts: vec![part] }, &[], 1).remove(0).summary
    };
    let near = |found: f64, expected: f64, within: f64| {
        assert!((found / expected - 1.0).abs() < within, "{found}, not {expected}");
    };
    let chat = described("chat-short");
    near(chat.input.mean, 167.0, 0.08);
    near(chat.output.mean, 337.0, 0.08);
    let code = described("code-azure");
    near(code.input.mean, 2048.0, 0.08);
    near(code.output.mean, 28.0, 0.3);
    near(described("agent").input.mean, 8596.0, 0.02);
    near(described("reasoning").output.p90 as f64, 12_000.0, 0.1);
    let rag = described("rag-8k");
    assert!((0.4..0.5).contains(&rag.prefix_share.unwrap()), "{rag:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let group =
        |rest: &str| format!("{{ requests: 2, prompt_tokens: 1, output_tokens: 1, {rest} }}");
    let cases = [
        (
            "{ trase: { file: a } }".to_owned(),
            Code::UnknownKey,
            "has no key `trase` did you mean `trace`?",
        ),
        ("{ trace: { file: a }, requests: 3 }".into(), Code::BadValue, "`trace` stands alone"),
        (
            "{ trace: { file: a, format: moncake } }".into(),
            Code::BadValue,
            "did you mean `mooncake`?",
        ),
        (
            "{ trace: { file: a, speedup: 0 } }".into(),
            Code::BadValue,
            "`workload.trace.speedup` cannot be",
        ),
        ("{ trace: { file: a, smear: true } }".into(), Code::UnknownKey, "has no key `smear`"),
        (
            "{ trace: { file: a, rate: 1 /s, speedup: 2 } }".into(),
            Code::BadValue,
            "replaces the recorded times",
        ),
        ("{ trace: { speedup: 2 } }".into(), Code::MissingKey, "`workload.trace.file` is missing"),
        ("{ trace: { file: a, block_size: 0 } }".into(), Code::BadValue, "cannot be `0`"),
        ("{ preset: chat-shirt }".into(), Code::BadValue, "did you mean `chat-short`?"),
        (
            "{ preset: { name: chat-short, rates: 3 } }".into(),
            Code::UnknownKey,
            "has no key `rates`",
        ),
        ("{ bench: vllm bench serve --sed 3 }".into(), Code::BadValue, "did you mean `--seed`?"),
        (group("at: 0 s, bursts: { on: 1 s, off: 1 s }"), Code::BadValue, "`bursts` need a `rate`"),
        (group("at: 0 s, turns: { count: 1001 }"), Code::BadValue, "at most 1000 turns"),
        (group("at: 0 s, turns: {}"), Code::MissingKey, "turns.count` is missing"),
        (group("rate: 1 /s, bursts: { off: 1 s }"), Code::MissingKey, "bursts.on` is missing"),
        (
            group("at: 0 s, shared_prefix: { tokens: 5, alpha: 1 }"),
            Code::BadValue,
            "needs `choice: zipf`",
        ),
        (
            "[{ trace: { file: a } }, { trace: { file: b } }]".into(),
            Code::Contradiction,
            "the name `trace`",
        ),
    ];
    for (text, code, part) in cases {
        let (found, message) = refusal(&text);
        assert!(found == code && message.contains(part), "{text}: {found} {message}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_its_line() {
    let file = with_file("bad", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,x,5\n");
    let scenario = read("{ trace: { file: data } }");
    let error = scenario.traces(&file, true).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "data: line 3, column 3: `num_prefill_tokens` is `x`; expected a whole number of tokens"
        ),
        "{error}"
    );
    let told = &scenario.traces(&file, false).unwrap()[0].told;
    assert_eq!(told.dropped[0].lines, [3]);
    assert_eq!(told.summary.requests, 1);
    let gone = read("{ trace: { file: gone } }").traces(&file, false).unwrap_err().to_string();
    assert!(gone.contains("gone: cannot read it"), "{gone}");
}

#[test]
fn the_hash_is_that_of_the_whole_file() {
    let file = with_file("hash", MOONCAKE);
    let told = |more: &str| {
        let scenario = read(&format!("{{ trace: {{ file: data{more} }} }}"));
        scenario.traces(&file, true).unwrap()[0].told.sha256.clone()
    };
    assert_eq!(told("").len(), 64);
    assert_eq!(told(""), told(", limit: 1"));
}
