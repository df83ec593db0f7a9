//! What vLLM's profile run measures: the activation peak and the memory outside torch, by release.
//! Both are subtracted from the budget, so they decide the pool.

use super::shape::{MlpNames, QkNorm, Rank, ShapeInputs, U, narrow, wide};
use super::{Figure, gib};
use crate::device::{DeviceProfile, Link, Platform};
use crate::figure::{Estimate, Tag, Why};
use crate::policy::sglang::version::Version;
use crate::units::Bytes;

/// Which of vLLM's engines profiles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VllmCore {
    /// V0: eager layers; sampler with top-k and top-p.
    V0,
    /// V1: compiled layers unless `--enforce-eager`.
    V1,
}

/// How the layers run in the profile run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LayerMode {
    /// `torch.compile`: buffers planned by Inductor, at most what eager takes.
    Compiled,
    /// `--enforce-eager`, and V0.
    Eager,
}

/// Whether the profile run includes multimodal encoder items.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Multimodal {
    /// Text only, or switched off (`--limit-mm-per-prompt`, `--language-model-only`).
    Absent,
    /// The largest item of the largest modality is profiled.
    Present,
}

/// What the profile run depends on.
#[derive(Clone, Copy, Debug)]
pub struct ProfileInputs<'a> {
    /// Release.
    pub version: Version,
    /// V0 or V1.
    pub core: VllmCore,
    /// Numbers of the model.
    pub shape: &'a ShapeInputs,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// `max_num_batched_tokens`.
    pub max_num_batched_tokens: u64,
    /// `max_num_seqs`.
    pub max_num_seqs: u64,
    /// Compiled or eager.
    pub layers: LayerMode,
    /// Encoder.
    pub multimodal: Multimodal,
}

const SOURCE: &str = "vLLM 0.6.6 to 0.33 profile run; 0.19.0 layer code recorded";

/// Peak of the layers for `max_num_batched_tokens` tokens, run eagerly.
///
/// Dense: `2·T·((4 [+1 if tp > 1])·h + 3i)`, or the larger of `3h + 3i` and `(4 [+1])·h + i` where
/// the MLP re-uses its name (Llama). Experts: a static workspace `2·T·k·(max(m, h) + max(2m, h))`
/// beside attention or the MLP streams.
#[must_use]
pub fn eager_layer_peak(shape: &ShapeInputs, tp: u64, max_num_batched_tokens: u64) -> Figure {
    let rank = shape.rank(tp);
    let tokens = wide(max_num_batched_tokens);
    let (bytes, rule) = match rank.moe {
        None => dense(shape, &rank, tokens),
        Some(moe) => {
            let workspace = U * tokens * moe.k * (moe.m.max(rank.h) + (2 * moe.m).max(rank.h));
            let copies = if shape.qk_norm == QkNorm::Copied { rank.q + rank.kv } else { 0 };
            let attention = match rank.mla {
                Some(mla) => super::activation::mla_own(&rank, &mla, tokens),
                None => {
                    let streams = (3 + reduced(tp)) * rank.h;
                    U * tokens * (streams + 2 * rank.q + 2 * rank.kv + copies)
                }
            };
            let ids = if tp <= 1 { 8 * tokens * moe.k } else { 0 };
            let shared = if moe.shared > 0 { U * tokens * rank.h } else { 0 };
            let streams =
                U * tokens * (4 + reduced(tp)) * rank.h + tokens * moe.e * 2 + ids + shared;
            let rule = "2·T·k·(max(m, h) + max(2m, h)) + max(attention, 2·T·(4 [+1])·h)";
            (workspace + attention.max(streams), rule)
        }
    };
    Figure::computed(narrow(bytes), rule, SOURCE)
        .with("T", max_num_batched_tokens)
        .with("hidden", shape.hidden)
        .with("tp", tp)
}

/// The NCCL all-reduce of vLLM is out of place: one more T × h.
fn reduced(tp: u64) -> u128 {
    u128::from(tp > 1)
}

fn dense(shape: &ShapeInputs, rank: &Rank, tokens: u128) -> (u128, &'static str) {
    let wide_streams = (4 + u128::from(rank.tp > 1)) * rank.h;
    match shape.mlp_names {
        MlpNames::Kept => (U * tokens * (wide_streams + 3 * rank.i), "2·T·((4 [+1])·h + 3i)"),
        MlpNames::Reused => {
            let widths = (3 * rank.h + 3 * rank.i).max(wide_streams + rank.i);
            (U * tokens * widths, "max(2·T·(3h + 3i), 2·T·((4 [+1])·h + i))")
        }
    }
}

/// Peak of the dummy sampler run on `max_num_seqs` rows: `rows·V·c + 2·T·h`.
///
/// c in bytes: sorting, 38 = 2 (bf16 logits) + 4 (fp32) + 32 (`torch.sort` over 128 rows): V0 and
/// V1 up to 0.11.0 print 38.2 to 39.7 in seven logs. From 0.21: 14 (13.5 and at most 14.7 in two
/// logs). In between both forms exist, by whether FlashInfer samples: it comes with the package from
/// 0.11.1, and three starts of 0.11.2 and 0.13 on data-centre cards leave no room for a sort, while
/// one of 0.19 on a desktop card needs it.
///
/// V0 before 0.6.6 with a chunk of at most 2048 tokens shows the layers alone (one log of 0.6.4).
#[must_use]
pub fn sampler_peak(inputs: &ProfileInputs<'_>) -> Figure {
    let rows = wide(inputs.max_num_seqs.min(inputs.max_num_batched_tokens));
    let hidden = U * wide(inputs.max_num_batched_tokens) * wide(inputs.shape.hidden);
    let element = rows * wide(inputs.shape.vocab);
    let v1 = inputs.core == VllmCore::V1;
    // Tenths of a byte for each element of rows × V.
    let (low, mid, high, tag) = match inputs.version {
        version
            if !v1 && version < Version::new(0, 6, 6) && inputs.max_num_batched_tokens <= 2048 =>
        {
            (0, 0, 385, Tag::Assumed)
        }
        _ if rows < 8 => (60, 140, 460, Tag::Assumed),
        version if v1 && version >= Version::new(0, 21, 0) => (120, 137, 150, Tag::Calibrated),
        version if v1 && version >= Version::new(0, 11, 1) => (120, 137, 386, Tag::Assumed),
        _ => (366, 385, 397, Tag::Calibrated),
    };
    let bytes = |tenths: u128, hidden: u128| Bytes(narrow(tenths * element / 10 + hidden));
    let mut figure = Figure::computed(
        0,
        format!("rows·V·{}.{} B + 2·T·h", mid / 10, mid % 10),
        "vLLM sampler warm-up in the profile run; fitted on public profile logs",
    )
    .with("rows", rows)
    .with("vocab", inputs.shape.vocab);
    figure.value = Estimate::new(bytes(low, 0), bytes(mid, hidden), bytes(high, hidden));
    figure.why.tag = tag;
    figure
}

/// The activation peak that the profile run reports: the larger of layers, sampler and encoder.
#[must_use]
pub fn activation_peak(inputs: &ProfileInputs<'_>) -> Figure {
    let eager = eager_layer_peak(inputs.shape, inputs.tp, inputs.max_num_batched_tokens);
    let whole = eager.value.mid.as_gib_f64();
    let layers = if inputs.core == VllmCore::V0 || inputs.layers == LayerMode::Eager {
        // Six printed peaks lie between −0.013 and +0.013 GiB of the formula (ids, positions and
        // attention metadata are not in it).
        gib(0.975 * whole, whole + 0.005, 1.005 * whole + 0.015)
    } else {
        // Inductor fuses and plans buffers: eager is an upper bound, save for a cold compile cache.
        gib(0.6 * whole, 0.9 * whole, 1.05 * whole)
    };
    let sampler = sampler_peak(inputs);
    let mut value = Estimate {
        low: layers.low.max(sampler.value.low),
        mid: layers.mid.max(sampler.value.mid),
        high: layers.high.max(sampler.value.high),
    };
    let mut tag = if layers.mid > sampler.value.mid { eager.why.tag } else { sampler.why.tag };
    if inputs.multimodal == Multimodal::Present {
        // The encoder's largest item: from nothing to several GiB by model and image limits.
        value = value.plus(gib(0.0, 0.25, 1.5));
        tag = Tag::Assumed;
    }
    let winner = if layers.mid > sampler.value.mid { &eager } else { &sampler };
    let why = Why::new(tag, format!("max(layers, sampler) = {}", winner.why.rule), SOURCE)
        .with("layers", layers.mid)
        .with("sampler", sampler.value.mid)
        .with("max_num_batched_tokens", inputs.max_num_batched_tokens)
        .with("max_num_seqs", inputs.max_num_seqs);
    Figure { value, why }
}

/// Growth of memory outside torch between the first snapshot and the end of the profile run.
///
/// Printed from 0.6.6 at tp 1: 0.03 to 0.20 GiB (V0, seven logs), 0.02 and 0.26 (V1); at tp 2 to
/// 16: 0.20 to 0.39 (V0, PCI Express and NVLink), 1.38 (V1, 2 × H200), 2.43 (V1, tp 4). V0 and V1 up
/// to 0.10 read before the groups of ranks exist, so on switched machines the groups count here too
/// (2.10 on 8 × A100 with 0.7.2; about 2.4 on 4 × H100 with 0.10). From 0.27 what the allocator keeps
/// after `empty_cache` counts too. ROCm has no printed figure.
#[must_use]
pub fn non_torch(device: &DeviceProfile, inputs: &ProfileInputs<'_>) -> Figure {
    if inputs.version < Version::new(0, 6, 6) {
        // Not an increase yet: device used − torch, the context included (0.35 on a 3090, 0.39 on a
        // V100 of two).
        let mut figure = super::baseline::context(device);
        let ranks = if inputs.tp > 1 { gib(0.0, 0.05, 0.20) } else { gib(0.0, 0.01, 0.10) };
        figure.value = figure.value.plus(ranks);
        figure.why.rule = format!("device used − torch, before 0.6.6: {}", figure.why.rule);
        return figure;
    }
    let switched = matches!(device.link, Link::NvSwitch | Link::Fabric);
    let (low, mid, high) = match (inputs.tp > 1, inputs.core, switched) {
        (false, VllmCore::V0, _) => (0.03, 0.07, 0.21),
        (false, VllmCore::V1, _) => (0.02, 0.12, 0.40),
        (true, VllmCore::V0, _) => (0.19, 0.28, 0.45),
        (true, VllmCore::V1, false) => (0.10, 0.35, 0.90),
        (true, VllmCore::V1, true) => (0.60, 1.20, 2.00),
    };
    let groups = groups_after_reading(device, inputs);
    let rocm = if device.platform == Platform::Rocm { 0.6 } else { 0.0 };
    let kept =
        if inputs.version >= Version::new(0, 27, 0) { (0.0, 0.08, 0.35) } else { (0.0, 0.0, 0.0) };
    let why = Why::new(
        Tag::Calibrated,
        "growth outside torch during loading and profiling",
        "public vLLM startup logs, by engine core, ranks and link",
    )
    .with("tp", inputs.tp)
    .with("link", format!("{:?}", device.link));
    let own = gib(low + kept.0, mid + kept.1, high + kept.2 + rocm);
    // A V0 start on four such ranks printed as little as 0.28 in all.
    let value = Estimate { low: own.low, ..own.plus(groups) };
    Figure { value, why: why.with("groups of ranks", groups.mid) }
}

/// Groups of ranks that come after the first reading: V0, and V1 up to 0.10, on switched machines.
fn groups_after_reading(device: &DeviceProfile, inputs: &ProfileInputs<'_>) -> Estimate {
    let early = inputs.core == VllmCore::V0 || inputs.version < Version::new(0, 11, 0);
    let switched = matches!(device.link, Link::NvSwitch | Link::Fabric);
    if inputs.tp <= 1 || !early || !switched {
        return Estimate::ZERO;
    }
    super::baseline::group_buffers(device, super::Engine::Sglang, inputs.tp).0
}
