//! The page of metrics in Prometheus' text form: SGLang's names where it has one for the figure, `plimsoll:`
//! for the rest.

use std::{fmt::Write, iter};

use super::{Figures, Histogram};
use crate::{
    engine::{MemoryRow, Phase},
    http::state::Shared,
};

/// Phases by name.
const PHASES: [&str; 6] = ["loading", "proving", "ready", "draining", "stopped", "failed"];

/// Name of a phase.
pub(crate) const fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Loading => "loading",
        Phase::Proving => "proving",
        Phase::Ready => "ready",
        Phase::Draining => "draining",
        Phase::Stopped => "stopped",
        Phase::Failed(_) => "failed",
    }
}

struct Page {
    out: String,
    /// Labels of every series.
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, more: &[(&str, &str)], value: f64) {
        let _ = write!(self.out, "{name}{{model_name=\"{}\"", self.model);
        for (label, text) in more {
            let _ = write!(self.out, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "counter", help);
        self.line(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        for (at, count) in histogram.counts.iter().enumerate() {
            sum += count;
            let bound = histogram.bounds.get(at);
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound}"));
            self.line(&bucket, &[("le", &bound)], sum as f64);
        }
        self.line(&format!("{name}_sum"), &[], histogram.sum);
        self.line(&format!("{name}_count"), &[], sum as f64);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A share of a whole, 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The page.
pub(crate) fn page(shared: &Shared) -> String {
    let model = escaped(&shared.front.engine.info().model);
    let mut page = Page { out: String::with_capacity(16 << 10), model };
    now(&mut page, shared);
    totals(&mut page, shared);
    let figures = shared.metrics.figures().clone();
    times(&mut page, &figures);
    own(&mut page, shared, &figures);
    let engine = &shared.front.engine;
    memory(&mut page, &engine.info().memory, &engine.status().held);
    page.out
}

/// How it is.
fn now(page: &mut Page, shared: &Shared) {
    let (status, info) = (shared.front.engine.status(), shared.front.engine.info());
    let (usage, sums) = (status.usage, status.totals);
    let pool = if usage.pool == 0 { info.max_total_num_tokens } else { usage.pool };
    page.gauge("sglang:num_running_reqs", "Requests that run.", usage.running as f64);
    page.gauge("sglang:num_queue_reqs", "Requests that wait.", usage.waiting as f64);
    page.gauge("sglang:num_used_tokens", "Token slots that requests hold.", usage.used() as f64);
    page.gauge("sglang:token_usage", "Share of the pool that is held.", share(usage.used(), pool));
    page.gauge("sglang:max_total_num_tokens", "Token slots of the pool.", pool as f64);
    page.gauge(
        "sglang:max_running_requests_limit",
        "Requests that may run at once.",
        info.max_running_requests as f64,
    );
    page.gauge(
        "sglang:cache_hit_rate",
        "Share of prompt tokens found in the prefix cache, since the start.",
        share(sums.cached_tokens, sums.prompt_tokens),
    );
    page.gauge("sglang:gen_throughput", "Tokens made a second.", status.gen_throughput);
}

/// Sums since the start.
fn totals(page: &mut Page, shared: &Shared) {
    let sums = shared.front.engine.status().totals;
    let counters = [
        ("sglang:num_requests_total", "Requests taken in.", sums.requests),
        ("sglang:num_aborted_requests_total", "Requests given up.", sums.aborted),
        (
            "sglang:num_retracted_requests_total",
            "Times that a request gave its slots back.",
            sums.retracted,
        ),
        ("sglang:prompt_tokens_total", "Tokens of prompts.", sums.prompt_tokens),
        ("sglang:generation_tokens_total", "Tokens made.", sums.generation_tokens),
        (
            "sglang:cached_tokens_total",
            "Tokens of prompts found in the prefix cache.",
            sums.cached_tokens,
        ),
        ("plimsoll:finished_requests_total", "Requests answered to their end.", sums.finished),
        ("plimsoll:refused_requests_total", "Requests that the engine refused.", sums.refused),
    ];
    for (name, help, value) in counters {
        page.counter(name, help, value as f64);
    }
    let name = "sglang:realtime_tokens_total";
    page.head(name, "counter", "Tokens by how they came about.");
    let computed = sums.prompt_tokens.saturating_sub(sums.cached_tokens);
    let modes = [
        ("prefill_compute", computed),
        ("prefill_cache", sums.cached_tokens),
        ("decode", sums.generation_tokens),
    ];
    for (mode, value) in modes {
        page.line(name, &[("mode", mode)], value as f64);
    }
}

/// Times of requests.
fn times(page: &mut Page, figures: &Figures) {
    page.histogram(
        "sglang:time_to_first_token_seconds",
        "From the request to its first token, as given to the connection.",
        &figures.first_token,
    );
    page.histogram(
        "sglang:inter_token_latency_seconds",
        "From a token to the next.",
        &figures.next_token,
    );
    page.histogram(
        "sglang:e2e_request_latency_seconds",
        "From the request to the end of its answer.",
        &figures.whole,
    );
}

/// What has no name elsewhere.
fn own(page: &mut Page, shared: &Shared, figures: &Figures) {
    let status = shared.front.engine.status();
    let name = "plimsoll:phase";
    page.head(name, "gauge", "1 for the phase that the engine is in.");
    for phase in PHASES {
        let is = phase == phase_name(&status.phase);
        page.line(name, &[("phase", phase)], f64::from(u8::from(is)));
    }
    let sums = status.totals;
    page.gauge("plimsoll:open_requests", "Requests being answered.", shared.open() as f64);
    page.gauge("plimsoll:lent_tokens", "Token slots lent out.", status.lent_tokens as f64);
    page.gauge(
        "plimsoll:evictable_tokens",
        "Token slots of the prefix cache that nobody uses.",
        status.usage.evictable as f64,
    );
    let name = "plimsoll:steps_total";
    page.head(name, "counter", "Passes.");
    page.line(name, &[("mode", "prefill")], sums.prefill_steps as f64);
    page.line(name, &[("mode", "decode")], sums.decode_steps as f64);
    let seconds = |ns: u64| ns as f64 / 1e9;
    page.counter("plimsoll:step_seconds_total", "Time in passes.", seconds(sums.step_ns));
    page.counter(
        "plimsoll:loop_seconds_total",
        "Time of the loop between passes while there was work.",
        seconds(sums.loop_ns),
    );
    let name = "plimsoll:http_responses_total";
    page.head(name, "counter", "Responses by status.");
    for (status, count) in &figures.responses {
        page.line(name, &[("status", &status.to_string())], *count as f64);
    }
}

/// The memory plan, and what its accounts hold.
fn memory(page: &mut Page, planned: &[MemoryRow], held: &[MemoryRow]) {
    let parts = [
        ("plimsoll:memory_bytes", "The memory plan by account.", planned),
        ("plimsoll:memory_held_bytes", "What an account held when it was loaded.", held),
    ];
    for (name, help, rows) in parts {
        page.head(name, "gauge", help);
        for row in rows {
            let account = ("account", row.name.as_str());
            let device = row.device.as_deref().map(|device| ("device", device));
            let labels: Vec<_> = iter::once(account).chain(device).collect();
            page.line(name, &labels, row.bytes.0 as f64);
        }
    }
}
