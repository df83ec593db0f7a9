//! Plans, scenarios and recordings laid beside logs.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

use plimsoll_diagnosis::against::{Agrees, Comparison, PlanFile, Stage, against};
use plimsoll_diagnosis::{Asked, Case};
use plimsoll_ingest::log::read_text;
use serde_json::{Value, json};

fn span(low: f64, mid: f64, high: f64) -> Value {
    let bytes = |gib: f64| (gib * f64::from(1 << 30)).round() as i64;
    json!({ "low_bytes": bytes(low), "mid_bytes": bytes(mid), "high_bytes": bytes(high) })
}

fn plan() -> Value {
    let figure = |interval| json!({ "interval": interval, "why": {} });
    json!({
        "schema": "plimsoll.plan/1",
        "verdict": "ok",
        "engine": { "name": "SGLang", "version": "0.5.9", "program": "" },
        "model": { "name": "Qwen/Qwen3-32B", "origin": "catalog" },
        "device": { "name": "NVIDIA H100 80GB HBM3", "ranks": 1 },
        "pool": { "tokens": 24_000, "low_tokens": 22_000, "high_tokens": 25_500, "context_len_tokens": 40_960 },
        "window": { "used": 0.85 },
        "basis": {
            "free_before_load": figure(span(78.3, 78.6, 78.9)),
            "load": figure(span(61.0, 61.15, 61.4)),
            "workspaces": figure(span(0.2, 0.2, 0.2)),
            "graphs": figure(span(1.9, 2.2, 2.5)),
        },
        "left_after_graphs": span(8.6, 9.1, 9.6),
        "figures": {
            "chunked_prefill_size": { "value": 8192 },
            "kv_bytes_per_token": { "value": 262_144 },
        },
    })
}

const COMMAND: &str =
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --mem-fraction-static 0.85";

/// What the log of such a server may print.
#[derive(Clone, Copy)]
struct Prints {
    version: &'static str,
    command: &'static str,
    before: f64,
    after: f64,
    tokens: u64,
    pool_gib: f64,
    chunk: i64,
    after_pool: f64,
    end: f64,
}

const AS_PLANNED: Prints = Prints {
    version: "0.5.9",
    command: COMMAND,
    before: 78.61,
    after: 17.42,
    tokens: 23_600,
    pool_gib: 5.76,
    chunk: 8192,
    after_pool: 11.52,
    end: 9.12,
};

fn start(prints: Prints) -> String {
    let Prints { version, command, before, after, tokens, pool_gib, chunk, after_pool, end } =
        prints;
    let (half, usage) = (pool_gib / 2.0, before - after);
    format!(
        "docker run lmsysorg/sglang:v{version} {command}\n\
         [2026-04-20 18:22:01] Load weight begin. avail mem={before:.2} GB\n\
         [2026-04-20 18:22:31] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, \
         avail mem={after:.2} GB, mem usage={usage:.2} GB.\n\
         [2026-04-20 18:22:32] KV Cache is allocated. #tokens: {tokens}, K size: {half:.2} GB, V size: {half:.2} GB\n\
         [2026-04-20 18:22:32] Memory pool end. avail mem={after_pool:.2} GB\n\
         [2026-04-20 18:22:50] max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, \
         max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, \
         available_gpu_mem={end:.2} GB\n"
    )
}

fn case(log: &str) -> Case {
    Case { log: read_text(log), ..Case::default() }
}

fn compare(log: &str, plan: &Value) -> Comparison {
    let text = plan.to_string();
    against(&case(log), &PlanFile { name: "plan.json", text: &text }).unwrap()
}

/// Rows and departure as text.
fn shown(comparison: &Comparison) -> String {
    let mut out = String::new();
    for row in &comparison.rows {
        let planned = row.planned.as_ref().map(|span| span.mid.to_string());
        let logged = row.logged.as_ref().map(|from| from.span.mid.to_string());
        let difference = row.difference.as_ref().map(ToString::to_string);
        let cells =
            [planned, logged, difference].map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        let [planned, logged, difference] = cells;
        let (stage, agrees) = (row.stage.name(), row.agrees.name());
        out.push_str(&format!(
            "{stage:<12} {:<26} {planned:>28} {logged:>28} {difference:>14} {agrees}\n",
            row.name
        ));
    }
    match &comparison.departure {
        Some(departure) => {
            out.push_str(&format!("left at {}: {}\n", departure.name, departure.says))
        }
        None => out.push_str("as planned\n"),
    }
    out
}

#[test]
fn a_start_that_went_as_planned() {
    let comparison = compare(&start(AS_PLANNED), &plan());
    assert_eq!(comparison.departure, None, "{}", shown(&comparison));
    assert!(comparison.rows.iter().all(|row| row.agrees != Agrees::Outside));
    insta::assert_snapshot!("as_planned", shown(&comparison));
}

#[test]
fn the_first_place_where_reality_left_the_plan() {
    let p = AS_PLANNED;
    let other =
        "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --mem-fraction-static 0.9";
    let cases: [(&str, Prints); 9] = [
        ("version", Prints { version: "0.5.2", ..p }),
        ("fraction", Prints { command: other, tokens: 39_000, end: 5.0, ..p }),
        ("chunked_prefill_size", Prints { chunk: 4096, ..p }),
        ("free_before_load", Prints { before: 70.0, after: 8.8, tokens: 100, ..p }),
        ("weights", Prints { after: 12.0, tokens: 900, ..p }),
        ("kv_bytes_per_token", Prints { pool_gib: 2.88, ..p }),
        ("pool_tokens", Prints { tokens: 12_000, pool_gib: 2.93, ..p }),
        ("graphs", Prints { end: 3.1, ..p }),
        ("free_after_graphs", Prints { after_pool: 8.0, end: 5.6, ..p }),
    ];
    let mut all = String::new();
    for (name, prints) in cases {
        let comparison = compare(&start(prints), &plan());
        let departure = comparison.departure.clone().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(departure.name, name, "{}", shown(&comparison));
        all.push_str(&format!("{name}: {}\n", departure.says));
    }
    insta::assert_snapshot!("departures", all);
}

#[test]
fn an_end_that_was_not_planned() {
    let died = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total \
                capacity of 79.19 GiB of which 201.12 MiB is free.\n";
    let comparison = compare(&(start(AS_PLANNED) + died), &plan());
    let departure = comparison.departure.unwrap();
    assert_eq!((departure.name, departure.stage), ("outcome", Stage::End));
}

#[test]
fn what_one_side_does_not_have_is_no_departure() {
    let log = start(AS_PLANNED);
    let cut: String = log.lines().take(3).map(|line| format!("{line}\n")).collect();
    let comparison = compare(&cut, &plan());
    assert_eq!(comparison.departure, None);
    let pool = comparison.rows.iter().find(|row| row.name == "pool_tokens").unwrap();
    assert_eq!((pool.agrees, &pool.logged), (Agrees::Unknown, &None));
}

const SCENARIO: &str = "
name: plan/qwen3-32b
why: The start as it is to be.
machine: { device: H100 80GB }
engine:
  version: 0.5.9
  command: python -m sglang.launch_server --model-path Qwen/Qwen3-32B --mem-fraction-static 0.85
";

#[test]
fn a_scenario_is_a_plan_too() {
    let file = PlanFile { name: "plan.yaml", text: SCENARIO };
    let comparison = against(&case(&start(AS_PLANNED)), &file).unwrap();
    assert_eq!(comparison.kind, "scenario");
    let row = |name| comparison.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!(row("weights").agrees, Agrees::Within, "{}", shown(&comparison));
    assert_eq!(row("kv_bytes_per_token").agrees, Agrees::Within, "{}", shown(&comparison));
    assert!(row("free_after_pool").planned.is_some());
}

/// The decision log of a start that has the numbers of the log agrees with it to the printed digits.
#[test]
fn a_recording_of_the_emitted_file_agrees_with_the_log() {
    // As the rule of the release sizes the pool.
    let sized = Prints { tokens: 23_060, pool_gib: 5.63, after_pool: 11.48, ..AS_PLANNED };
    let asked = Asked { device: Some("H100 80GB".to_owned()), ..Asked::default() };
    let case = Case { asked, ..case(&start(sized)) };
    let ask = plimsoll_diagnosis::emit::Ask::default();
    let emitted = plimsoll_diagnosis::emit::emit(&case, &[], &ask).unwrap();
    let scenario =
        plimsoll_replay::scenario::Scenario::parse("crash.yaml", &emitted.crash.text, &[]).unwrap();
    let mut log = Vec::new();
    let record = plimsoll_replay::run::Recording {
        out: &mut log,
        scenario_text: &emitted.crash.text,
        scenario_file: "crash.yaml".to_owned(),
        overrides: Vec::new(),
    };
    let options = plimsoll_replay::run::RunOptions { record: Some(record), ..Default::default() };
    plimsoll_replay::run::run_with(scenario, std::path::Path::new("crash.yaml"), options).unwrap();
    let text = String::from_utf8(log).unwrap();
    let comparison = against(&case, &PlanFile { name: "run.jsonl", text: &text }).unwrap();
    assert_eq!(comparison.kind, "recording");
    let row = |name| comparison.rows.iter().find(|row| row.name == name).unwrap();
    for name in
        ["version", "free_before_load", "free_after_load", "pool_tokens", "free_after_graphs"]
    {
        assert_eq!(row(name).agrees, Agrees::Within, "{name}\n{}", shown(&comparison));
    }
}

#[test]
fn vllm_is_compared_by_its_own_figures() {
    let mut plan = plan();
    plan["engine"] = json!({ "name": "vLLM", "version": "0.11.0", "program": "" });
    plan["model"]["name"] = json!("Qwen/Qwen3-8B");
    plan["window"]["used"] = json!(0.9);
    plan["basis"]["load"]["interval"] = span(15.2, 15.3, 15.4);
    plan["figures"] = json!({ "available_kv_cache_memory_bytes": { "value": 54_000_000_000_u64 } });
    let log = "docker run vllm/vllm-openai:v0.11.0 vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.9\n\
               INFO 10-03 07:14:22 [gpu_model_runner.py:2653] Model loading took 15.2683 GiB and 6.120 seconds\n\
               INFO 10-03 07:14:40 [gpu_worker.py:298] Available KV cache memory: 41.20 GiB\n";
    let comparison = compare(log, &plan);
    let departure = comparison.departure.clone().unwrap();
    assert_eq!(departure.name, "available_kv_cache_memory", "{}", shown(&comparison));
}

#[test]
fn broken_files_say_what_is_wrong() {
    let case = case(&start(AS_PLANNED));
    let mut no_basis = plan();
    no_basis["basis"] = json!({});
    let mut next = plan();
    next["schema"] = json!("plimsoll.plan/2");
    let cases = [
        ("{ \"schema\": ".to_owned(), "no JSON"),
        ("{}".to_owned(), "schema is none"),
        (next.to_string(), "plimsoll.plan/2"),
        (no_basis.to_string(), "basis.free_before_load"),
        (json!({ "schema": "plimsoll.plan/1" }).to_string(), "verdict"),
        ("{\"schema\":\"plimsoll.log/1\"}\n{\"seq\":7}\n{}\n".to_owned(), "line 2"),
        ("name: x\n".to_owned(), "machine"),
        (SCENARIO.replace("Qwen/Qwen3-32B", "lab/unheard-of"), "lab/unheard-of"),
        (String::new(), "empty"),
    ];
    for (text, word) in cases {
        let error = against(&case, &PlanFile { name: "plan.json", text: &text }).unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}
