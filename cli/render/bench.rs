//! What a load measured: a screen for people, an object for machines, a table of all metrics.

use super::{
    metrics,
    table::{Align, Table, csv_cell},
    text::wrap,
};
use crate::{
    args::Format,
    commands::bench::{Bench, EngineSide},
    output::{Output, Tone},
};
use plimsoll_core::{
    engine::metrics::{METRICS, MetricsReport},
    units::group_thousands,
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// What a client cannot know of a server: names of metrics without their units, or their beginnings.
const INSIDE: [&str; 9] = [
    "busy_time",
    "recomputed_tokens",
    "pool_usage_",
    "running_",
    "retractions",
    "preemptions",
    "chunks",
    "defer",
    "queue_time_",
];
/// What it knows where the server tells.
const TOLD: [&str; 2] = ["cached_tokens", "hit_rate"];

/// One screen.
pub fn human(bench: &Bench, output: &Output) -> String {
    let (driven, verdict) = (&bench.driven, bench.verdict());
    let tone = if verdict == "completed" { Tone::Good } else { Tone::Bad };
    let of = match bench.place.as_str() {
        "in process" => format!("{} in this process", bench.model),
        place => format!("{} at {place}", bench.model),
    };
    let head = format!("{}: {of}, {}", output.paint(tone, verdict), bench.workload);
    let mut out = format!("{}\n", wrap(&head, output.width(), 0));
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name:<5} {text}"), output.width(), 8));
    };
    line("load", &metrics::load(&driven.metrics));
    if driven.cache_told {
        line("cache", &cached(&driven.metrics));
    }
    for (reason, failed) in &driven.failures {
        let count = group_thousands(failed.count);
        line("fail", &format!("{count} × {reason}, the first: {}", failed.first));
    }
    // When a request left the queue is not seen from outside.
    let seen = MetricsReport { queue_time: None, ..driven.metrics.clone() };
    out.push_str(&metrics::latencies(&seen));
    if let Some(engine) = &bench.engine {
        out.push_str(&inside(engine, output));
    }
    for note in &bench.notes {
        let _ = writeln!(out, "{}", wrap(&format!("note: {note}"), output.width(), 6));
    }
    out
}

fn cached(report: &MetricsReport) -> String {
    let hit = report.hit_rate_ppm.map_or_else(|| "-".to_owned(), metrics::percent);
    let (cached, input) = (report.cached_tokens, report.input_tokens);
    let (cached, input) = (group_thousands(cached), group_thousands(input));
    format!("{hit} of prompt tokens found ({cached} of {input})")
}

/// What the engine counted itself.
fn inside(engine: &EngineSide, output: &Output) -> String {
    let (report, totals) = (&engine.metrics, &engine.totals);
    let mut out = format!("the engine itself ({})\n", engine.precision);
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name:<5} {text}"), output.width(), 8));
    };
    let n = group_thousands;
    let share = engine.scheduler_ppm().map_or_else(|| "-".to_owned(), metrics::percent);
    line(
        "steps",
        &format!(
            "{} prefill and {} decode passes in {}; scheduler {share} of a step",
            n(totals.prefill_steps),
            n(totals.decode_steps),
            metrics::seconds(totals.step_ns),
        ),
    );
    line("cache", &metrics::cache(report));
    line("pool", &metrics::pool(report, None));
    line(
        "count",
        &format!(
            "{} answered, {} given up, {} refused; {} prompt tokens, {} of them cached, {} made",
            n(totals.finished),
            n(totals.aborted),
            n(totals.refused),
            n(totals.prompt_tokens),
            n(totals.cached_tokens),
            n(totals.generation_tokens),
        ),
    );
    out.push_str(&metrics::latencies(report));
    out
}

/// The client's metrics: null where it cannot know.
fn from_outside(bench: &Bench) -> Map<String, Value> {
    let mut values = metrics::values(&bench.driven.metrics);
    let unknown = METRICS.iter().filter(|spec| {
        let told = bench.driven.cache_told || !TOLD.contains(&spec.name);
        !told || INSIDE.iter().any(|inside| spec.name.starts_with(inside))
    });
    unknown.for_each(|spec| drop(values.insert(spec.full_name.to_owned(), Value::Null)));
    values.insert("least_free_bytes".to_owned(), Value::Null);
    values
}

/// The whole result.
pub fn machine(bench: &Bench) -> Value {
    let driven = &bench.driven;
    let failures: Vec<Value> = driven
        .failures
        .iter()
        .map(|(reason, failed)| {
            json!({ "reason": reason, "count": failed.count, "first": failed.first })
        })
        .collect();
    json!({
        "schema": "plimsoll.bench/1",
        "verdict": bench.verdict(),
        "place": bench.place,
        "model": bench.model,
        "workload": bench.workload,
        "seed": bench.seed,
        "requests": bench.requests,
        "wall_time_ns": driven.wall.0,
        "metrics": from_outside(bench),
        "engine": bench.engine.as_ref().map(engine),
        "failures": failures,
        "notes": bench.notes,
    })
}

fn engine(engine: &EngineSide) -> Value {
    let totals = &engine.totals;
    let mut values = metrics::values(&engine.metrics);
    values.insert("least_free_bytes".to_owned(), Value::Null);
    json!({
        "precision": engine.precision,
        "pool_tokens": engine.pool_tokens,
        "prefill_steps": totals.prefill_steps,
        "decode_steps": totals.decode_steps,
        "step_time_ns": totals.step_ns,
        "loop_time_ns": totals.loop_ns,
        "scheduler_share_ppm": engine.scheduler_ppm(),
        "finished_requests": totals.finished,
        "aborted_requests": totals.aborted,
        "refused_requests": totals.refused,
        "prompt_tokens": totals.prompt_tokens,
        "cached_tokens": totals.cached_tokens,
        "generation_tokens": totals.generation_tokens,
        "metrics": values,
    })
}

/// Every metric with the client's value and the engine's.
pub fn table(bench: &Bench, format: Format) -> String {
    let columns = [("metric", Align::Left), ("client", Align::Right), ("engine", Align::Right)];
    let mut table = Table::new(&columns);
    let mut csv = columns.map(|(name, _)| name).join(",") + "\n";
    let outside = from_outside(bench);
    let inside = bench.engine.as_ref().map(|engine| metrics::values(&engine.metrics));
    let cell = |values: Option<&Map<String, Value>>, name: &str| {
        let value = values.and_then(|values| values.get(name)).and_then(Value::as_u64);
        value.map(|value| value.to_string()).unwrap_or_default()
    };
    for spec in &METRICS {
        let name = spec.full_name;
        let cells = vec![name.to_owned(), cell(Some(&outside), name), cell(inside.as_ref(), name)];
        let line: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
        csv.push_str(&format!("{}\n", line.join(",")));
        table.row(cells);
    }
    if format == Format::Csv { csv } else { table.markdown() }
}
