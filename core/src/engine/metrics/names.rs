//! Names, units and meanings of the metrics.

/// Unit of a metric, always as an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds.
    Nanos,
    /// Requests, tokens, times.
    Count,
    /// Thousandths.
    Milli,
    /// Thousandths a second.
    MilliPerSecond,
    /// Millionths of a whole.
    Ppm,
}

/// One metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricSpec {
    /// Its name, without the unit.
    pub name: &'static str,
    /// Its name with the unit last: `ttft_p99_ns`.
    pub full_name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// What it is.
    pub doc: &'static str,
}

macro_rules! metric {
    ($name:literal, $unit:ident, $suffix:literal, $doc:literal $(,)?) => {
        MetricSpec { name: $name, full_name: concat!($name, $suffix), unit: Unit::$unit, doc: $doc }
    };
}

macro_rules! time {
    ($name:literal, $part:literal, $what:literal, $how:literal) => {
        MetricSpec {
            name: concat!($name, $part),
            full_name: concat!($name, $part, "_ns"),
            unit: Unit::Nanos,
            doc: concat!($what, $how),
        }
    };
}

macro_rules! times {
    ($name:literal, $what:literal) => {
        [
            time!($name, "_mean", $what, ": mean."),
            time!($name, "_p50", $what, ": median."),
            time!($name, "_p90", $what, ": 90th percentile."),
            time!($name, "_p95", $what, ": 95th percentile."),
            time!($name, "_p99", $what, ": 99th percentile."),
            time!($name, "_max", $what, ": largest."),
        ]
    };
}

/// Counts, shares and rates, in the order of [`super::MetricsReport::values`].
const SINGLE: [MetricSpec; 25] = [
    metric!("arrived_requests", Count, "", "Requests that reached the server."),
    metric!("finished_requests", Count, "", "Requests that ended with an answer."),
    metric!("aborted_requests", Count, "", "Requests that were given up."),
    metric!("refused_requests", Count, "", "Requests that were turned away."),
    metric!("load_time", Nanos, "_ns", "From the first arrival to the last token."),
    metric!("busy_time", Nanos, "_ns", "Time in which passes ran."),
    metric!("input_tokens", Count, "", "Prompt tokens of requests that got a first token."),
    metric!("output_tokens", Count, "", "Tokens that requests got."),
    metric!(
        "cached_tokens",
        Count,
        "",
        "Prompt tokens found in the prefix cache, at first admission.",
    ),
    metric!(
        "recomputed_tokens",
        Count,
        "",
        "Tokens that were computed once more for the same request.",
    ),
    metric!(
        "throughput_requests",
        MilliPerSecond,
        "_milli_per_s",
        "Answers a second of `load_time`."
    ),
    metric!(
        "throughput_input",
        MilliPerSecond,
        "_milli_per_s",
        "`input_tokens` a second of `load_time`."
    ),
    metric!(
        "throughput_output",
        MilliPerSecond,
        "_milli_per_s",
        "`output_tokens` a second of `load_time`."
    ),
    metric!(
        "throughput_total",
        MilliPerSecond,
        "_milli_per_s",
        "Input and output tokens a second of `load_time`.",
    ),
    metric!(
        "hit_rate",
        Ppm,
        "_ppm",
        "Part of the prompt tokens that was found in the prefix cache."
    ),
    metric!(
        "goodput",
        MilliPerSecond,
        "_milli_per_s",
        "Answers within the SLO, a second of `load_time`."
    ),
    metric!(
        "slo_share",
        Ppm,
        "_ppm",
        "Part of the requests that arrived that was answered within the SLO.",
    ),
    metric!("pool_usage_mean", Ppm, "_ppm", "Part of the pool in use, mean over `busy_time`."),
    metric!("pool_usage_peak", Ppm, "_ppm", "Most of the pool in use in a pass."),
    metric!("running_mean", Milli, "_milli", "Requests that run, mean over `busy_time`."),
    metric!("running_max", Count, "", "Most requests that ran."),
    metric!("retractions", Count, "", "Times that a running request gave its slots back."),
    metric!("preemptions", Count, "", "Those of them that made way for a better priority."),
    metric!("chunks", Count, "", "Pieces of prompts behind which more followed."),
    metric!(
        "deferrals",
        Count,
        "",
        "Times that the head of the queue, or its reason to wait, changed.",
    ),
];

const DEFERRALS: [MetricSpec; 3] = [
    metric!("deferred_no_token", Count, "", "Deferrals for lack of token slots."),
    metric!("deferred_budget", Count, "", "Deferrals for a spent prefill budget."),
    metric!("deferred_running_full", Count, "", "Deferrals because as many ran as may run."),
];

const TTFT: [MetricSpec; 6] = times!("ttft", "Arrival to first token");
const TPOT: [MetricSpec; 6] = times!("tpot", "Time per output token after the first");
const ITL: [MetricSpec; 6] = times!("itl", "Gap between two tokens of a request");
const E2E: [MetricSpec; 6] = times!("e2e", "Arrival to last token");
const QUEUE: [MetricSpec; 6] = times!("queue_time", "Arrival to first admission");

/// Every metric, in the order of [`super::MetricsReport::values`].
pub const METRICS: [MetricSpec; 58] = all();

const fn all() -> [MetricSpec; 58] {
    let mut out = [SINGLE[0]; 58];
    let mut at = 0;
    let parts: [&[MetricSpec]; 7] = [&SINGLE, &DEFERRALS, &TTFT, &TPOT, &ITL, &E2E, &QUEUE];
    let mut part = 0;
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            out[at] = parts[part][i];
            at += 1;
            i += 1;
        }
        part += 1;
    }
    out
}
