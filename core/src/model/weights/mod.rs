//! Bytes of a model's weights on one rank, part by part, as the engines divide and store them.

mod layers;
mod sheet;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::{
    detail::{Model, VisionBasis},
    geometry::{Attention, Dtype},
    kv,
    parallel::{Loader, Parallel, ParallelError, divides},
    storage::Storage,
};
use crate::{
    figure::{Estimate, Tag, Why},
    units::{Bytes, MIB},
};

use self::sheet::Sheet;

/// What a part of the weights is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PartKind {
    /// Input embedding, position table and per-layer inputs.
    Embedding,
    /// Output head; empty when tied and on the embedding's stage.
    Head,
    /// Projections of attention with keys and values or a latent.
    Attention,
    /// Projections, convolution and parameters of linear attention or a state space.
    Linear,
    /// Dense feed-forward parts.
    Dense,
    /// Routed experts.
    Experts,
    /// Shared experts.
    Shared,
    /// Routers.
    Router,
    /// Norms.
    Norms,
    /// Vision tower and projector.
    Vision,
    /// Built-in draft layers.
    Draft,
    /// Copies of MLA's key and value up-projections that the engines make after loading.
    Absorbed,
    /// Rotary table.
    Rotary,
    /// What the free memory loses beyond tensors while loading.
    Loading,
}

impl PartKind {
    /// Name as printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Head => "output head",
            Self::Attention => "attention",
            Self::Linear => "linear attention",
            Self::Dense => "feed-forward",
            Self::Experts => "routed experts",
            Self::Shared => "shared experts",
            Self::Router => "routers",
            Self::Norms => "norms",
            Self::Vision => "vision tower",
            Self::Draft => "draft layers",
            Self::Absorbed => "MLA absorbed copies",
            Self::Rotary => "rotary table",
            Self::Loading => "loading",
        }
    }

    /// Whether the part is in the checkpoint; the others are made by the engine.
    #[must_use]
    pub const fn in_checkpoint(self) -> bool {
        !matches!(self, Self::Absorbed | Self::Rotary | Self::Loading)
    }
}

/// One line of the bill.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Parameters in the whole model (scales and zero points not counted).
    pub parameters: u64,
    /// Bytes in the whole model.
    pub whole: Bytes,
    /// Bytes on the rank.
    pub per_rank: Estimate,
    /// Names of the storages in it.
    pub storages: BTreeSet<&'static str>,
    /// What the figure rests on.
    pub tag: Tag,
}

/// Layout of MXFP4 experts in memory; kernels want widths rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mxfp4Layout {
    /// Not known: vLLM's Marlin and SGLang's Triton kernels are taken as the middle.
    #[default]
    Unknown,
    /// Marlin, or FlashInfer where a Blackwell card has it: vLLM before 0.12, whose packages had no
    /// Triton kernels for it (0.10.1 and 0.11.0 starts of gpt-oss-120b on H100 print 65.97 GiB).
    Padded,
    /// As stored; the expert's width rounded up to 64 (Triton kernels).
    Triton,
    /// Expert width to 128, model width to 256 (Marlin).
    Marlin,
    /// Both to 256 (FlashInfer on compute capability 10).
    Flashinfer,
}

/// Whether built-in draft layers are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DraftWeights {
    /// No speculation with them.
    #[default]
    Unused,
    /// Loaded.
    Loaded,
}

/// Whether the vision tower is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VisionUse {
    /// Loaded.
    #[default]
    Loaded,
    /// Left out (`--language-only`, `--limit-mm-per-prompt` all zero).
    Skipped,
}

/// How the weights are loaded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WeightOptions {
    /// Whose rules.
    pub loader: Loader,
    /// Division over ranks.
    pub parallel: Parallel,
    /// Pipeline stage, from 0.
    pub stage: u64,
    /// `--dtype`; `None` for the engine's choice.
    pub dtype: Option<Dtype>,
    /// Storage given to unquantised matrices while loading (`--quantization fp8` on a plain
    /// checkpoint).
    pub online: Option<Storage>,
    /// Built-in draft layers.
    pub draft: DraftWeights,
    /// Vision tower.
    pub vision: VisionUse,
    /// Layout of MXFP4 experts.
    pub mxfp4: Mxfp4Layout,
}

impl WeightOptions {
    /// One rank, nothing special.
    #[must_use]
    pub const fn new(loader: Loader) -> Self {
        Self {
            loader,
            parallel: Parallel::ONE,
            stage: 0,
            dtype: None,
            online: None,
            draft: DraftWeights::Unused,
            vision: VisionUse::Loaded,
            mxfp4: Mxfp4Layout::Unknown,
        }
    }
}

/// The weights of a model on one rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Bill {
    /// Parts that are not empty, in the order of `PartKind`.
    pub parts: Vec<Part>,
    /// Parameters of the whole model: all that the checkpoint's main model and vision tower hold,
    /// draft layers not counted.
    pub parameters: u64,
    /// Bytes of the same.
    pub whole: Bytes,
    /// Bytes on the rank.
    pub per_rank: Estimate,
    /// How the sum came to be.
    pub why: Why,
}

impl Bill {
    /// The line of a kind.
    #[must_use]
    pub fn part(&self, kind: PartKind) -> Option<&Part> {
        self.parts.iter().find(|p| p.kind == kind)
    }

    /// The bill with its checkpoint parts scaled so that the whole model comes to `exact` bytes, as
    /// an index file or the headers state it. Division and engine-made parts stay as they are; the
    /// interval of the scaled parts closes to `mid`.
    #[must_use]
    pub fn scaled_to(mut self, exact: Bytes, source: &str) -> Self {
        if self.whole.0 == 0 {
            return self;
        }
        let scale = |b: Bytes| {
            let scaled = u128::from(b.0) * u128::from(exact.0) / u128::from(self.whole.0);
            Bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
        };
        for part in &mut self.parts {
            if part.kind.in_checkpoint() {
                part.per_rank = Estimate::exact(scale(part.per_rank.mid));
                part.whole = scale(part.whole);
            }
        }
        self.whole = exact;
        self.per_rank = sum(&self.parts);
        self.why.rule = "checkpoint bytes, divided as the configuration's modules are; plus what \
             the engine makes"
            .to_owned();
        source.clone_into(&mut self.why.source);
        self
    }
}

pub(crate) fn sum(parts: &[Part]) -> Estimate {
    parts.iter().fold(Estimate::ZERO, |a, p| Estimate {
        low: a.low.saturating_add(p.per_rank.low),
        mid: a.mid.saturating_add(p.per_rank.mid),
        high: a.high.saturating_add(p.per_rank.high),
    })
}

/// The weights of `model` on one rank of the stage in `options`.
///
/// # Errors
/// `ParallelError` where the engine would refuse the division: query heads, vocabulary after
/// padding or experts that do not go up, a stage that does not exist.
pub fn bill(model: &Model, options: &WeightOptions) -> Result<Bill, ParallelError> {
    if let Some(bytes) = model.given_weights {
        return Ok(given(bytes));
    }
    check(model, &options.parallel)?;
    let layers = kv::stage(model, options.loader, options.parallel.pp, options.stage)?;
    let total = model.geometry.layers.len();
    let mut sheet = Sheet::new(model, options, layers.clone());
    for (index, layer) in model.geometry.layers.iter().enumerate() {
        layers::layer(&mut sheet, index, layer);
    }
    let first = layers.start == 0;
    let last = layers.end == total;
    layers::ends(&mut sheet, first, last);
    layers::draft(&mut sheet, last);
    vision(&mut sheet, first);
    rotary(&mut sheet);
    loading(&mut sheet);
    Ok(sheet.bill())
}

/// The stage with the most weights, and its bill.
///
/// # Errors
/// As `bill`.
pub fn heaviest(model: &Model, options: &WeightOptions) -> Result<(u64, Bill), ParallelError> {
    let mut best = (0, bill(model, &WeightOptions { stage: 0, ..*options })?);
    for stage in 1..options.parallel.pp.min(1024) {
        let next = bill(model, &WeightOptions { stage, ..*options })?;
        if next.per_rank.mid > best.1.per_rank.mid {
            best = (stage, next);
        }
    }
    Ok(best)
}

fn given(bytes: Bytes) -> Bill {
    Bill {
        parts: Vec::new(),
        parameters: 0,
        whole: Bytes::ZERO,
        per_rank: Estimate::exact(bytes),
        why: Why::new(Tag::Measured, "as given", "--weights"),
    }
}

fn check(model: &Model, parallel: &Parallel) -> Result<(), ParallelError> {
    for layer in &model.geometry.layers {
        match layer.attention {
            Attention::Gqa { q_heads, .. } | Attention::Mla { q_heads, .. } => {
                divides(("query heads", q_heads), ("attention tp", parallel.attention))?;
            }
            Attention::Linear(state) => {
                let tp = ("attention tp", parallel.attention);
                divides(("linear attention heads", state.heads), tp)?;
            }
            Attention::None => {}
        }
        if let super::geometry::Mlp::Moe { experts, .. } = layer.mlp {
            divides(("experts", experts), ("ep", parallel.expert_ep))?;
        }
    }
    Ok(())
}

/// Source of the division: SGLang and vLLM shard Qwen-VL and Gemma towers over tp; Kimi's tower is
/// on every rank (it closes the public Kimi-K2.5 log, 72.33 GiB). The interval has both.
fn vision(sheet: &mut Sheet<'_>, first: bool) {
    let Some(weights) = sheet.model.detail.vision else { return };
    let element = sheet.plain.bits / 8;
    let all = weights.sharded.saturating_add(weights.replicated);
    let whole = all.saturating_mul(element);
    let here = first && sheet.options.vision == VisionUse::Loaded;
    let part = weights.sharded.div_ceil(sheet.options.parallel.attention);
    let divided = part.saturating_add(weights.replicated).saturating_mul(element);
    let copied = sheet.model.geometry.architecture.starts_with("Kimi");
    let mid = if copied { whole } else { divided };
    let (low, high) = match weights.basis {
        VisionBasis::Modules => (divided, whole),
        VisionBasis::Generic => (divided - divided / 5, whole.saturating_add(whole / 5)),
        VisionBasis::Unknown => (0, 2 << 30),
    };
    let zero = Estimate::ZERO;
    let range = Estimate::new(Bytes(low), Bytes(mid), Bytes(high));
    let tag = if weights.basis == VisionBasis::Modules { Tag::Computed } else { Tag::Assumed };
    sheet.put(PartKind::Vision, all, Bytes(whole), if here { range } else { zero }, tag);
}

/// SGLang keeps the table in float32 on CUDA, vLLM in the model's dtype. Source:
/// `layers/rotary_embedding.py` of each; 0.03 GiB between the public Llama 3 and 3.1 8B logs.
fn rotary(sheet: &mut Sheet<'_>) {
    let Some(table) = sheet.model.detail.rope else { return };
    let element = match sheet.options.loader {
        Loader::Sglang => 4,
        Loader::Vllm => sheet.plain.bits / 8,
    };
    let bytes = table.positions.saturating_mul(table.width).saturating_mul(element);
    let exact = Estimate::exact(Bytes(bytes));
    sheet.put(PartKind::Rotary, 0, Bytes(bytes), exact, Tag::Computed);
}

/// SGLang's weights figure is a difference of free memory: it also has the allocator's rounding
/// and what libraries take at first use. vLLM counts tensors. Fitted on the public logs of the
/// start-up tables (SGLang: 0.10 to 0.34 GiB over the tensors; vLLM: 0 to 0.06 GiB on one rank, 0 to
/// 0.22 on several).
fn loading(sheet: &mut Sheet<'_>) {
    let several = sheet.options.parallel.attention > 1;
    let (low, mid, high) = match sheet.options.loader {
        Loader::Sglang => (0, 112 * MIB, 400 * MIB),
        Loader::Vllm if several => (0, 48 * MIB, 240 * MIB),
        Loader::Vllm => (0, 4 * MIB, 80 * MIB),
    };
    let range = Estimate::new(Bytes(low), Bytes(mid), Bytes(high));
    sheet.put(PartKind::Loading, 0, Bytes::ZERO, range, Tag::Calibrated);
}
