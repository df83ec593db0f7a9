//! The engine's own log lines about capacity, as text, by release.

use super::{
    budget::Requested,
    capacity::Pool,
    groups::Padding,
    hybrid::HybridPages,
    rules::{KvSizeRule, Rules},
    suggest::{Suggestion, Usage},
    v0::V0Pool,
};
use crate::{
    pyfloat,
    units::{Bytes, GIB, group_thousands},
};

/// GiB with two decimals always (`16.00`), ties to even as Python's `:.2f`.
#[must_use]
pub fn gib_fixed(bytes: f64) -> String {
    format!("{:.2}", bytes / GIB as f64)
}

/// GiB rounded to two decimals, shortest form (`3.0`, `0.56`). Source: vLLM `format_gib`.
#[must_use]
pub fn gib_shortest(bytes: f64) -> String {
    pyfloat::repr(pyfloat::round_digits(bytes / GIB as f64, 2))
}

/// `Available KV cache memory: 53.29 GiB` (0.10+); negative amounts print their sign.
#[must_use]
pub fn available(bytes: i64) -> String {
    format!("Available KV cache memory: {} GiB", gib_shortest(bytes as f64))
}

/// The lines of size and concurrency: two up to 0.27, one from 0.28 on.
#[must_use]
pub fn capacity(rules: &Rules, pool: &Pool) -> Vec<String> {
    let size = format!("GPU KV cache size: {} tokens", pool.kv_cache_tokens);
    let concurrency = format!(
        "Maximum concurrency for {} tokens per request: {:.2}x",
        group_thousands(pool.max_model_len),
        pool.max_concurrency
    );
    if rules.one_capacity_line.exists() {
        vec![format!("{size}, {concurrency}")]
    } else {
        vec![size, concurrency]
    }
}

/// `Overriding num_gpu_blocks=… with num_gpu_blocks_override=…`.
#[must_use]
pub fn blocks_overridden(computed: u64, given: u64) -> String {
    format!("Overriding num_gpu_blocks={computed} with num_gpu_blocks_override={given}")
}

/// `Add … padding layers, may waste at most …% KV cache memory` (a warning).
#[must_use]
pub fn padding(padding: Padding) -> String {
    format!(
        "Add {} padding layers, may waste at most {:.2}% KV cache memory",
        padding.layers,
        padding.percent()
    )
}

/// The two lines of a hybrid model's block size; the second only when something is padded.
#[must_use]
pub fn hybrid(pages: &HybridPages) -> Vec<String> {
    let mut lines = vec![format!(
        "Setting attention block size to {} tokens to ensure that attention page size is >= \
         mamba page size.",
        pages.block_size
    )];
    if pages.page_size > pages.mamba_page {
        lines.push(format!(
            "Padding mamba page size by {:.2}% to ensure that mamba page size and attention page \
             size are exactly equal.",
            pages.padding_percent()
        ));
    }
    lines
}

/// `Auto-fit max_model_len: reduced from … to … to fit in available KV cache memory (… GiB GPU)`.
#[must_use]
pub fn auto_fit(from: u64, to: u64, available: i64) -> String {
    format!(
        "Auto-fit max_model_len: reduced from {from} to {to} to fit in available KV cache memory \
         ({} GiB GPU)",
        gib_shortest(available as f64)
    )
}

/// `Estimated CUDA graph memory: … GiB total` (0.18+).
#[must_use]
pub fn graph_estimate(estimate: Bytes) -> String {
    format!("Estimated CUDA graph memory: {} GiB total", gib_fixed(estimate.0 as f64))
}

/// The utilizations that the engine names when it charges an estimate: the equivalent one without
/// the charge, and the one that keeps the old pool; four decimals, `estimate / total` apart.
#[must_use]
pub fn equivalent_utilizations(
    utilization: f64,
    estimate: Bytes,
    total: Bytes,
) -> (String, String) {
    let d = estimate.0 as f64 / total.0.max(1) as f64;
    (format!("{:.4}", utilization - d), format!("{:.4}", utilization + d))
}

/// `Initial free memory … reserved … as specified by kv_cache_memory_bytes` (0.11+), its first part.
#[must_use]
pub fn kv_bytes_given(free: Bytes, given: Bytes) -> String {
    format!(
        "Initial free memory {} GiB, reserved {} GiB memory for KV Cache as specified by \
         kv_cache_memory_bytes config and skipped memory profiling. This does not respect the \
         gpu_memory_utilization config.",
        gib_shortest(free.0 as f64),
        gib_shortest(given.0 as f64)
    )
}

/// The tail of the suggestion, the same in all releases from 0.11 on.
#[must_use]
pub fn suggestion(suggestion: Suggestion, kv_in_use: Bytes) -> String {
    format!(
        "Replace gpu_memory_utilization config with `--kv-cache-memory={}` ({} GiB) to fit into \
         requested memory, or `--kv-cache-memory={}` ({} GiB) to fully utilize gpu memory. \
         Current kv cache memory in use is {} GiB.",
        suggestion.fit_requested,
        gib_shortest(suggestion.fit_requested as f64),
        suggestion.use_all_free,
        gib_shortest(suggestion.use_all_free as f64),
        gib_shortest(kv_in_use.0 as f64)
    )
}

/// The head of the suggestion from 0.27 on: free, budget and what was used.
#[must_use]
pub fn usage(requested: &Requested, utilization: f64, usage: Usage) -> String {
    format!(
        "Free memory on device ({}/{} GiB) on startup. Desired GPU memory utilization is ({}, {} \
         GiB). Actual usage is {} GiB for consumed memory (weights + non-torch), {} GiB for peak \
         activation, and {} GiB for CUDAGraph memory.",
        gib_shortest(requested.free_at_start.0 as f64),
        gib_shortest(requested.total.0 as f64),
        pyfloat::repr(utilization),
        gib_shortest(requested.bytes),
        gib_shortest(usage.consumed.0 as f64),
        gib_shortest(usage.activation_peak.0 as f64),
        gib_shortest(usage.graphs as f64)
    )
}

/// V0: the line of blocks and the line of concurrency (no thousands separators).
/// `device` is `GPU` up to 0.7 and `cuda` in 0.8.
#[must_use]
pub fn v0_capacity(rules: &Rules, pool: &V0Pool) -> Vec<String> {
    let device = if (rules.version.major, rules.version.minor) >= (0, 8) { "cuda" } else { "GPU" };
    vec![
        format!("# {device} blocks: {}, # CPU blocks: {}", pool.gpu_blocks, pool.cpu_blocks),
        format!(
            "Maximum concurrency for {} tokens per request: {:.2}x",
            pool.max_model_len, pool.max_concurrency
        ),
    ]
}

/// What the "KV cache size" figure means in this release, in one sentence.
#[must_use]
pub const fn kv_size_meaning(rules: &Rules) -> &'static str {
    match rules.kv_size {
        KvSizeRule::BlocksTimesBlockSize => {
            "blocks of one group times the smallest block size; with several groups this is not \
             the number of tokens that fit"
        }
        KvSizeRule::ConcurrencyTimesLen => {
            "concurrency at max_model_len times max_model_len: tokens of context at full length"
        }
    }
}
