//! The planned side: the JSON of `plan`, a scenario file, or the decision log of `run`.

use super::{PlanFile, Quantity, Span};
use plimsoll_core::{engine::startup::StartEnd, figure::FigureValue, units::Bytes};
use plimsoll_replay::{
    assemble,
    plan::{self, Plan},
    record::{FieldValue, Record},
    scenario::{Ending, Scenario},
    wire::{self, Log, WireError},
};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// The schema of `plan` that is read.
const PLAN: &str = "plimsoll.plan/1";

/// Figures by the names of the rows.
pub(super) struct Planned {
    pub kind: &'static str,
    pub spans: BTreeMap<&'static str, Span>,
}

/// Why a file cannot be compared with.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is JSON of another kind or version.
    #[error("{file}: its schema is {schema}; readable are `{PLAN}` (plan --format json), `{log}` (run --record) and scenario files", log = wire::SCHEMA)]
    Schema {
        /// The file.
        file: String,
        /// What it says; `none` when it says nothing.
        schema: String,
    },
    /// It is no JSON, though it begins like it.
    #[error("{file}: no JSON: {why}")]
    Json {
        /// The file.
        file: String,
        /// Where, and what is wrong.
        why: String,
    },
    /// A plan without a figure that all plans have.
    #[error("{file}: `{key}` is missing or is no {wanted}")]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// A decision log that is broken.
    #[error("{file}: {error}")]
    Log {
        /// The file.
        file: String,
        /// What is wrong.
        error: WireError,
    },
    /// A scenario that is wrong, or that cannot be started.
    #[error("{0}")]
    Scenario(String),
}

/// Reads a file by what it is.
pub(super) fn read(file: &PlanFile<'_>) -> Result<Planned, PlanError> {
    let name = || file.name.to_owned();
    if !file.text.trim_start().starts_with('{') {
        return of_scenario(file.name, file.text);
    }
    // A decision log is one JSON text a line; the first says what it is.
    let first = file.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let head: Option<Value> = serde_json::from_str(first).ok();
    if head.as_ref().and_then(|head| head.get("schema")) == Some(&Value::from(wire::SCHEMA)) {
        let log = Log::read(file.text.as_bytes())
            .map_err(|error| PlanError::Log { file: name(), error })?;
        return Ok(of_log(&log));
    }
    let value: Value = serde_json::from_str(file.text)
        .map_err(|error| PlanError::Json { file: name(), why: error.to_string() })?;
    match value.get("schema").and_then(Value::as_str) {
        Some(PLAN) => of_plan(file.name, &value),
        other => {
            let schema = other.map_or_else(|| "none".to_owned(), |text| format!("`{text}`"));
            Err(PlanError::Schema { file: name(), schema })
        }
    }
}

fn bytes(n: i64) -> Quantity {
    Quantity::Bytes(n)
}

fn count(n: i64) -> Quantity {
    Quantity::Count(n)
}

fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Keys of a plan's figures that are rows of their own.
const FIGURES: [(&str, &str); 6] = [
    ("chunked_prefill_size", "chunked_prefill_size"),
    ("max_running_requests", "max_running_requests"),
    ("kv_bytes_per_token", "kv_bytes_per_token"),
    ("available_kv_cache_memory", "available_kv_cache_memory"),
    ("num_gpu_blocks", "num_gpu_blocks"),
    ("context_len", "context_len"),
];

/// The name of a figure as the JSON and the log spell it: bytes say their unit there.
fn spelled(name: &str) -> [String; 2] {
    [name.to_owned(), format!("{name}_bytes")]
}

fn in_bytes(row: &str) -> bool {
    matches!(row, "kv_bytes_per_token" | "available_kv_cache_memory")
}

fn of_plan(file: &str, plan: &Value) -> Result<Planned, PlanError> {
    let missing = |key, wanted| PlanError::Key { file: file.to_owned(), key, wanted };
    let mut spans = BTreeMap::new();
    let text = |pointer: &str| plan.pointer(pointer).and_then(Value::as_str);
    let mut put_text = |row: &'static str, found: Option<&str>| {
        if let Some(found) = found {
            spans.insert(row, Span::exact(Quantity::Text(found.to_owned())));
        }
    };
    put_text("engine", text("/engine/name"));
    put_text("version", text("/engine/version"));
    put_text("model", text("/model/name"));
    let verdict = text("/verdict").ok_or_else(|| missing("verdict", "text"))?;
    put_text("outcome", Some(if verdict == "refused" { "refused" } else { "started" }));
    let integer = |pointer: &str| plan.pointer(pointer).and_then(Value::as_i64);
    let ranks = integer("/device/ranks").ok_or_else(|| missing("device.ranks", "number"))?;
    spans.insert("ranks", Span::exact(count(ranks)));
    if let Some(used) = plan.pointer("/window/used").and_then(Value::as_f64) {
        spans.insert("fraction", Span::exact(Quantity::Number(used)));
    }
    let span = |pointer: &str| -> Option<Span> {
        let part = |name: &str| integer(&format!("{pointer}/{name}")).map(bytes);
        Some(Span { low: part("low_bytes")?, mid: part("mid_bytes")?, high: part("high_bytes")? })
    };
    let before = span("/basis/free_before_load/interval");
    let before = before.ok_or_else(|| missing("basis.free_before_load", "interval of bytes"))?;
    let load = span("/basis/load/interval");
    let load = load.ok_or_else(|| missing("basis.load", "interval of bytes"))?;
    let outside = span("/basis/graphs/interval").zip(span("/basis/workspaces/interval"));
    let tokens = |name: &str| integer(&format!("/pool/{name}")).map(count);
    if let (Some(low), Some(mid), Some(high)) =
        (tokens("low_tokens"), tokens("tokens"), tokens("high_tokens"))
    {
        spans.insert("pool_tokens", Span { low, mid, high });
    }
    if let Some(context) = integer("/pool/context_len_tokens") {
        spans.insert("context_len", Span::exact(count(context)));
    }
    for (row, figure) in FIGURES {
        let found = spelled(figure)
            .into_iter()
            .find_map(|name| plan.pointer("/figures")?.get(&name)?.get("value")?.as_i64());
        if let Some(value) = found {
            let value = if in_bytes(row) { bytes(value) } else { count(value) };
            spans.entry(row).or_insert_with(|| Span::exact(value));
        }
    }
    memory(&mut spans, before, load, outside);
    if let Some(left) = span("/left_after_graphs") {
        spans.insert("free_after_graphs", left);
    }
    Ok(Planned { kind: "plan", spans })
}

/// The rows of memory from the parts of a basis: what is independent adds as squares.
fn memory(
    spans: &mut BTreeMap<&'static str, Span>,
    before: Span,
    load: Span,
    outside: Option<(Span, Span)>,
) {
    if let Some(after) = combined(&before, &load, -1.0) {
        spans.insert("free_after_load", after);
    }
    spans.insert("free_before_load", before);
    spans.insert("weights", load);
    if let Some((graphs, workspaces)) = outside
        && let Some(both) = combined(&graphs, &workspaces, 1.0)
    {
        spans.insert("graphs", both);
    }
}

fn combined(a: &Span, b: &Span, sign: f64) -> Option<Span> {
    let mid = a.mid.number()? + sign * b.mid.number()?;
    let below = |span: &Span| Some(span.mid.number()? - span.low.number()?);
    let above = |span: &Span| Some(span.high.number()? - span.mid.number()?);
    let (b_down, b_up) = if sign < 0.0 { (above(b)?, below(b)?) } else { (below(b)?, above(b)?) };
    Some(Span {
        low: a.mid.like(mid - below(a)?.hypot(b_down))?,
        mid: a.mid.like(mid)?,
        high: a.mid.like(mid + above(a)?.hypot(b_up))?,
    })
}

fn of_scenario(name: &str, text: &str) -> Result<Planned, PlanError> {
    let wrong = |error: &dyn std::fmt::Display| PlanError::Scenario(error.to_string());
    let scenario = Scenario::parse(name, text, &[]).map_err(|problems| wrong(&problems))?;
    let assembled =
        assemble::of_scenario(&scenario, Path::new(name)).map_err(|error| wrong(&error))?;
    let plan = plan::plan(&assembled.case).map_err(|error| wrong(&error))?;
    let mut spans = of_case(&plan);
    let mut put_text = |row, text: String| {
        spans.insert(row, Span::exact(Quantity::Text(text)));
    };
    put_text("engine", assembled.launch.engine.engine().to_string());
    put_text("version", assembled.launch.engine.version().to_string());
    put_text("model", assembled.case.model.name.clone());
    let ends = match scenario.expect.outcome {
        Some(ending) => outcome(ending),
        None => started(&plan.ran.start.end),
    };
    put_text("outcome", ends.to_owned());
    spans.insert("ranks", Span::exact(count(i64::from(assembled.case.ranks))));
    Ok(Planned { kind: "scenario", spans })
}

/// The endings that a log can tell apart.
fn outcome(ending: Ending) -> &'static str {
    match ending {
        Ending::Refused => "refused",
        Ending::OutOfMemory | Ending::HostOutOfMemory | Ending::Fatal => "out_of_memory",
        _ => "started",
    }
}

const fn started(end: &StartEnd) -> &'static str {
    match end {
        StartEnd::Ready => "started",
        StartEnd::Refused(_) => "refused",
        StartEnd::OutOfMemory(_) => "out_of_memory",
    }
}

fn estimate(e: plimsoll_core::figure::Estimate) -> Span {
    let of = |b: Bytes| bytes(whole(b.0));
    Span { low: of(e.low), mid: of(e.mid), high: of(e.high) }
}

fn of_case(plan: &Plan) -> BTreeMap<&'static str, Span> {
    let mut spans = BTreeMap::new();
    let (basis, start) = (&plan.ran.basis, &plan.ran.start);
    let outside = (estimate(basis.graphs.value), estimate(basis.workspaces.value));
    memory(
        &mut spans,
        estimate(basis.free_before_load.value),
        estimate(basis.load.value),
        Some(outside),
    );
    if let Some(free) = start.reading("after_pool") {
        spans.insert("free_after_pool", Span::exact(bytes(whole(free.least().0))));
    }
    if let Some(left) = plan.left {
        spans.insert("free_after_graphs", estimate(left));
    }
    if let Some(pool) = plan.pool {
        let of = |tokens: plimsoll_core::units::Tokens| count(whole(tokens.0));
        spans.insert(
            "pool_tokens",
            Span { low: of(pool.low), mid: of(pool.mid), high: of(pool.high) },
        );
    }
    if let Some(fraction) = plan.fraction {
        spans.insert("fraction", Span::exact(Quantity::Number(fraction)));
    }
    if let Some(context) = plan.context_len {
        spans.insert("context_len", Span::exact(count(whole(context))));
    }
    for (row, name) in FIGURES {
        let found = spelled(name).into_iter().find_map(|name| start.figure(&name));
        let value = found.and_then(|figure| match &figure.value {
            FigureValue::Bytes(b) => Some(bytes(whole(b.0))),
            FigureValue::Count(n) => Some(count(whole(*n))),
            FigureValue::Float(x) if in_bytes(row) => Some(bytes(*x as i64)),
            _ => None,
        });
        if let Some(value) = value {
            spans.entry(row).or_insert_with(|| Span::exact(value));
        }
    }
    spans
}

/// A decision log: what a run read and decided, to the byte.
fn of_log(log: &Log) -> Planned {
    let mut spans = BTreeMap::new();
    if let Some(FieldValue::Text(text)) = log.header.get("scenario_text")
        && let Ok(planned) = of_scenario("the scenario of the recording", text)
    {
        for row in ["engine", "version", "model", "ranks"] {
            if let Some(span) = planned.spans.get(row) {
                spans.insert(row, span.clone());
            }
        }
    }
    for record in &log.records {
        of_record(&mut spans, record);
    }
    let least = |spans: &BTreeMap<&'static str, Span>, row| {
        spans.get(row).and_then(|span: &Span| span.mid.number())
    };
    let difference = |a: Option<f64>, b: Option<f64>| Some(bytes((a? - b?) as i64));
    let (before, after) = (least(&spans, "free_before_load"), least(&spans, "free_after_load"));
    let (pool, end) = (least(&spans, "free_after_pool"), least(&spans, "free_after_graphs"));
    if let Some(weights) = difference(before, after) {
        spans.insert("weights", Span::exact(weights));
    }
    if let Some(graphs) = difference(pool, end) {
        spans.insert("graphs", Span::exact(graphs));
    }
    Planned { kind: "recording", spans }
}

fn of_record(spans: &mut BTreeMap<&'static str, Span>, record: &Record) {
    let number = |name: &str| match record.fields.get(name) {
        Some(FieldValue::Unsigned(n)) => Some(whole(*n)),
        Some(FieldValue::Signed(n)) => Some(*n),
        _ => None,
    };
    let mut ends = |word: &str| {
        spans.insert("outcome", Span::exact(Quantity::Text(word.to_owned())));
    };
    match record.kind.as_str() {
        "reading" => {
            let Some(FieldValue::Text(point)) = record.fields.get("point") else { return };
            let row = match point.as_str() {
                "before_load" => "free_before_load",
                "after_load" => "free_after_load",
                "after_pool" => "free_after_pool",
                "after_graphs" => "free_after_graphs",
                _ => return,
            };
            let Some(free) = number("free_bytes") else { return };
            let least = spans.get(row).and_then(|span| span.mid.number());
            if least.is_none_or(|least| (free as f64) < least) {
                spans.insert(row, Span::exact(bytes(free)));
            }
        }
        "settings_resolved" | "pool_sized" => {
            let names = FIGURES.into_iter().chain([
                ("pool_tokens", "max_total_num_tokens"),
                ("pool_tokens", "kv_cache_tokens"),
                ("context_len", "max_model_len"),
            ]);
            for (row, name) in names {
                let found = spelled(name).into_iter().find_map(|name| number(&name));
                if let Some(value) = found {
                    let value = if in_bytes(row) { bytes(value) } else { count(value) };
                    spans.insert(row, Span::exact(value));
                }
            }
            for name in ["mem_fraction_static", "gpu_memory_utilization"] {
                if let Some(FieldValue::Float(x)) = record.fields.get(name) {
                    spans.insert("fraction", Span::exact(Quantity::Number(*x)));
                }
            }
        }
        "ready" => ends("started"),
        "refused" => ends("refused"),
        "out_of_memory" | "scheduler_fatal" => ends("out_of_memory"),
        _ => {}
    }
}
