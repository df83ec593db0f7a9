//! The estimates against public startup logs: how many truths lie in the interval, how wide it is,
//! how far the best value is off. Numbers as printed in the logs (SGLang and vLLM startup tables,
//! single reports).

use plimsoll_catalog::devices;
use plimsoll_core::estimate::Engine::{self, Sglang, Vllm};
use plimsoll_core::estimate::baseline::{BaselineInputs, ExtraGroups, baseline};
use plimsoll_core::estimate::graphs::{DecodeGraphs, LayerKind, Speculation, decode_graphs};
use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::estimate::vllm_profile::{
    LayerMode, Multimodal, ProfileInputs, VllmCore, activation_peak, non_torch,
};
use plimsoll_core::figure::Estimate;
use plimsoll_core::units::Bytes;

/// Truths in the interval, and the errors of the best value in GiB, sorted.
#[derive(Default)]
struct Score {
    inside: usize,
    errors: Vec<f64>,
    outside: Vec<String>,
}

impl Score {
    /// `half` is half the last printed digit.
    fn add(&mut self, name: &str, value: Estimate, truth_gib: f64, half: f64) {
        let (low, high) = (value.low.as_gib_f64() - half, value.high.as_gib_f64() + half);
        if (low..=high).contains(&truth_gib) {
            self.inside += 1;
        } else {
            self.outside.push(format!("{name}: {truth_gib} not in {low:.2}..{high:.2}"));
        }
        self.errors.push((value.mid.as_gib_f64() - truth_gib).abs());
        self.errors.sort_by(f64::total_cmp);
    }

    fn median(&self) -> f64 {
        self.errors[self.errors.len() / 2]
    }
}

/// (device, engine, release, ranks, groups, printed free GiB before loading)
const FREE: [(&str, Engine, &str, u64, ExtraGroups, f64); 24] = [
    ("RTX 3090", Sglang, "0.5.12", 2, ExtraGroups::Absent, 22.91),
    ("RTX 3090", Sglang, "0.4.2", 1, ExtraGroups::Absent, 22.76), // An old torch: not in the interval.
    ("H200", Sglang, "0.5.20", 8, ExtraGroups::Absent, 137.9),
    ("RTX PRO 6000", Sglang, "0.5.16", 2, ExtraGroups::Absent, 93.60),
    ("RTX PRO 6000", Sglang, "0.5.8", 8, ExtraGroups::Absent, 94.04),
    ("H100", Sglang, "0.5.2", 8, ExtraGroups::Absent, 77.43),
    ("B200", Sglang, "0.5.11", 4, ExtraGroups::Absent, 176.28),
    ("H100", Sglang, "0.5.20", 1, ExtraGroups::Absent, 78.48),
    ("MI355X", Sglang, "0.5.7", 1, ExtraGroups::Absent, 287.2),
    ("MI355X", Sglang, "0.5.20", 1, ExtraGroups::Absent, 287.18),
    ("GB10", Sglang, "0.5.20", 1, ExtraGroups::Absent, 111.65),
    ("GB10", Sglang, "0.5.20", 1, ExtraGroups::Absent, 114.02),
    ("GB10", Sglang, "0.5.20", 1, ExtraGroups::Absent, 111.97),
    ("RTX 5090", Vllm, "0.27.0", 2, ExtraGroups::Absent, 30.27),
    ("RTX 5090", Vllm, "0.27.0", 2, ExtraGroups::Absent, 30.5),
    ("RTX PRO 6000", Vllm, "0.28.0", 1, ExtraGroups::Absent, 94.41),
    ("RTX PRO 6000", Vllm, "0.28.0", 2, ExtraGroups::Absent, 93.79),
    ("RTX PRO 6000", Vllm, "0.28.0", 4, ExtraGroups::ExpertOrData, 91.64),
    ("H200", Vllm, "0.11.0", 2, ExtraGroups::Absent, 139.21),
    ("RTX 4090", Vllm, "0.10.2", 1, ExtraGroups::Absent, 23.08),
    ("B200", Vllm, "0.11.0", 1, ExtraGroups::ExpertOrData, 176.17),
    // Looked up after the fit.
    ("RTX 4090", Sglang, "0.5.10", 1, ExtraGroups::Absent, 23.09),
    ("A100-SXM4-80GB", Sglang, "0.2.9", 1, ExtraGroups::Absent, 78.94),
    ("RTX PRO 6000", Sglang, "0.5.23", 1, ExtraGroups::Absent, 93.77), // Card inferred; outside.
];

#[test]
fn free_before_loading_is_in_the_interval() {
    let mut score = Score::default();
    let mut widths = Vec::new();
    for (name, engine, release, ranks, groups, truth) in FREE {
        let device = devices::find(name).unwrap();
        let free = baseline(&BaselineInputs {
            device: &device,
            engine,
            version: release.parse().unwrap(),
            ranks,
            groups,
            others: Estimate::ZERO,
        })
        .free;
        score.add(&format!("{name} × {ranks}"), free.value, truth, 0.005);
        let total = device.runtime_total.value.mid.as_gib_f64();
        widths.push(100.0 * free.value.width().as_gib_f64() / total);
    }
    widths.sort_by(f64::total_cmp);
    let median_width = widths[widths.len() / 2];
    println!(
        "free before loading: {} of {} inside, median error {:.2} GiB, median width {median_width:.2} % of \
         the device, widest {:.2} %; outside: {:?}",
        score.inside,
        FREE.len(),
        score.median(),
        widths[widths.len() - 1],
        score.outside
    );
    assert!(score.inside * 10 >= FREE.len() * 9, "{:?}", score.outside);
    assert!(score.median() <= 0.2, "median error {}", score.median());
    assert!(median_width <= 1.5, "median width {median_width}");
}

fn gqa(hidden: u64, heads: (u64, u64, u64), intermediate: u64, vocab: u64) -> ShapeInputs {
    let (q_heads, kv_heads, head_dim) = heads;
    ShapeInputs {
        hidden,
        attention: AttentionShape::Gqa { q_heads, kv_heads, head_dim },
        dense_intermediate: intermediate,
        moe: None,
        vocab,
        layers: 32,
        mlp_names: MlpNames::Kept,
        qk_norm: QkNorm::Absent,
    }
}

fn llama8b() -> ShapeInputs {
    ShapeInputs { mlp_names: MlpNames::Reused, ..gqa(4096, (32, 8, 128), 14_336, 128_256) }
}

/// Activation peaks as printed, with the sizes the log or its thread states.
#[test]
fn vllm_activation_peaks_are_in_the_interval() {
    use VllmCore::{V0, V1};
    let llama = llama8b();
    let llama70 =
        ShapeInputs { mlp_names: MlpNames::Reused, ..gqa(8192, (64, 8, 128), 28_672, 128_256) };
    let qwen3_8b = gqa(4096, (32, 8, 128), 12_288, 151_936);
    let qwen7b = gqa(3584, (28, 4, 128), 18_944, 152_064);
    let qwen1b = gqa(1536, (12, 2, 128), 8960, 151_936);
    let qwen3_4b = gqa(2560, (32, 8, 128), 9728, 151_936);
    let next = ShapeInputs {
        moe: Some(MoeShape {
            experts: 512,
            top_k: 10,
            intermediate: 512,
            shared_intermediate: 512,
        }),
        ..gqa(2048, (16, 2, 256), 0, 151_936)
    };
    // (name, release, core, shape, tp, max_num_batched_tokens, max_num_seqs, printed GiB)
    let rows = [
        ("8B, H100", "0.6.5", V0, llama, 1, 8192, 256, 1.26),
        ("8B, H100 tp 2", "0.6.5", V0, llama, 2, 8192, 256, 1.26),
        ("8B, 2 x V100, 40000", "0.6.4", V0, llama, 2, 40_000, 256, 2.53),
        ("70B, tp 4", "0.7.3", V0, llama70, 4, 8192, 256, 1.30),
        ("8B, 3090, 20000", "0.6.4", V0, llama, 1, 20_000, 1, 2.07),
        ("8B, 3090, 29000", "0.6.4", V0, llama, 1, 29_000, 1, 2.99),
        ("8B, H100 book", "0.6.6", V0, llama, 1, 2048, 256, 1.19),
        ("8B, A10G, few requests", "0.8.5", V0, llama, 1, 2048, 1, 0.22),
        ("Qwen3-8B, tp 4", "0.8.5", V0, qwen3_8b, 4, 2048, 256, 1.45),
        ("Qwen2.5-7B, 4 bit", "0.7.3", V0, qwen7b, 1, 2048, 256, 1.42),
        ("1.5B, 4 bit", "0.7.3", V0, qwen1b, 1, 2048, 256, 1.39),
        ("Qwen3-4B, 1 request, 10240", "0.8.5", V0, qwen3_4b, 1, 10_240, 1, 0.74),
        ("Qwen3-8B-FP8", "0.10.2", V1, qwen3_8b, 1, 2048, 256, 1.40),
        ("Qwen3-Next, 1024 requests", "0.11.0", V1, next, 2, 8192, 1024, 5.58),
        ("1.5B, eager", "0.28.0", V1, qwen1b, 1, 4096, 256, 0.50),
    ];
    let mut score = Score::default();
    for (name, release, core, shape, tp, tokens, seqs, truth) in rows {
        let eager = core == V0 || name.contains("eager");
        let peak = activation_peak(&ProfileInputs {
            version: release.parse().unwrap(),
            core,
            shape: &shape,
            tp,
            max_num_batched_tokens: tokens,
            max_num_seqs: seqs,
            layers: if eager { LayerMode::Eager } else { LayerMode::Compiled },
            multimodal: Multimodal::Absent,
        });
        score.add(name, peak.value, truth, 0.005);
    }
    let (inside, count) = (score.inside, rows.len());
    println!(
        "vLLM peaks: {inside} of {count} inside, median error {:.3} GiB; {:?}",
        score.median(),
        score.outside
    );
    assert!(score.inside * 10 >= rows.len() * 9, "{:?}", score.outside);
    assert!(score.median() <= 0.03, "median error {}", score.median());
}

/// Memory kept by graph capture, as printed (`cudagraph-memory.csv`, the rows with all inputs).
#[test]
fn decode_graphs_are_in_the_interval() {
    use LayerKind::{Dense, MoeOrHybrid};
    // (name, engine, release, sizes, layers, kind, tp, speculation, GiB)
    let absent = Speculation::Absent;
    let rows = [
        ("Qwen3-8B, B200", Sglang, "0.5.8", 52, 36, Dense, 1, absent, 0.60),
        ("QwQ-32B, 4 x 24 GB", Sglang, "0.4.6", 24, 64, Dense, 4, absent, 0.93),
        ("Grok-2, 8 x H100", Sglang, "0.5.2", 52, 64, MoeOrHybrid, 8, absent, 0.89),
        ("granite-4.0-h-micro", Sglang, "0.5.8", 8, 40, MoeOrHybrid, 1, absent, 0.09),
        ("gemma-4-31B, 1 request", Sglang, "0.5.12", 1, 60, Dense, 2, absent, 0.06),
        ("gemma-4-12B, 1 request", Sglang, "0.5.12", 1, 48, Dense, 2, absent, 0.05),
        ("gemma-3-4b, B200", Vllm, "0.10.0", 67, 34, Dense, 1, absent, 0.65),
        ("8B INT8", Vllm, "0.7.4", 67, 32, Dense, 1, absent, 2.02),
        ("Qwen3-Next, 2 x H200", Vllm, "0.11.0", 67, 48, MoeOrHybrid, 2, absent, 2.37),
        ("Qwen3-235B, tp 4", Vllm, "0.10.0", 67, 94, MoeOrHybrid, 4, absent, 3.45),
        ("Qwen3-30B, GB10", Vllm, "0.16.0", 67, 48, MoeOrHybrid, 1, absent, 1.28),
        ("Qwen3-8B-FP8", Vllm, "0.10.2", 67, 36, Dense, 1, absent, 0.68),
        ("Qwen3-8B", Vllm, "0.10.2", 67, 36, Dense, 1, absent, 0.54),
        ("R1-Distill-32B, 32 requests", Vllm, "0.11.0", 7, 64, Dense, 4, absent, 0.53),
        ("R1-Distill-32B, 256 requests", Vllm, "0.11.0", 35, 64, Dense, 4, absent, 2.37),
        ("Qwen3.6-27B, 4 x H100", Vllm, "0.28.0", 67, 64, MoeOrHybrid, 4, absent, 2.04),
        ("Qwen2.5-VL-72B, 4 x A100", Vllm, "0.8.3", 67, 80, Dense, 4, absent, 2.65),
        ("Nemotron 49B GPTQ", Vllm, "0.8.3", 35, 80, Dense, 1, absent, 3.34),
        ("Qwen3.8-27B, 2 x 5090", Vllm, "0.27.0", 3, 64, MoeOrHybrid, 2, absent, 0.09),
        ("Qwen3.8-27B, drafts", Vllm, "0.27.0", 3, 64, MoeOrHybrid, 1, Speculation::Present, 0.46),
        ("Qwen3.8-27B, 16 GB", Vllm, "0.28.0", 3, 64, MoeOrHybrid, 1, absent, 0.04),
    ];
    let mut score = Score::default();
    for (name, engine, release, sizes, layers, kind, tp, speculation, truth) in rows {
        let version = release.parse().unwrap();
        let inputs = DecodeGraphs { engine, version, sizes, layers, kind, tp, speculation };
        score.add(name, decode_graphs(&inputs).value, truth, 0.005);
    }
    let (inside, count) = (score.inside, rows.len());
    println!(
        "graphs: {inside} of {count} inside, median error {:.2} GiB; {:?}",
        score.median(),
        score.outside
    );
    assert!(score.inside * 10 >= rows.len() * 9, "{:?}", score.outside);
    assert!(score.median() <= 0.25, "median error {}", score.median());
}

/// The pool of vLLM from device and configuration alone; only the weights (exact by the model) are
/// given. Printed available KV memory, or blocks × bytes where the log prints blocks.
#[test]
fn vllm_pools_are_in_the_interval() {
    use VllmCore::{V0, V1};
    let llama = llama8b();
    let llama70 =
        ShapeInputs { mlp_names: MlpNames::Reused, ..gqa(8192, (64, 8, 128), 28_672, 128_256) };
    let qwen3_8b = gqa(4096, (32, 8, 128), 12_288, 151_936);
    let qwen1b = gqa(1536, (12, 2, 128), 8960, 151_936);
    let next = ShapeInputs {
        moe: Some(MoeShape {
            experts: 512,
            top_k: 10,
            intermediate: 512,
            shared_intermediate: 512,
        }),
        ..gqa(2048, (16, 2, 256), 0, 151_936)
    };
    // (device, release, core, shape, tp, T, rows, utilization, weights GiB, pool GiB)
    let rows = [
        ("H100", "0.6.6", V0, llama, 1, 2048, 256, 0.90, 14.99, 54.93),
        ("A100-SXM4-80GB", "0.7.3", V0, llama70, 4, 8192, 256, 0.89, 32.95, 36.07),
        ("RTX 3090", "0.6.4", V0, llama, 1, 20_000, 1, 0.90, 14.99, 3.81),
        ("RTX 3090", "0.6.4", V0, llama, 1, 29_000, 1, 0.90, 14.99, 2.89),
        ("A10G", "0.8.5", V0, llama, 1, 2048, 1, 0.90, 14.99, 4.60),
        ("RTX 4090", "0.10.2", V1, qwen3_8b, 1, 2048, 256, 0.80, 8.80, 8.598),
        ("RTX 4090", "0.19.0", V1, llama, 1, 2048, 256, 0.90, 14.96, 5.055),
        ("H200", "0.11.0", V1, next, 2, 8192, 1024, 0.90, 74.28, 44.59),
        ("TITAN RTX", "0.28.0", V1, qwen1b, 1, 4096, 256, 0.90, 2.89, 17.36),
        // 1.79 GiB outside torch on an H100, three times its context: another program, not in the
        // interval.
        ("H100", "0.6.5", V0, llama, 1, 8192, 256, 0.90, 14.96, 53.29),
    ];
    let mut score = Score::default();
    let (mut errors, mut widths) = (Vec::new(), Vec::new());
    for (name, release, core, shape, tp, tokens, seqs, utilization, weights, truth) in rows {
        let device = devices::find(name).unwrap();
        let inputs = ProfileInputs {
            version: release.parse().unwrap(),
            core,
            shape: &shape,
            tp,
            max_num_batched_tokens: tokens,
            max_num_seqs: seqs,
            layers: if core == V0 || name == "TITAN RTX" {
                LayerMode::Eager
            } else {
                LayerMode::Compiled
            },
            multimodal: Multimodal::Absent,
        };
        let total = device.runtime_total.value;
        let budget = |total: f64| Bytes::from_gib_f64(total * utilization - weights);
        let budget = Estimate::new(
            budget(total.low.as_gib_f64()),
            budget(total.mid.as_gib_f64()),
            budget(total.high.as_gib_f64()),
        );
        let pool =
            budget.minus(activation_peak(&inputs).value.plus(non_torch(&device, &inputs).value));
        score.add(&format!("{name} {release}"), pool, truth, 0.01);
        let percent = 100.0 / total.mid.as_gib_f64();
        errors.push((pool.mid.as_gib_f64() - truth).abs() * percent);
        widths.push(pool.width().as_gib_f64() * percent);
    }
    errors.sort_by(f64::total_cmp);
    widths.sort_by(f64::total_cmp);
    let (error, width) = (errors[errors.len() / 2], widths[widths.len() / 2]);
    println!(
        "vLLM pools: {} of {} inside, median error {error:.2} % of the device, median width {width:.2} %, \
         widest {:.2} %; {:?}",
        score.inside,
        rows.len(),
        widths[widths.len() - 1],
        score.outside
    );
    assert!(score.inside * 10 >= rows.len() * 9, "{:?}", score.outside);
    assert!(error <= 1.0 && width <= 2.5, "{errors:?} {widths:?}");
}
