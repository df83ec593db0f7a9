//! Metrics of a run: a block for people, an object for machines.

use super::{
    table::{Align, Table},
    text::wrap,
};
use crate::output::Output;
use plimsoll_core::{
    engine::metrics::{MetricsReport, Slo, Summary},
    units::{Bytes, group_thousands},
};
use plimsoll_replay::{run::ScenarioRun, scenario::time};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// A few lines and a table; empty where no request got a token.
pub fn human(run: &ScenarioRun, output: &Output) -> String {
    let Some(served) = run.served.as_ref().filter(|served| served.metrics.output_tokens > 0) else {
        return String::new();
    };
    let metrics = &served.metrics;
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name:<5} {text}"), output.width(), 8));
    };
    line("load", &load(metrics));
    let slo = Slo::from(run.scenario.slo);
    if let Some(good) = metrics.good {
        line("slo", &goodput(metrics, good, &slo));
    }
    line("cache", &cache(metrics));
    line("pool", &pool(metrics, served.served.totals.least_free));
    out.push_str(&latencies(metrics));
    out
}

/// Answers and throughput.
pub(super) fn load(metrics: &MetricsReport) -> String {
    let rate = |count| tenths(metrics.rate_milli_per_s(count));
    let total = metrics.input_tokens.saturating_add(metrics.output_tokens);
    format!(
        "{} of {} requests in {}: {} requests/s, {} input + {} output = {} tokens/s",
        group_thousands(metrics.finished),
        group_thousands(metrics.arrived),
        seconds(metrics.load_time),
        rate(metrics.finished),
        rate(metrics.input_tokens),
        rate(metrics.output_tokens),
        rate(total),
    )
}

fn goodput(metrics: &MetricsReport, good: u64, slo: &Slo) -> String {
    let limits = [("TTFT", slo.ttft), ("TPOT", slo.tpot), ("E2E", slo.e2e)];
    let limits: Vec<String> = limits
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name} {}", time::show(limit?))))
        .collect();
    let share = percent(metrics.slo_share_ppm().unwrap_or_default());
    let rate = tenths(metrics.rate_milli_per_s(good));
    format!("{share} within {}: {rate} good requests/s", limits.join(", "))
}

/// What the prefix cache found, and what had to be done again.
pub(super) fn cache(metrics: &MetricsReport) -> String {
    let hit = metrics.hit_rate_ppm.map_or_else(|| "-".to_owned(), percent);
    let mut out = format!("{hit} of prompt tokens found");
    let mut more = |count: u64, one: &str, many: &str| {
        if count > 0 {
            let word = if count == 1 { one } else { many };
            let _ = write!(out, ", {} {word}", group_thousands(count));
        }
    };
    more(metrics.chunks, "prompt piece before the last", "prompt pieces before the last");
    more(metrics.retractions, "retraction", "retractions");
    more(metrics.recomputed_tokens, "token computed again", "tokens computed again");
    out
}

/// Use of the pool, and how many ran.
pub(super) fn pool(metrics: &MetricsReport, least_free: Option<Bytes>) -> String {
    let (milli, most) = (metrics.running_mean_milli, group_thousands(metrics.running_max));
    let mut out = format!(
        "{} in use, at most {}; {} requests run, at most {most}",
        percent(metrics.pool_usage_mean_ppm),
        percent(metrics.pool_usage_peak_ppm),
        tenths(Some(milli)),
    );
    if let Some(free) = least_free {
        let _ = write!(out, "; at least {:.2} GiB free", free.as_gib_f64());
    }
    out
}

/// A table of the times.
pub(super) fn latencies(metrics: &MetricsReport) -> String {
    let columns = ["", "mean", "p50", "p90", "p95", "p99", "max"];
    let mut table = Table::new(
        &columns.map(|name| (name, if name.is_empty() { Align::Left } else { Align::Right })),
    );
    let rows = [
        ("TTFT", metrics.ttft),
        ("TPOT", metrics.tpot),
        ("ITL", metrics.itl),
        ("E2E", metrics.e2e),
        ("queue", metrics.queue_time),
    ];
    for (name, summary) in rows {
        let Some(Summary { mean, p50, p90, p95, p99, max }) = summary else { continue };
        let cells = [mean, p50, p90, p95, p99, max].map(milliseconds);
        table.row(std::iter::once(format!("{name}, ms")).chain(cells).collect());
    }
    table.human()
}

/// Every metric by its name, the unit last; null where it has no value.
pub fn machine(run: &ScenarioRun) -> Value {
    let Some(served) = &run.served else { return Value::Null };
    let mut all = values(&served.metrics);
    let free = served.served.totals.least_free.map(|free| free.0);
    all.insert("least_free_bytes".to_owned(), json!(free));
    Value::Object(all)
}

/// The same of any report.
pub(super) fn values(report: &MetricsReport) -> Map<String, Value> {
    let values = report.values().into_iter();
    values.map(|(spec, value)| (spec.full_name.to_owned(), json!(value))).collect()
}

/// `1,234.5`, from thousandths.
fn tenths(milli: Option<u64>) -> String {
    milli.map_or_else(
        || "-".to_owned(),
        |milli| {
            let count = milli / 100 + u64::from(milli % 100 >= 50);
            format!("{}.{}", group_thousands(count / 10), count % 10)
        },
    )
}

/// `31.8 %`, from millionths.
pub(super) fn percent(ppm: u64) -> String {
    let tenths = ppm / 1_000 + u64::from(ppm % 1_000 >= 500);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// `12.35 s`.
pub(super) fn seconds(nanos: u64) -> String {
    let hundredths = nanos / 10_000_000 + u64::from(nanos % 10_000_000 >= 5_000_000);
    format!("{}.{:02} s", group_thousands(hundredths / 100), hundredths % 100)
}

/// `1,234.5`, from nanoseconds.
fn milliseconds(nanos: u64) -> String {
    tenths(Some(nanos / 1_000))
}
