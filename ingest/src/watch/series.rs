//! Which series of a server stand for which figure.
//!
//! Names: SGLang 0.4.6 to 0.5.23 `srt/metrics/collector.py` (later `srt/observability`), vLLM 0.8 to 0.33
//! `engine/metrics.py` and `v1/metrics/loggers.py`. Exporters that allow no colon write `_` for it.

use super::{RankFigures, ServerKind};

/// Where a value goes.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// A count at this moment; of several series with one name the largest counts: the others are parts of it
    /// (by priority), or older processes.
    Gauge(fn(&mut RankFigures) -> &mut Option<u64>),
    /// A count since the start; several series with one name are parts of it.
    Counter(fn(&mut RankFigures) -> &mut Option<u64>),
    /// A share or a rate; of several series with one name the largest.
    Part(fn(&mut RankFigures) -> &mut Option<f64>),
}

/// One series.
pub(super) struct Series {
    pub(super) kind: ServerKind,
    /// Name behind `sglang:` or `vllm:`.
    pub(super) name: &'static str,
    /// Only with this label.
    pub(super) only: Option<(&'static str, &'static str)>,
    pub(super) field: Field,
}

const fn sglang(name: &'static str, field: Field) -> Series {
    Series { kind: ServerKind::Sglang, name, only: None, field }
}

const fn vllm(name: &'static str, field: Field) -> Series {
    Series { kind: ServerKind::Vllm, name, only: None, field }
}

/// Of two names for one figure the first counts where a page has both.
pub(super) const SERIES: &[Series] = &[
    sglang("num_running_reqs", Field::Gauge(|r| &mut r.running_requests)),
    sglang("num_queue_reqs", Field::Gauge(|r| &mut r.queued_requests)),
    sglang("num_used_tokens", Field::Gauge(|r| &mut r.pool_held_tokens)),
    sglang("max_total_num_tokens", Field::Gauge(|r| &mut r.pool_capacity_tokens)),
    sglang("token_usage", Field::Part(|r| &mut r.pool_usage)),
    sglang("num_retracted_requests_total", Field::Counter(|r| &mut r.retractions_total)),
    sglang("num_retracted_reqs_total", Field::Counter(|r| &mut r.retractions_total)),
    sglang("num_retracted_reqs", Field::Gauge(|r| &mut r.retracting_requests)),
    Series {
        kind: ServerKind::Sglang,
        name: "realtime_tokens_total",
        only: Some(("mode", "prefill_compute")),
        field: Field::Counter(|r| &mut r.prefill_tokens_total),
    },
    sglang("prompt_tokens_total", Field::Counter(|r| &mut r.prompt_tokens_total)),
    sglang("generation_tokens_total", Field::Counter(|r| &mut r.output_tokens_total)),
    sglang("gen_throughput", Field::Part(|r| &mut r.output_tokens_per_s)),
    sglang("cache_hit_rate", Field::Part(|r| &mut r.cache_hit_rate)),
    vllm("num_requests_running", Field::Gauge(|r| &mut r.running_requests)),
    vllm("num_requests_waiting", Field::Gauge(|r| &mut r.queued_requests)),
    vllm("kv_cache_usage_perc", Field::Part(|r| &mut r.pool_usage)),
    vllm("gpu_cache_usage_perc", Field::Part(|r| &mut r.pool_usage)),
    vllm("num_preemptions_total", Field::Counter(|r| &mut r.retractions_total)),
    vllm("num_preemptions", Field::Counter(|r| &mut r.retractions_total)),
    vllm("prompt_tokens_total", Field::Counter(|r| &mut r.prompt_tokens_total)),
    vllm("generation_tokens_total", Field::Counter(|r| &mut r.output_tokens_total)),
    vllm("avg_generation_throughput_toks_per_s", Field::Part(|r| &mut r.output_tokens_per_s)),
    vllm("prefix_cache_queries_total", Field::Counter(|r| &mut r.cache_query_tokens_total)),
    vllm("prefix_cache_queries", Field::Counter(|r| &mut r.cache_query_tokens_total)),
    vllm("gpu_prefix_cache_queries_total", Field::Counter(|r| &mut r.cache_query_tokens_total)),
    vllm("prefix_cache_hits_total", Field::Counter(|r| &mut r.cache_hit_tokens_total)),
    vllm("prefix_cache_hits", Field::Counter(|r| &mut r.cache_hit_tokens_total)),
    vllm("gpu_prefix_cache_hits_total", Field::Counter(|r| &mut r.cache_hit_tokens_total)),
];

/// vLLM's series whose labels are its cache settings.
pub(super) const CACHE_CONFIG: &str = "cache_config_info";

/// The server of a series, and its name behind the prefix.
pub(super) fn split(name: &str) -> Option<(ServerKind, &str)> {
    [("sglang", ServerKind::Sglang), ("vllm", ServerKind::Vllm)].into_iter().find_map(
        |(prefix, kind)| Some((kind, name.strip_prefix(prefix)?.strip_prefix([':', '_'])?)),
    )
}
