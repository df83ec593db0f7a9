//! The engine's own log lines about capacity, as text, by release.

use super::{
    budget::Requested,
    capacity::Pool,
    groups::Padding,
    hybrid::HybridPages,
    rules::Rules,
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

/// `Model loading took … GiB …`: four decimals up to 0.14, two and the word "memory" from 0.15 on.
/// `seconds` is printed with six decimals.
#[must_use]
pub fn model_loading(rules: &Rules, weights: Bytes, seconds: f64) -> String {
    let gib = weights.0 as f64 / GIB as f64;
    if (rules.version.major, rules.version.minor) >= (0, 15) {
        let gib = gib_shortest(weights.0 as f64);
        format!("Model loading took {gib} GiB memory and {seconds:.6} seconds")
    } else {
        format!("Model loading took {gib:.4} GiB and {seconds:.6} seconds")
    }
}

/// `CUDA graph pool memory: … (actual), … (estimated), difference: …` (0.18+); the percentage is of
/// what was used, 0 when nothing was.
#[must_use]
pub fn graph_pool(actual: Bytes, estimate: Bytes) -> String {
    let difference = actual.0.abs_diff(estimate.0);
    let percent = match actual.0 {
        0 => 0.0,
        used => difference as f64 / used as f64 * 100.0,
    };
    format!(
        "CUDA graph pool memory: {} GiB (actual), {} GiB (estimated), difference: {} GiB ({:.1}%).",
        gib_shortest(actual.0 as f64),
        gib_shortest(estimate.0 as f64),
        gib_shortest(difference as f64),
        percent
    )
}

/// `Graph capturing finished in … secs, took … GiB`.
#[must_use]
pub fn graphs_captured(seconds: f64, took: Bytes) -> String {
    format!("Graph capturing finished in {seconds:.0} secs, took {} GiB", gib_fixed(took.0 as f64))
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

/// Terms of V0's memory report.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct V0Report {
    /// Seconds that profiling took.
    pub seconds: f64,
    /// Utilization.
    pub utilization: f64,
    /// Total memory.
    pub total: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Increase outside torch.
    pub non_torch: Bytes,
    /// Activation peak.
    pub activation_peak: Bytes,
    /// What is left, bytes.
    pub available: i64,
}

/// V0's report after profiling, three lines; `GiB` stands without a space before it.
#[must_use]
pub fn v0_profile(report: &V0Report) -> Vec<String> {
    let gib = |b: Bytes| gib_fixed(b.0 as f64);
    let budget = report.total.0 as f64 * report.utilization;
    vec![
        format!("Memory profiling takes {:.2} seconds", report.seconds),
        format!(
            "the current vLLM instance can use total_gpu_memory ({}GiB) x gpu_memory_utilization \
             ({:.2}) = {}GiB",
            gib(report.total),
            report.utilization,
            gib_fixed(budget)
        ),
        format!(
            "model weights take {}GiB; non_torch_memory takes {}GiB; PyTorch activation peak \
             memory takes {}GiB; the rest of the memory reserved for KV Cache is {}GiB.",
            gib(report.weights),
            gib(report.non_torch),
            gib(report.activation_peak),
            gib_fixed(report.available as f64)
        ),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figure::{Tag, Why},
        policy::vllm::{
            capacity::{self, Rank},
            hybrid as pages,
            spec::{Heads, Kind, LayerSpec},
            suggest,
            testing::{layers, settings},
            v0,
        },
    };

    #[test]
    fn capacity_lines_by_release() {
        let lines = |minor| {
            let s = settings(minor, 131_072, |_| {});
            let rank = Rank { layers: layers(Kind::Full, 32, 16), available: 40 << 30 };
            capacity(&s.rules, &capacity::size_pool(&s, &[rank]).unwrap())
        };
        let size = "GPU KV cache size: 327,680 tokens";
        let concurrency = "Maximum concurrency for 131,072 tokens per request: 2.50x";
        assert_eq!(lines(20), [size, concurrency]);
        assert_eq!(lines(30), [format!("{size}, {concurrency}")]);
    }

    #[test]
    fn gib_figures_as_printed() {
        assert_eq!(available(602_000_000), "Available KV cache memory: 0.56 GiB");
        assert_eq!(available(-2 << 30), "Available KV cache memory: -2.0 GiB");
        assert_eq!(
            (gib_fixed((3_u64 << 30) as f64), gib_shortest((3_u64 << 30) as f64)),
            ("3.00".to_owned(), "3.0".to_owned())
        );
        let (without, same) =
            equivalent_utilizations(0.82, Bytes::from_gib_f64(0.36), Bytes::from_gib_f64(23.7));
        assert_eq!((without.as_str(), same.as_str()), ("0.8048", "0.8352"));
    }

    #[test]
    fn hybrid_and_padding_lines() {
        let s = settings(24, 131_072, |a| a.enable_prefix_caching = Some(true));
        let heads = Heads { kv_heads: 2, head_size: 256, head_size_v: 256, element: 1 };
        let all = [LayerSpec::heads(Kind::Full, heads, 16), LayerSpec::mamba(1_603_584, 16)];
        let pages = pages::pages(&s, &all).unwrap();
        let lines = hybrid(&pages);
        assert!(lines[0].starts_with("Setting attention block size to 1568 tokens"));
        assert!(lines[1].starts_with("Padding mamba page size by 0.13%"), "{}", lines[1]);
        assert_eq!(
            padding(Padding { layers: 10, bucket: 34 }),
            "Add 10 padding layers, may waste at most 29.41% KV cache memory"
        );
    }

    #[test]
    fn the_suggestion_of_a_public_log() {
        // RTX PRO 6000 at 0.975: printed 7.91 GiB to fit, 9.11 GiB to use all.
        let total = Bytes::from_gib_f64(94.97);
        let requested = Requested {
            bytes: (total.0 as f64 * 0.975).ceil(),
            total,
            free_at_start: Bytes::from_gib_f64(93.79),
            why: Why::new(Tag::Measured, "log", "log"),
        };
        let used = Usage {
            consumed: Bytes::from_gib_f64(83.1),
            activation_peak: Bytes::from_gib_f64(1.24),
            graphs: 214_748_365,
        };
        let text = suggestion(suggest::suggest(&requested, used), Bytes::from_gib_f64(7.94));
        assert!(
            text.contains("(7.91 GiB) to fit") && text.contains("(9.1 GiB) to fully"),
            "{text}"
        );
        assert!(usage(&requested, 0.975, used).starts_with(
            "Free memory on device (93.79/94.97 GiB) on startup. Desired GPU memory utilization is \
             (0.975, 92.6 GiB). Actual usage is 83.1 GiB for consumed memory"
        ));
    }

    #[test]
    fn v0_lines() {
        let s = settings(6, 40_000, |_| {});
        let half = layers(Kind::Full, 16, 16); // 65,536 B a token.
        let pool = v0::size_pool(&s, &half, &[4660 << 20]).unwrap();
        assert_eq!(
            v0_capacity(&s.rules, &pool),
            [
                "# GPU blocks: 4660, # CPU blocks: 4096",
                "Maximum concurrency for 40000 tokens per request: 1.86x"
            ]
        );
    }

    #[test]
    fn loading_graphs_and_the_v0_report() {
        let rules = |minor| settings(minor, 4096, |_| {}).rules;
        let weights = Bytes(16_063_135_744); // 14.96 GiB.
        assert_eq!(
            model_loading(&rules(11), weights, 3.5),
            "Model loading took 14.9600 GiB and 3.500000 seconds"
        );
        assert_eq!(
            model_loading(&rules(15), weights, 3.5),
            "Model loading took 14.96 GiB memory and 3.500000 seconds"
        );
        assert_eq!(
            graph_pool(Bytes::gib(1), Bytes::from_gib_f64(1.6)),
            "CUDA graph pool memory: 1.0 GiB (actual), 1.6 GiB (estimated), difference: 0.6 GiB \
             (60.0%)."
        );
        assert_eq!(
            graphs_captured(20.4, Bytes::mib(520)),
            "Graph capturing finished in 20 secs, took 0.51 GiB"
        );
        // vllm-project/vllm#10511: Meta-Llama-3-8B on an H100.
        let report = v0_profile(&V0Report {
            seconds: 1.5,
            utilization: 0.9,
            total: Bytes::from_gib_f64(79.22),
            weights,
            non_torch: Bytes::from_gib_f64(1.79),
            activation_peak: Bytes::from_gib_f64(1.26),
            available: Bytes::from_gib_f64(53.29).0 as i64,
        });
        assert!(report[1].ends_with("(79.22GiB) x gpu_memory_utilization (0.90) = 71.30GiB"));
        assert!(report[2].ends_with(
            "memory takes 1.26GiB; the rest of the memory reserved for KV \
                                     Cache is 53.29GiB."
        ));
    }
}
