//! Figures that a run can produce and a scenario can claim.

use crate::outcome::FigureKind;
use plimsoll_core::engine::metrics::{METRICS, MetricSpec, Unit};

/// One figure that a run can produce and a scenario can claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FigureSpec {
    /// The engine's own name.
    pub name: &'static str,
    /// What kind of value it is.
    pub kind: FigureKind,
    /// What it means.
    pub doc: &'static str,
    /// A value, as it would be written.
    pub example: &'static str,
}

const fn spec(
    name: &'static str,
    kind: FigureKind,
    example: &'static str,
    doc: &'static str,
) -> FigureSpec {
    FigureSpec { name, kind, doc, example }
}

use FigureKind::{Bytes, Count, Duration, Number, Text};

/// Every figure that can be claimed: those of a start and of a run's end, then the metrics.
pub const FIGURES: &[FigureSpec] = &all();

const fn all() -> [FigureSpec; SINGLE.len() + METRICS.len()] {
    let mut out = [SINGLE[0]; SINGLE.len() + METRICS.len()];
    let mut at = 0;
    while at < out.len() {
        out[at] = match at.checked_sub(SINGLE.len()) {
            None => SINGLE[at],
            Some(at) => of_metric(&METRICS[at]),
        };
        at += 1;
    }
    out
}

/// Shares and rates are claimed as plain numbers: a part of 1, tokens a second.
const fn of_metric(metric: &MetricSpec) -> FigureSpec {
    let (kind, example) = match metric.unit {
        Unit::Nanos => (Duration, "350 ms"),
        Unit::Count => (Count, "12"),
        Unit::Ppm => (Number, "0.85"),
        Unit::Milli => (Number, "12.5"),
        Unit::MilliPerSecond => (Number, "1250.5"),
    };
    spec(metric.name, kind, example, metric.doc)
}

const SINGLE: &[FigureSpec] = &[
    spec("max_total_num_tokens", Count, "231120", "Token slots of the KV pool (SGLang)."),
    spec(
        "mem_fraction_static",
        Number,
        "0.848",
        "Fraction that is used, given or automatic (SGLang).",
    ),
    spec("chunked_prefill_size", Count, "8192", "Tokens of a prefill chunk; -1: off (SGLang)."),
    spec("max_prefill_tokens", Count, "16384", "Tokens of a prefill batch (SGLang)."),
    spec("cuda_graph_max_bs", Count, "512", "Largest batch with a captured graph."),
    spec("max_running_requests", Count, "2048", "Requests that run together (SGLang)."),
    spec("req_to_token_pool_size", Count, "2048", "Rows of the request table (SGLang)."),
    spec(
        "req_to_token_bytes",
        Bytes,
        "2 GiB",
        "Request table, which the budget does not hold (SGLang).",
    ),
    spec("context_len", Count, "262144", "Longest sequence, tokens (SGLang)."),
    spec("page_size", Count, "1", "Tokens of a KV page (SGLang)."),
    spec(
        "kv_bytes_per_token",
        Bytes,
        "70272 B",
        "One KV cell on one rank: all its layers, one token.",
    ),
    spec("kv_pool_bytes", Bytes, "15.126 GiB", "The KV pool of one rank, padding included."),
    spec(
        "full_max_total_num_tokens",
        Count,
        "565446",
        "Slots of the full-attention pool of a hybrid model.",
    ),
    spec(
        "swa_max_total_num_tokens",
        Count,
        "35340",
        "Slots of the sliding-window pool of a hybrid model.",
    ),
    spec(
        "max_mamba_cache_size",
        Count,
        "180",
        "State slots of a Mamba or linear-attention hybrid.",
    ),
    spec("draft_max_total_num_tokens", Count, "231120", "Token slots of the draft model's pool."),
    spec(
        "state_pool_bytes",
        Bytes,
        "51.77 GiB",
        "State slots of a hybrid model, padding included.",
    ),
    spec(
        "suggested_mem_fraction_static",
        Number,
        "0.942",
        "Fraction that a refused start asks for (SGLang).",
    ),
    spec("reserved_memory", Bytes, "14848 MiB", "Reserve behind the automatic fraction (SGLang)."),
    spec(
        "gpu_memory_utilization",
        Number,
        "0.9",
        "Fraction of the device that is asked for (vLLM).",
    ),
    spec(
        "suggested_gpu_memory_utilization",
        Number,
        "0.83",
        "Most that a start refused for lack of free memory could ask for (vLLM).",
    ),
    spec("requested_memory", Bytes, "71.3 GiB", "Device memory that is asked for (vLLM)."),
    spec("available_kv_cache_memory", Bytes, "53.29 GiB", "What is left for KV (vLLM)."),
    spec("num_gpu_blocks", Count, "4660", "Blocks of the KV cache (vLLM)."),
    spec("num_cpu_blocks", Count, "4096", "Blocks of swap space (vLLM V0)."),
    spec("block_size", Count, "16", "Tokens of a block (vLLM)."),
    spec("kv_cache_tokens", Count, "74560", "Tokens of the KV cache, as vLLM prints them."),
    spec("max_model_len", Count, "40000", "Longest sequence, tokens (vLLM)."),
    spec(
        "estimated_max_model_len",
        Count,
        "122080",
        "Longest sequence that fits, as a refused start says (vLLM).",
    ),
    spec("max_num_seqs", Count, "256", "Sequences of a step (vLLM)."),
    spec("max_num_batched_tokens", Count, "8192", "Tokens of a step (vLLM)."),
    spec(
        "max_concurrency",
        Number,
        "1.86",
        "Longest requests that fit together; `1.86x` is read too (vLLM).",
    ),
    spec("weights", Bytes, "72.328 GiB", "What loading took on one rank."),
    spec("graph_memory", Bytes, "3.7 GiB", "What graph capture took."),
    spec("free_after_load", Bytes, "21.71 GiB", "Free device memory after the weights."),
    spec("free_after_pool", Bytes, "6.58 GiB", "Free device memory after the pool."),
    spec("free_after_graphs", Bytes, "0.82 GiB", "Free device memory after graph capture."),
    spec(
        "host_pool_tokens",
        Count,
        "683061",
        "Token slots of one rank's host pool (hierarchical cache).",
    ),
    spec("host_pool_bytes", Bytes, "44.7 GiB", "One rank's host pool (hierarchical cache)."),
    spec("host_required_bytes", Bytes, "357.6 GiB", "Host pools of all ranks on the host."),
    spec(
        "died_in",
        Text,
        "decode",
        "Where the server died: `start`, `prefill`, `decode` or `host`.",
    ),
    spec("died_at", Duration, "48.2 s", "When it died, after it was ready."),
    spec("died_at_step", Count, "412", "Step in which it died, from 0."),
    spec("died_layer", Count, "3", "Layer of the forward pass in which it died, from 0."),
    spec("died_buffer", Text, "moe_output", "Name of the buffer that was not to be had."),
    spec("died_rank", Count, "0", "Rank that died first, from 0."),
    spec("died_requested", Bytes, "896 MiB", "Block that was asked for when it died."),
    spec("died_segment", Bytes, "896 MiB", "What the allocator asked of the device for it."),
    spec("died_free", Bytes, "0.41 GiB", "Free device memory at that moment."),
    spec("died_allocated", Bytes, "1.12 GiB", "Live in the caching allocator at that moment."),
    spec("steps", Count, "20480", "Forward passes."),
    spec("prefill_steps", Count, "190", "Forward passes with prompt tokens."),
    spec("decode_steps", Count, "20290", "Forward passes of decode alone."),
    spec("evicted_tokens", Count, "48000", "Slots taken back from the prefix cache."),
    spec(
        "evicted_window_tokens",
        Count,
        "51000",
        "Window slots taken back from the prefix cache (window hybrids).",
    ),
    spec("backed_up_tokens", Count, "96000", "Slots copied to the host (hierarchical cache)."),
    spec("loaded_back_tokens", Count, "32000", "Slots loaded from the host (hierarchical cache)."),
    spec("peak_used_tokens", Count, "16095", "Most slots in use."),
    spec("peak_used_window_tokens", Count, "12876", "Most window slots in use (window hybrids)."),
    spec(
        "peak_usage",
        Number,
        "0.97",
        "Most of the pool in use, as a fraction; of two pools the fuller one.",
    ),
    spec("used_tokens_at_end", Count, "16095", "Slots in use at the end."),
    spec(
        "usage_at_end",
        Number,
        "0.05",
        "Part of the pool in use at the end; not rounded, an engine's log is.",
    ),
    spec("running_at_end", Count, "32", "Requests that run at the end."),
    spec("waiting_at_end", Count, "0", "Requests that wait at the end."),
    spec("least_free", Bytes, "0.11 GiB", "Least free device memory over the run, all ranks."),
    spec("peak_activations", Bytes, "1.49 GiB", "Most that was live in the caching allocator."),
    spec("peak_reserved", Bytes, "1.6 GiB", "Most that the caching allocator held of the device."),
    spec(
        "largest_request",
        Bytes,
        "0.875 GiB",
        "Largest block that was asked of the caching allocator.",
    ),
    spec("largest_chunk", Count, "8192", "Most prompt tokens of one forward pass."),
    spec("duration", Duration, "15 min", "Time from ready to the end."),
];

/// Names of [`FIGURES`] and of the two words, for messages.
pub(super) static NAMES: [&str; FIGURES.len() + 2] = names();

const fn names() -> [&'static str; FIGURES.len() + 2] {
    let mut all = ["outcome"; FIGURES.len() + 2];
    all[1] = "refusal";
    let mut i = 0;
    while i < FIGURES.len() {
        all[i + 2] = FIGURES[i].name;
        i += 1;
    }
    all
}
