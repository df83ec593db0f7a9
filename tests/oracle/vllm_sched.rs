//! vLLM's scheduler against traces of the real one, turn by turn.
//!
//! `tests/vectors/vllm-sched-<release>.jsonl.gz` holds them, one a line; `PLIMSOLL_VECTORS=<folder>` reads
//! `vllm-sched/<release>/*.json` of that folder instead. Inputs come from the trace's `config`, `requests`
//! and `aborts`; everything else is compared.

use std::collections::BTreeMap;

use plimsoll_core::{
    policy::sglang::version::Version,
    sched::{
        Decision, EosRule, NewRequest, OutputIds, RequestId, Scheduler as _,
        vllm::{
            AdmissionGate, ChunkedPrefill, GroupKind, GroupSpec, LoopKind, NewBlocks,
            PrefixCaching, QueuePolicy, RowKind, Scheduled, StateMode, VllmConfig, VllmScheduler,
            too_long,
        },
    },
};
use serde_json::{Map, Value, json};

use super::{
    requests::{OUTPUTS, STRIDE, is, name, number, prompt},
    traces,
};

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn group(spec: &Value, block_size: u64) -> GroupSpec {
    let kind = match spec["type"].as_str().unwrap() {
        "full" => GroupKind::Full,
        "swa" => GroupKind::Window { window: number(&spec["window"]) },
        "chunked" => GroupKind::Chunked { chunk: number(&spec["chunk"]) },
        "mamba" => GroupKind::Mamba(match spec["mode"].as_str().unwrap() {
            "none" => StateMode::None,
            "all" => StateMode::All,
            "align" => {
                let keeps = spec["checkpoint_blocks"].as_u64().is_some_and(|blocks| blocks > 0);
                let every = spec["checkpoint_alignment"].as_u64();
                StateMode::Align { checkpoints: every.filter(|_| keeps) }
            }
            other => panic!("mode {other}"),
        }),
        other => panic!("group {other}"),
    };
    GroupSpec { kind, block_size: spec["block_size"].as_u64().unwrap_or(block_size) }
}

pub(super) fn config(trace: &Value) -> VllmConfig {
    let c = &trace["config"];
    let version: Version = trace["vllm"].as_str().unwrap().parse().unwrap();
    let block_size = number(&c["block_size"]);
    VllmConfig {
        block_size,
        groups: list(&c["groups"]).iter().map(|spec| group(spec, block_size)).collect(),
        max_num_batched_tokens: number(&c["max_num_batched_tokens"]),
        max_num_seqs: number(&c["max_num_seqs"]),
        prefix_caching: match is(&c["enable_prefix_caching"]) {
            true => PrefixCaching::On,
            false => PrefixCaching::Off,
        },
        chunked_prefill: match is(&c["enable_chunked_prefill"]) {
            true => ChunkedPrefill::On,
            false => ChunkedPrefill::Off,
        },
        long_prefill_token_threshold: number(&c["long_prefill_token_threshold"]),
        adaptive_threshold: is(&c["adaptive_threshold"]),
        policy: match c["policy"].as_str().unwrap() {
            "fcfs" => QueuePolicy::Fcfs,
            "priority" => QueuePolicy::Priority,
            other => panic!("policy {other}"),
        },
        loop_kind: match is(&c["async_scheduling"]) {
            true => LoopKind::Asynchronous,
            false => LoopKind::Synchronous,
        },
        gate: match is(&c["reserve_full_isl"]) {
            true => AdmissionGate::WholeSequence,
            false => AdmissionGate::NextChunk,
        },
        watermark: c["watermark"].as_f64().unwrap(),
        retention_interval: c["retention_interval"].as_u64(),
        max_num_active_seqs: c["max_num_active_seqs"].as_u64(),
        prefill_schedule_interval: c["prefill_schedule_interval"].as_u64().unwrap_or(1).max(1),
        output_ids: OutputIds { first: OUTPUTS, stride: STRIDE, eos: 2 },
        ..VllmConfig::new(version, number(&c["num_gpu_blocks"]), number(&c["max_model_len"]))
    }
}

pub(super) fn request(at: usize, spec: &Value) -> NewRequest {
    NewRequest {
        id: RequestId(at as u64),
        prompt: prompt(&spec["prompt"]),
        max_new_tokens: spec["max_tokens"].as_u64(),
        output_len: number(&spec["out_len"]),
        eos: if is(&spec["ignore_eos"]) { EosRule::Ignored } else { EosRule::Ends },
        logprob_start: None,
        priority: spec["priority"].as_i64(),
        namespace: 0,
    }
}

/// Names, or how many and the ends of a long list.
fn names(ids: impl Iterator<Item = RequestId>) -> Value {
    let all: Vec<String> = ids.map(name).collect();
    match all.as_slice() {
        [first, .., last] if all.len() > 24 => json!([all.len(), first, last]),
        all => json!(all),
    }
}

/// Block ids as runs `[first, count, step]`; null blocks have step 0.
fn runs(ids: &[u32]) -> Value {
    let mut out: Vec<Value> = Vec::new();
    let mut at = 0;
    while at < ids.len() {
        let follows = |to: usize, step: i64| {
            ids.get(to).is_some_and(|id| *id > 0 && i64::from(*id) == i64::from(ids[to - 1]) + step)
        };
        let (mut to, mut step) = (at + 1, 0);
        if ids[at] == 0 {
            while ids.get(to) == Some(&0) {
                to += 1;
            }
        } else {
            step = if follows(to, -1) { -1 } else { 1 };
            while follows(to, step) {
                to += 1;
            }
        }
        out.push(json!([ids[at], to - at, step]));
        at = to;
    }
    json!(out)
}

/// One trace being replayed.
struct Replay<'a> {
    trace: &'a Value,
    scheduler: VllmScheduler,
    /// Turns whose result is outstanding.
    launched: std::collections::VecDeque<u64>,
    preemptions: BTreeMap<RequestId, u64>,
    finished: Map<String, Value>,
    rejected: Map<String, Value>,
    fields: u64,
}

impl<'a> Replay<'a> {
    fn new(trace: &'a Value) -> Self {
        Self {
            trace,
            scheduler: VllmScheduler::new(config(trace)).unwrap(),
            launched: std::collections::VecDeque::new(),
            preemptions: BTreeMap::new(),
            finished: Map::new(),
            rejected: Map::new(),
            fields: 0,
        }
    }

    /// The first difference, if there is one.
    fn run(&mut self) -> Result<(), String> {
        let requests = list(&self.trace["requests"]);
        let last = requests.iter().map(|spec| number(&spec["step"])).max().unwrap_or(0);
        let most = self.trace["summary"]["max_steps"].as_u64().unwrap_or(u64::MAX);
        let mut expected = list(&self.trace["steps"]).iter();
        let mut turn = 0;
        while turn < most {
            let got = self.turn(turn);
            if got.is_none() && turn > last {
                break;
            }
            turn += 1;
            let Some(got) = got else { continue };
            let step = expected.next().ok_or(format!("turn {turn}: more turns than expected"))?;
            self.compare(step, &got)?;
        }
        if let Some(step) = expected.next() {
            return Err(format!("ends before turn {}", step["step"]));
        }
        for (key, got) in [("finished", &self.finished), ("rejected", &self.rejected)] {
            let expected = self.trace[key].as_object().unwrap();
            self.fields += expected.len() as u64;
            // Maps of `serde_json` are equal in any order of their keys.
            if expected != got {
                return Err(format!("{key}: expected {expected:?}, got {got:?}"));
            }
        }
        Ok(())
    }

    fn compare(&mut self, step: &Value, got: &Value) -> Result<(), String> {
        let (step, got) = (step.as_object().unwrap(), got.as_object().unwrap());
        let keys: std::collections::BTreeSet<&String> = step.keys().chain(got.keys()).collect();
        for key in keys {
            self.fields += 1;
            let null = Value::Null;
            let (x, y) = (step.get(key).unwrap_or(&null), got.get(key).unwrap_or(&null));
            if x != y {
                return Err(format!("turn {}, {key}: expected {x}, got {y}", step["step"]));
            }
        }
        Ok(())
    }

    /// Does a turn; its record, or nothing where there is nothing to do.
    fn turn(&mut self, turn: u64) -> Option<Value> {
        let mut record = json!({"step": turn});
        self.arrivals(turn, &mut record);
        self.aborts(turn, &mut record);
        if !self.scheduler.has_work() {
            return None;
        }
        let mut log = Vec::new();
        self.scheduler.turn(&mut log).unwrap();
        let scheduled = self.scheduler.detail().scheduled;
        if scheduled {
            self.launched.push_back(turn);
            self.note_schedule(&mut record);
        }
        let due = self.scheduler.result_is_due();
        log.clear();
        self.scheduler.complete(&mut log).unwrap();
        if due && let Some(of) = self.launched.pop_front() {
            record["update"] = json!(of);
        }
        let ended = self.note_ends(&log, turn);
        if !ended.is_empty() {
            record["finished"] = json!(ended);
        }
        let state = self.state();
        let same = record.get("after_sched") == Some(&state);
        let free = state["free"].as_u64().unwrap() as f64;
        record["end"] = if same { json!("same") } else { state };
        let blocks = self.scheduler.config().num_gpu_blocks - 1;
        let usage = 1.0 - free / blocks as f64;
        // As Python rounds: half to even never shows in these.
        record["usage"] = json!(format!("{usage:.6}").parse::<f64>().unwrap().abs());
        Some(record)
    }

    fn arrivals(&mut self, turn: u64, record: &mut Value) {
        let (mut accepted, mut log) = (Vec::new(), Vec::new());
        for (at, spec) in list(&self.trace["requests"]).iter().enumerate() {
            if number(&spec["step"]) != turn {
                continue;
            }
            let request = request(at, spec);
            let (id, len) = (request.id, request.prompt.len());
            self.scheduler.submit(request, &mut log);
            if matches!(log.last(), Some(Decision::Refused { request, .. }) if *request == id) {
                let text = too_long(len, self.scheduler.config().max_model_len).unwrap();
                self.rejected.insert(name(id), json!({"step": turn, "error": text}));
            } else {
                accepted.push(name(id));
            }
        }
        if !accepted.is_empty() {
            record["recv"] = json!(accepted);
        }
    }

    fn aborts(&mut self, turn: u64, record: &mut Value) {
        let (mut given_up, mut log) = (Vec::new(), Vec::new());
        for abort in list(&self.trace["aborts"]) {
            if number(&abort["step"]) != turn {
                continue;
            }
            let rid = abort["rid"].as_str().unwrap();
            given_up.push(rid);
            self.scheduler.abort(RequestId(rid[1..].parse().unwrap()), &mut log);
        }
        self.note_ends(&log, turn);
        if !given_up.is_empty() {
            record["aborted"] = json!(given_up);
        }
    }

    fn note_ends(&mut self, log: &[Decision], turn: u64) -> Vec<String> {
        let mut ended = Vec::new();
        for decision in log {
            let Decision::Finished { request, outputs, finish } = decision else { continue };
            let preemptions = self.preemptions.get(request).copied().unwrap_or(0);
            let end = json!({
                "step": turn, "reason": finish.name(), "outputs": outputs,
                "preemptions": preemptions,
            });
            self.finished.insert(name(*request), end);
            ended.push(name(*request));
        }
        ended
    }

    fn note_schedule(&mut self, record: &mut Value) {
        let detail = self.scheduler.detail();
        record["sched"] = self.rows(&detail.rows);
        if !detail.lookups.is_empty() {
            let hits = detail.lookups.iter().map(|(id, tokens)| json!([name(*id), tokens]));
            record["hits"] = hits.collect();
        }
        if !detail.preempted.is_empty() {
            record["preempted"] = detail.preempted.iter().map(|id| name(*id)).collect();
        }
        for id in &detail.preempted {
            *self.preemptions.entry(*id).or_default() += 1;
        }
        if self.trace["steps"][0].get("cpb").is_some() {
            record["cpb"] = json!(self.scheduler.common_prefix_blocks());
        }
        if !detail.told.is_empty() {
            let mut told = detail.told.clone();
            told.sort_unstable();
            record["finished_told"] = told.into_iter().map(name).collect();
        }
        record["after_sched"] = self.state();
    }

    fn rows(&self, rows: &[Scheduled]) -> Value {
        let quiet = |row: &Scheduled| {
            row.kind == RowKind::Running && row.tokens == 1 && row.blocks.is_empty()
        };
        let everyone = rows.iter().map(|row| row.request).eq(self.scheduler.running());
        if !rows.is_empty() && everyone && rows.iter().all(quiet) {
            return json!("decode_all");
        }
        rows.iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: &Scheduled) -> Value {
        let kind = match row.kind {
            RowKind::Running => "c",
            RowKind::New => "n",
            RowKind::Resumed => "r",
        };
        let mut out = vec![json!(name(row.request)), json!(kind)];
        out.extend([json!(row.computed), json!(row.tokens)]);
        let tables = self.scheduler.tables(row.request).unwrap();
        let given = |group: usize| {
            let new = row.blocks.iter().find(|new: &&NewBlocks| new.group == group);
            new.map_or(&[][..], |new| &new.blocks)
        };
        let blocks: Vec<&[u32]> = match row.kind {
            RowKind::Running => (0..tables.len()).map(given).collect(),
            RowKind::New | RowKind::Resumed => tables,
        };
        if blocks.iter().any(|blocks| !blocks.is_empty()) {
            out.push(blocks.into_iter().map(runs).collect());
        }
        json!(out)
    }

    fn state(&self) -> Value {
        let mut queue = self.scheduler.free_blocks().flat_map(|run| run.first..run.first + run.len);
        let (mut first, mut last, mut count, mut digest) = (Vec::new(), None, 0_u64, 0_u64);
        for id in queue.by_ref() {
            if count < 3 {
                first.push(id);
            }
            last = Some(id);
            count += 1;
            digest = (digest * 1_000_003 + id + 1) % 2_147_483_647;
        }
        let last: Vec<u64> = last.into_iter().collect();
        json!({
            "free": count, "fq": [first, last, digest],
            "waiting": names(self.scheduler.waiting()), "running": names(self.scheduler.running()),
            "cached": self.scheduler.cached_blocks(),
        })
    }
}

/// Replays all traces of a release; prints a line for each and returns those that differ.
fn replay(release: &str) -> Vec<String> {
    let (mut differing, mut turns, mut fields) = (Vec::new(), 0, 0);
    let traces = traces("vllm-sched", release);
    let count = traces.len();
    for (trace_name, trace) in traces {
        let here = list(&trace["steps"]).len();
        let mut replay = Replay::new(&trace);
        let difference = replay.run().err();
        let verdict = difference.as_deref().unwrap_or("equal");
        println!("{release} {trace_name}: {here} turns, {} fields, {verdict}", replay.fields);
        turns += here;
        fields += replay.fields;
        if difference.is_some() {
            differing.push(trace_name);
        }
    }
    let equal = count - differing.len();
    println!("{release}: {equal} of {count} traces equal, {turns} turns, {fields} fields");
    differing
}

fn all_equal(release: &str) {
    let differing = replay(release);
    assert!(differing.is_empty(), "{}", differing.join(", "));
}

#[test]
fn every_turn_of_0_11_2() {
    all_equal("0.11");
}

#[test]
fn every_turn_of_0_19_0() {
    all_equal("0.19");
}

#[test]
fn every_turn_of_0_33_0() {
    all_equal("0.33");
}
