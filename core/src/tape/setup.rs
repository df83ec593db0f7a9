//! What a tape depends on: the model, the code that runs it, and the step.

use crate::estimate::activation::MlaPrefix;
use crate::estimate::moe::SharedExperts;
use crate::estimate::shape::{AttentionShape, Rank, ShapeInputs, narrow};
use crate::model::geometry::{Attention, Mlp, ModelGeometry};
use crate::policy::sglang::version::Version;

/// Layer code whose allocations were recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Code {
    /// SGLang up to 0.5.8.
    Sglang0508,
    /// SGLang from 0.5.23.
    Sglang0523,
    /// vLLM 0.19, eager (an upper bound for the compiled default).
    Vllm019,
}

impl Code {
    /// The codes that an SGLang release may run: one at and outside the recorded releases, both
    /// between them, where the release of the change is not known (take the larger).
    #[must_use]
    pub fn sglang(version: Version) -> &'static [Self] {
        if version <= Version::new(0, 5, 8) {
            &[Self::Sglang0508]
        } else if version >= Version::new(0, 5, 23) {
            &[Self::Sglang0523]
        } else {
            &[Self::Sglang0508, Self::Sglang0523]
        }
    }
}

/// Model code, as far as it decides what lives how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Llama, Mistral: the linear all-reduces; vLLM drops `gate_up` early.
    Llama,
    /// Qwen2 and alike.
    Qwen2,
    /// Qwen3 dense: the layer's communicator all-reduces attention.
    Qwen3,
    /// Mixtral.
    Mixtral,
    /// Qwen3-MoE and alike.
    Qwen3Moe,
    /// DeepSeek V2, V3, Kimi: latent attention.
    DeepSeek,
}

/// The second half of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayerMlp {
    /// One gated MLP.
    Dense,
    /// Routed experts.
    Experts,
}

/// A model for tapes: the shape, its layers and the code family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapeModel {
    /// Numbers, whole model.
    pub shape: ShapeInputs,
    /// One entry a layer.
    pub layers: Vec<LayerMlp>,
    /// Code family.
    pub family: Family,
}

/// Why there is no tape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TapeError {
    /// A layer kind whose allocations were not recorded.
    #[error("layer {layer} is {kind}: no tape for such layers")]
    UnknownLayer {
        /// Layer from 0.
        layer: usize,
        /// What it is.
        kind: &'static str,
    },
    /// The engine's code for this family was not recorded.
    #[error("no tape of {code:?} for {what}")]
    NotRecorded {
        /// Which code.
        code: Code,
        /// Family or step.
        what: &'static str,
    },
    /// A number outside its range.
    #[error("{field} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Which number.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
}

impl TapeModel {
    /// Reads model and family from a geometry. Where layers of one kind differ in width the widest
    /// counts for all.
    ///
    /// # Errors
    ///
    /// [`TapeError::UnknownLayer`] for state-space and linear attention and for layers without an
    /// MLP.
    pub fn from_geometry(model: &ModelGeometry) -> Result<Self, TapeError> {
        let mut layers = Vec::with_capacity(model.layers.len());
        for (layer, shape) in model.layers.iter().enumerate() {
            let unknown = |kind| TapeError::UnknownLayer { layer, kind };
            match shape.attention {
                Attention::Gqa { .. } | Attention::Mla { .. } => {}
                Attention::Linear(_) => return Err(unknown("linear attention")),
                Attention::None => return Err(unknown("without attention")),
            }
            layers.push(match shape.mlp {
                Mlp::Dense { .. } => LayerMlp::Dense,
                Mlp::Moe { .. } => LayerMlp::Experts,
                Mlp::None => return Err(unknown("without an MLP")),
            });
        }
        let shape = ShapeInputs::from_geometry(model);
        let family = family(model.model_type.as_str(), &shape);
        Ok(Self { shape, layers, family })
    }
}

/// Layers of each kind after which nothing new is needed: the second holds the first one's output, the
/// third reuses what the first took.
const DISTINCT_LAYERS: usize = 3;

impl TapeModel {
    /// The same with at most three layers of each kind, in their order: its steps peak as the whole
    /// model's and take the same segments, at a fraction of the events.
    #[must_use]
    pub fn shortened(&self) -> Self {
        let mut left = [DISTINCT_LAYERS; 2];
        let keep = |mlp: &&LayerMlp| {
            let left = &mut left[usize::from(**mlp == LayerMlp::Experts)];
            let kept = *left > 0;
            *left = left.saturating_sub(1);
            kept
        };
        let layers = self.layers.iter().filter(keep).copied().collect();
        Self { shape: self.shape, layers, family: self.family }
    }
}

fn family(model_type: &str, shape: &ShapeInputs) -> Family {
    match (shape.attention, shape.moe) {
        (AttentionShape::Mla { .. }, _) => Family::DeepSeek,
        (_, Some(_)) if model_type == "mixtral" => Family::Mixtral,
        (_, Some(_)) => Family::Qwen3Moe,
        _ if ["llama", "mistral"].contains(&model_type) => Family::Llama,
        _ if model_type.starts_with("qwen3") => Family::Qwen3,
        _ => Family::Qwen2,
    }
}

/// Whether something that is made once in a process is made in this step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Once {
    /// The step makes it, and it stays.
    Made,
    /// An earlier step made it.
    Exists,
}

/// Kernel of the experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experts {
    /// Triton, 16-bit.
    Triton,
    /// Triton, FP8 blocks of 128 × 128.
    TritonFp8Block,
    /// Marlin, with the number of multiprocessors of the device (4 lock words each).
    Marlin {
        /// Multiprocessors: 132 (H100, H200), 188 (RTX PRO 6000), 148 (B200).
        multiprocessors: u64,
        /// Atomic add or fp32 partial sums.
        reduce: MarlinReduce,
    },
}

/// How Marlin sums over blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarlinReduce {
    /// In place (compute capability 9 and later, or float16).
    Atomic,
    /// In a float32 buffer (bfloat16 before compute capability 9).
    Scratch,
}

/// Where the rows of a block of the expert kernels come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockTable {
    /// No tuned table for the device: the engine's default.
    Default,
    /// The tables that SGLang ships for the H100, where the shape has one.
    H100,
    /// A number that the caller knows, with TMA for the second GEMM or not.
    Fixed {
        /// Rows of a block.
        rows: u64,
        /// Whether the table asks for TMA.
        tma: Tma,
    },
}

/// Whether the second GEMM of the experts loads by TMA, which pads its input (0.5.23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tma {
    /// No.
    Off,
    /// Yes.
    On,
}

/// What runs the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Layer code.
    pub code: Code,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Kernel of the experts.
    pub experts: Experts,
    /// Shared experts; fused ones are separate again in 0.5.23.
    pub shared_experts: SharedExperts,
    /// Rows of a block.
    pub blocks: BlockTable,
    /// MLA over a prefix, see [`mla_prefix`].
    pub mla_prefix: MlaPrefix,
    /// vLLM's expert workspace.
    pub workspace: Once,
    /// The dummy scalar of 0.5.23's fused gate.
    pub gate_scalar: Once,
}

impl Setup {
    /// A step that is not the first: Triton experts without a tuned table, shared experts as the
    /// release runs them, MLA prefixes expanded at once. Change fields for other kernels.
    #[must_use]
    pub const fn plain(code: Code, tp: u64) -> Self {
        Self {
            code,
            tp,
            experts: Experts::Triton,
            shared_experts: SharedExperts::Fused,
            blocks: BlockTable::Default,
            mla_prefix: MlaPrefix::OneShot,
            workspace: Once::Exists,
            gate_scalar: Once::Exists,
        }
    }
}

/// Form of latent attention over a prefix by attention backend (`--attention-backend`).
///
/// Source: SGLang 0.5.8 `attention_backend_handler`; FlashInfer in 0.5.23 as recorded (absorbed
/// for a prefix of 65,536 tokens).
#[must_use]
pub fn mla_prefix(code: Code, attention_backend: &str) -> MlaPrefix {
    match (attention_backend, code) {
        ("triton", _) | ("flashinfer", Code::Sglang0523) => MlaPrefix::Absorbed,
        ("fa4" | "trtllm_mla" | "cutlass_mla", _) => MlaPrefix::Chunked,
        _ => MlaPrefix::OneShot,
    }
}

/// A chunk of prompt tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefillChunk {
    /// New tokens.
    pub tokens: u64,
    /// Requests that they belong to; also the rows of logits.
    pub requests: u64,
    /// Cached tokens before them, all requests together.
    pub prefix_tokens: u64,
}

/// Prefill or decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Prompt tokens.
    Prefill,
    /// One token a request.
    Decode,
}

/// Everything a builder asks for: one rank's widths and the step.
pub(super) struct Cx<'a> {
    pub(super) model: &'a TapeModel,
    pub(super) setup: &'a Setup,
    pub(super) phase: Phase,
    pub(super) step: PrefillChunk,
    pub(super) rank: Rank,
}

const MAX_TOKENS: u64 = 1 << 24;
const MAX_LAYERS: u64 = 1 << 10;
const MAX_PREFIX: u64 = 1 << 26;
const MAX_WIDTH: u64 = 1 << 24;

impl<'a> Cx<'a> {
    /// Checks the ranges that keep a tape finite.
    pub(super) fn new(
        model: &'a TapeModel,
        setup: &'a Setup,
        phase: Phase,
        step: PrefillChunk,
    ) -> Result<Self, TapeError> {
        let shape = &model.shape;
        let moe = shape.moe;
        for (field, value, min, max) in [
            ("tokens", step.tokens, 1, MAX_TOKENS),
            ("requests", step.requests, 1, MAX_TOKENS),
            ("prefix_tokens", step.prefix_tokens, 0, MAX_PREFIX),
            ("layers", model.layers.len() as u64, 1, MAX_LAYERS),
            ("tp", setup.tp, 1, 1024),
            ("hidden_size", shape.hidden, 1, MAX_WIDTH),
            ("vocab_size", shape.vocab, 1, MAX_WIDTH),
            ("num_experts", moe.map_or(1, |moe| moe.experts), 1, MAX_WIDTH),
            ("num_experts_per_tok", moe.map_or(1, |moe| moe.top_k), 1, 1024),
        ] {
            if value < min || value > max {
                return Err(TapeError::OutOfRange { field, value, min, max });
            }
        }
        let rank = shape.rank(setup.tp);
        if setup.code == Code::Vllm019 && rank.mla.is_some() {
            let what = "latent attention";
            return Err(TapeError::NotRecorded { code: setup.code, what });
        }
        Ok(Self { model, setup, phase, step, rank })
    }

    /// New tokens.
    pub(super) const fn tokens(&self) -> u64 {
        self.step.tokens
    }

    /// Width of the residual stream.
    pub(super) fn h(&self) -> u64 {
        narrow(self.rank.h)
    }

    /// Whether the code is SGLang 0.5.8's.
    pub(super) fn is_0508(&self) -> bool {
        self.setup.code == Code::Sglang0508
    }

    /// Vocabulary rows of one rank: padded to 64, then divided.
    /// Source: `vocab_parallel_embedding.pad_vocab_size`, both engines.
    pub(super) fn vocab_shard(&self) -> u64 {
        self.model.shape.vocab.next_multiple_of(64) / self.setup.tp
    }
}
