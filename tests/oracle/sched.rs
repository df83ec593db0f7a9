//! SGLang's scheduler against traces of the real one, step by step.
//!
//! `tests/vectors/sched-<release>.jsonl.gz` holds them, one a line; `PLIMSOLL_VECTORS=<folder>` reads
//! `sched/<release>/*.json` of that folder instead. Inputs come from the trace's `requests` and `aborts`;
//! everything else is compared.

use std::collections::BTreeMap;

use plimsoll_core::{
    kv::{EvictionPolicy, HostTierOptions, WritePolicy},
    policy::sglang::{
        hicache::{self, HicacheInputs, HostTier},
        version::Version,
    },
    sched::{
        Batch, Decision, EosRule, Fatal, Mode, NewRequest, OutputIds, RequestId, Scheduler as _,
        Turn,
        sglang::{
            BudgetView, Consideration, FinishKey, LoopKind, MixedChunk, PrefixCache,
            PriorityOptions, PriorityOrder, QueuePolicy, SglangConfig, SglangScheduler, StateView,
            SwaOptions, TooLong,
        },
    },
    units::{Bytes, Tokens},
};
use serde_json::{Value, json};

use super::{
    packed,
    requests::{OUTPUTS, STRIDE, is, name, number, prompt},
    traces,
};

pub(super) fn config(trace: &Value) -> SglangConfig {
    let c = &trace["config"];
    let version: Version = trace["sglang"].as_str().unwrap().parse().unwrap();
    let mut out = SglangConfig::new(version, number(&c["pool_tokens"]), number(&c["context_len"]));
    out.page_size = number(&c["page_size"]);
    out.chunked_prefill_size = u64::try_from(c["chunked_prefill_size"].as_i64().unwrap()).ok();
    out.max_prefill_tokens = number(&c["max_prefill_tokens"]);
    out.max_running_requests = number(&c["effective_max_running_requests"]);
    out.request_rows = number(&c["req_slots"]);
    out.policy = match c["schedule_policy"].as_str().unwrap() {
        "fcfs" => QueuePolicy::Fcfs,
        "lpm" => QueuePolicy::Lpm,
        "dfs-weight" => QueuePolicy::DfsWeight,
        "lof" => QueuePolicy::Lof,
        other => panic!("policy {other}"),
    };
    out.conservativeness = c["schedule_conservativeness"].as_f64().unwrap();
    let mixed = is(&c["enable_mixed_chunk"]);
    out.mixed_chunk = if mixed { MixedChunk::On } else { MixedChunk::Off };
    out.loop_kind = if is(&c["overlap"]) { LoopKind::Overlap } else { LoopKind::Normal };
    let eviction = match c["radix_eviction_policy"].as_str() {
        None | Some("lru") => EvictionPolicy::Lru,
        Some("lfu") => EvictionPolicy::Lfu,
        Some("fifo") => EvictionPolicy::Fifo,
        Some("mru") => EvictionPolicy::Mru,
        Some("filo") => EvictionPolicy::Filo,
        Some("priority") => EvictionPolicy::Priority,
        Some(other) => panic!("eviction {other}"),
    };
    out.prefix_cache = match (is(&c["disable_radix_cache"]), host_tier(c, version)) {
        (true, _) => PrefixCache::Off,
        (false, Some(host)) => PrefixCache::Hierarchical(eviction, host),
        (false, None) => PrefixCache::Radix(eviction),
    };
    out.swa = (!c["swa"].is_null()).then(|| SwaOptions {
        pool_tokens: number(&c["swa"]["swa_tokens"]),
        window: number(&c["swa"]["window"]),
    });
    out.too_long = match is(&c["allow_auto_truncate"]) {
        true => TooLong::Truncate,
        false => TooLong::Abort,
    };
    out.prefill_max_requests = c["prefill_max_requests"].as_u64();
    out.max_queued_requests = c["max_queued_requests"].as_u64();
    out.priority = is(&c["enable_priority_scheduling"]).then(|| PriorityOptions {
        order: match is(&c["schedule_low_priority_values_first"]) {
            true => PriorityOrder::SmallerFirst,
            false => PriorityOrder::LargerFirst,
        },
        threshold: c["priority_scheduling_preemption_threshold"].as_i64().unwrap_or(10),
    });
    let patched = trace["finished_insert"].as_str().is_some_and(|t| t.starts_with("prompt+out"));
    out.finish_key = patched.then_some(FinishKey::Committed);
    out.output_ids = OutputIds { first: OUTPUTS, stride: STRIDE, eos: 2 };
    out
}

/// The host tier, sized by our own rule, which must give what the engine's own pool had.
fn host_tier(c: &Value, version: Version) -> Option<HostTierOptions> {
    let hicache = Some(&c["hicache"]).filter(|value| !value.is_null())?;
    let pool = hicache::plan(&HicacheInputs {
        version,
        hicache_size_gb: hicache["size_gb"].as_f64(),
        hicache_ratio: hicache["ratio"].as_f64(),
        device_tokens: Tokens(number(&c["pool_tokens"])),
        bytes_per_token: Bytes(1),
        page_size: number(&c["page_size"]),
        os_available: Bytes::gib(64),
        cgroup_headroom: None,
        ranks_on_host: 1,
        tier: HostTier::Cache,
    });
    let tokens = pool.unwrap().tokens.0;
    assert_eq!(tokens, number(&c["host_pool_tokens"]), "size of the host pool");
    let write_policy = match hicache["write_policy"].as_str() {
        None | Some("write_through") => WritePolicy::WriteThrough,
        Some("write_through_selective") => WritePolicy::WriteThroughSelective,
        Some("write_back") => WritePolicy::WriteBack,
        Some(other) => panic!("write policy {other}"),
    };
    Some(HostTierOptions { tokens, write_policy })
}

pub(super) fn request(at: usize, spec: &Value) -> NewRequest {
    NewRequest {
        id: RequestId(at as u64),
        prompt: prompt(&spec["prompt"]),
        max_new_tokens: spec["max_new_tokens"].as_u64(),
        output_len: number(&spec["out_len"]),
        eos: if is(&spec["ignore_eos"]) { EosRule::Ignored } else { EosRule::Ends },
        logprob_start: None,
        priority: spec["priority"].as_i64(),
        // A client's own cache key is not passed on by 0.5.8; only the adapter is.
        namespace: spec["lora_id"].as_str().map_or(0, |id| 1 + u64::from(id.as_bytes()[0])),
    }
}

/// Slots of the pool, or of both pools.
fn note_slots(state: &StateView, record: &mut Value) {
    record["available"] = json!(state.available);
    record["evictable"] = json!(state.evictable);
    record["protected"] = json!(state.protected);
    if let Some(window) = state.window {
        record["swa_available"] = json!(window.available);
        record["swa_evictable"] = json!(window.evictable);
        record["swa_protected"] = json!(window.protected);
    }
}

/// Numbers compare as numbers: 3864 and 3864.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}

/// One trace being replayed.
struct Replay<'a> {
    trace: &'a Value,
    scheduler: SglangScheduler,
    finished: BTreeMap<String, Value>,
}

impl<'a> Replay<'a> {
    fn new(trace: &'a Value) -> Self {
        let scheduler = SglangScheduler::new(config(trace)).unwrap();
        Self { trace, scheduler, finished: BTreeMap::new() }
    }

    /// The first difference, if there is one.
    fn run(&mut self) -> Option<String> {
        for step in self.trace["steps"].as_array().unwrap() {
            if let Err(difference) = self.step(step) {
                return Some(format!("step {}: {difference}", step["step"]));
            }
            if !step["error"].is_null() {
                return None;
            }
        }
        for (rid, expected) in self.trace["finished"].as_object().unwrap() {
            let got = self.finished.get(rid).cloned().unwrap_or(Value::Null);
            let keys = ["step", "reason", "outputs"];
            if keys.iter().any(|key| !same(&expected[*key], &got[*key])) {
                return Some(format!("{rid} finished: {expected}, got {got}"));
            }
        }
        None
    }

    /// Does a step; its record, or the scheduler's end.
    fn record(&mut self, step: &Value) -> Result<Value, Fatal> {
        let mut log = Vec::new();
        let requests = self.trace["requests"].as_array().unwrap();
        for rid in step["recv"].as_array().unwrap() {
            let at = requests.iter().position(|spec| spec["rid"] == *rid).unwrap();
            self.scheduler.submit(request(at, &requests[at]), &mut log);
        }
        for abort in self.trace["aborts"].as_array().unwrap() {
            let prefix = abort["rid"].as_str().unwrap();
            let named = |spec: &Value| spec["rid"].as_str().is_some_and(|r| r.starts_with(prefix));
            for (at, _) in requests.iter().enumerate().filter(|(_, spec)| named(spec)) {
                if abort["step"] == step["step"] {
                    self.scheduler.abort(RequestId(at as u64), &mut log);
                }
            }
        }
        let mut record = json!({});
        let turn = self.scheduler.turn(&mut log)?;
        self.note_turn(&turn, &mut record);
        let results_from = log.len();
        self.scheduler.complete(&mut log)?;
        let state = self.scheduler.state();
        record["end"] = json!({"ratio": state.new_token_ratio, "req_slots": state.free_rows});
        note_slots(&state, &mut record["end"]);
        if matches!(self.scheduler.config().prefix_cache, PrefixCache::Hierarchical(..)) {
            record["end"]["host_available"] = json!(state.host_available);
            record["end"]["pending_writes"] = json!(state.pending_writes);
        }
        self.note_log(&log, results_from, &step["step"], &mut record);
        Ok(record)
    }

    fn note_turn(&self, turn: &Turn, record: &mut Value) {
        let detail = self.scheduler.detail();
        let view = |b: &BudgetView| json!([b.rem_total, b.cur_rem, b.rem_input, b.rem_chunk]);
        if let Some(budget) = &detail.budget {
            record["budget0"] = view(budget);
        }
        let considered = detail.considered.iter().map(|it| {
            let (b, rid) = (it.budget, name(it.request));
            match it.what {
                Consideration::Chunk(extend) => {
                    json!([rid, "chunk", extend, b.rem_total, b.rem_input, b.rem_chunk])
                }
                Consideration::Queued(prefix, verdict) => {
                    json!([rid, prefix, verdict.name(), b.rem_total, b.rem_input, b.rem_chunk])
                }
            }
        });
        let considered: Vec<Value> = considered.collect();
        if !considered.is_empty() {
            record["adds"] = json!(considered);
        }
        if !detail.host_hits.is_empty() {
            let hits = detail.host_hits.iter().map(|(id, tokens)| json!([name(*id), tokens]));
            record["host_hit"] = hits.collect();
        }
        if !detail.preemptions.is_empty() {
            let tried = detail.preemptions.iter();
            let tried = tried.map(|it| json!([name(it.request), !it.victims.is_empty()]));
            record["preempt"] = tried.collect();
        }
        let Turn::Run(batch) = turn else {
            record["kind"] = json!("idle");
            return;
        };
        record["kind"] = json!(batch.mode.name());
        self.note_batch(batch, record);
        record["chunked"] = self.scheduler.chunked().map(name).into();
        let state = self.scheduler.state();
        let waiting: Vec<String> = self.scheduler.waiting().map(name).collect();
        let waiting = match waiting.as_slice() {
            [first, .., last] if waiting.len() > 24 => json!([waiting.len(), first, last]),
            all => json!(all),
        };
        record["sched"] = json!({
            "ratio": state.new_token_ratio, "full": state.batch_is_full,
            "running": self.scheduler.running().count(), "waiting": waiting,
        });
        note_slots(&state, &mut record["sched"]);
    }

    fn note_batch(&self, batch: &Batch, record: &mut Value) {
        let detail = self.scheduler.detail();
        let slots = &detail.decode_slots;
        if batch.mode != Mode::Prefill {
            record["locs"] = match slots.len() {
                0..=12 => slots.values().collect(),
                count => json!([count, slots.values().sum::<u64>()]),
            };
        }
        if batch.mode == Mode::Decode {
            record["batch"] = batch.rows.iter().map(|row| name(row.request)).collect();
            return;
        }
        let placed = detail.placed.iter().zip(&batch.rows).map(|(place, row)| {
            assert_eq!(place.request, row.request);
            json!({
                "rid": name(row.request), "extend": row.extend, "prefix": row.prefix,
                "slot": place.row, "loc_first": place.first_slot, "loc_last": place.last_slot,
            })
        });
        record["batch"] = placed.collect();
        if batch.mode == Mode::Mixed {
            let members = batch.rows[detail.placed.len()..].iter();
            record["decode_members"] = members.map(|row| name(row.request)).collect();
        }
    }

    fn note_log(&mut self, log: &[Decision], results_from: usize, step: &Value, out: &mut Value) {
        let mut lists: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (place, decision) in log.iter().enumerate() {
            match decision {
                Decision::Evicted { asked, freed, window } => {
                    let figures = match window {
                        Some(window) => json!([asked, window.asked, freed, window.freed]),
                        None => json!([asked, freed]),
                    };
                    lists.entry("evict").or_default().push(figures);
                }
                Decision::BackedUp { tokens, stored } => {
                    lists.entry("hi").or_default().push(json!(["backup", tokens, stored]));
                }
                Decision::EvictedHost { asked, freed } => {
                    lists.entry("hi").or_default().push(json!(["evict_host", asked, freed]));
                }
                Decision::LoadedBack { loaded, .. } => {
                    let loaded = if *loaded == 0 { -1 } else { i64::try_from(*loaded).unwrap() };
                    lists.entry("hi").or_default().push(json!(["load_back", loaded]));
                }
                Decision::Retracted { request, .. } => {
                    lists.entry("retracted").or_default().push(json!(name(*request)));
                }
                Decision::Finished { request, outputs, finish } if place >= results_from => {
                    let rid = name(*request);
                    let end = json!({"step": step, "reason": finish.name(), "outputs": outputs});
                    lists.entry("finished").or_default().push(json!(&rid));
                    self.finished.insert(rid, end);
                }
                Decision::Finished { request, .. } | Decision::Refused { request, .. } => {
                    lists.entry("abort_sent").or_default().push(json!(name(*request)));
                }
                _ => {}
            }
        }
        for (key, list) in lists {
            out[key] = json!(list);
        }
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        let got = match (self.record(step), step["error"].as_str()) {
            (Err(_), Some(_)) => return Ok(()),
            (Ok(_), Some(error)) => return Err(format!("lives, expected: {error}")),
            (Err(fatal), None) => return Err(format!("dies: {fatal}")),
            (Ok(got), None) => got,
        };
        let compared = [
            "kind",
            "budget0",
            "adds",
            "batch",
            "decode_members",
            "locs",
            "chunked",
            "retracted",
            "sched",
            "evict",
            "host_hit",
            "hi",
            "finished",
            "end",
        ];
        for key in compared {
            if !same(&step[key], &got[key]) {
                return Err(format!("{key}: expected {}, got {}", step[key], got[key]));
            }
        }
        // The order in which several are sent away at once shows nothing; preempted ones are listed
        // with all before them.
        let sorted = |list: &Value| {
            let mut names: Vec<String> =
                list.as_array().into_iter().flatten().map(Value::to_string).collect();
            names.sort();
            names
        };
        let (expected, sent) = (sorted(&step["abort_sent"]), sorted(&got["abort_sent"]));
        if expected != sent {
            return Err(format!("sent away: expected {expected:?}, got {sent:?}"));
        }
        let tried = |list: &Value| -> Vec<Value> {
            let list = list.as_array().into_iter().flatten();
            list.map(|it| json!([it[0], it[1]])).collect()
        };
        let (expected, tried) = (tried(&step["preempt"]), tried(&got["preempt"]));
        if expected != tried {
            return Err(format!("preemption: expected {expected:?}, got {tried:?}"));
        }
        Ok(())
    }
}

/// Replays traces; prints a line for each and returns those that differ.
fn replay(release: &str, traces: Vec<(String, Value)>) -> Vec<String> {
    let (mut differing, mut steps) = (Vec::new(), 0);
    let compared = traces.len();
    for (trace_name, trace) in traces {
        let count = trace["steps"].as_array().unwrap().len();
        let difference = Replay::new(&trace).run();
        let verdict = difference.as_deref().unwrap_or("equal");
        println!("{release} {trace_name}: {count} steps, {verdict}");
        steps += count;
        if difference.is_some() {
            differing.push(trace_name);
        }
    }
    let equal = compared - differing.len();
    println!("{release}: {equal} of {compared} traces equal, {steps} steps");
    differing
}

#[test]
fn every_step_of_0_5_8() {
    let differing = replay("0.5.8", traces("sched", "0.5.8"));
    assert!(differing.is_empty(), "{}", differing.join(", "));
}

#[test]
fn every_step_of_0_5_23() {
    let differing = replay("0.5.23", traces("sched", "0.5.23"));
    assert!(differing.is_empty(), "{}", differing.join(", "));
}

/// What no trace of the engine shows of sliding windows: pages, no prefix cache, priorities, mixed batches,
/// the ways to die. A second model of the same rules made these, from random servers and workloads.
#[test]
fn hybrids_agree_with_a_second_model() {
    let differing = replay("hybrid", packed("sched-hybrid-modelled.jsonl.gz"));
    assert!(differing.is_empty(), "{}", differing.join(", "));
}
