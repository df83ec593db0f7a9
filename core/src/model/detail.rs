//! A model as read: the geometry that the engines' sizing sees, and what only its weights need.

use super::{
    geometry::{Dtype, Layer, ModelGeometry},
    pattern::PatternMap,
    storage::Storage,
};
use crate::units::{Bytes, Tokens};

/// A model as read from `config.json`, the catalog or GGUF metadata.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// What sizing sees.
    pub geometry: ModelGeometry,
    /// What only the weights need.
    pub detail: Detail,
    /// Where bytes per token of KV come from.
    pub kv: KvSource,
    /// Weights of one rank as the user gave them.
    pub given_weights: Option<Bytes>,
    /// What was assumed while reading, one sentence each.
    pub notes: Vec<String>,
}

impl Model {
    /// Dtype in which the engines keep unquantised weights and, by default, KV: float32
    /// checkpoints are loaded as float16. Source: vLLM and SGLang `ModelConfig`, dtype `auto`.
    #[must_use]
    pub fn engine_dtype(&self) -> Dtype {
        match self.geometry.dtype {
            Dtype::F32 => Dtype::F16,
            other => other,
        }
    }
}

/// Where bytes per token come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvSource {
    /// From the layers.
    Layers,
    /// From the user (`--kv-bytes-per-token`), one rank's bytes for one token of all layers; the
    /// layers are then only counted.
    Given(Bytes),
}

/// Norm of queries and keys before attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QkNorm {
    /// None.
    #[default]
    None,
    /// One vector of the head's width, shared by heads.
    Head,
    /// A vector over all heads.
    AllHeads,
}

/// Gate on the output of attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OutputGate {
    /// None.
    #[default]
    None,
    /// As wide as the queries, out of a query projection of twice the width (Qwen3-Next).
    Channel,
    /// One value a head, from its own projection (Step-3.5).
    Head,
}

/// Projection of layers of `Attention::Linear`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DecayGate {
    /// Low rank, through a head's width (Kimi-Linear).
    #[default]
    LowRank,
    /// Full rank (Kimi K3).
    FullRank,
}

/// Per-layer input embeddings (Gemma 3n, Gemma 4 E models).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerLayerInput {
    /// Width for one layer.
    pub width: u64,
    /// Rows.
    pub vocab: u64,
}

/// Weights of a vision tower with its projector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisionWeights {
    /// Parameters that tensor parallelism may divide.
    pub sharded: u64,
    /// Parameters on every rank.
    pub replicated: u64,
    /// How firm the count is.
    pub basis: VisionBasis,
}

/// What SGLang's multimodal factor reads of a vision configuration: `num_hidden_layers` and
/// `hidden_size` by exactly these names, 24 and 1,024 where one is missing (Qwen's `depth` is not
/// seen). Source: `server_args.py`, multimodal memory adjustment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactorInputs {
    /// Layers.
    pub layers: u64,
    /// Hidden width.
    pub hidden: u64,
}

/// How a vision tower's parameters were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VisionBasis {
    /// By the family's own modules.
    Modules,
    /// By the generic form of a ViT.
    Generic,
    /// The configuration says too little; nothing is counted.
    Unknown,
}

/// Rotary table that the engines keep on the device: `positions` x `width` values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RopeTable {
    /// Positions covered.
    pub positions: u64,
    /// Rotated width.
    pub width: u64,
}

/// Where a layer's experts are in module names (`model.layers.N.<here>.experts`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleNames {
    /// Parent of router and experts.
    pub moe: &'static str,
    /// Shared expert, under `moe`.
    pub shared: &'static str,
    /// Dense feed-forward.
    pub dense: &'static str,
    /// Attention.
    pub attention: &'static str,
    /// Linear attention or state space.
    pub linear: &'static str,
}

impl Default for ModuleNames {
    fn default() -> Self {
        Self {
            moe: "mlp",
            shared: "shared_experts",
            dense: "mlp",
            attention: "self_attn",
            linear: "linear_attn",
        }
    }
}

/// Quantisation of a checkpoint, module by module.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct QuantPlan {
    /// Storage of a quantised module that no rule names; `None` leaves it in the model's dtype.
    pub base: Option<Storage>,
    /// Only routed experts.
    pub experts_only: bool,
    /// Storage by pattern, before `ignored`.
    pub rules: PatternMap<Storage>,
    /// Modules that stay in the model's dtype.
    pub ignored: PatternMap<()>,
    /// The output head is quantised like any other module.
    pub head: bool,
    /// A method whose storage is not known; weights then have a wide interval.
    pub unknown: Option<String>,
}

/// What only the weights need to know.
#[derive(Clone, PartialEq, Debug)]
pub struct Detail {
    /// Bias of query, key and value projections.
    pub qkv_bias: bool,
    /// Bias of the output projection.
    pub o_bias: bool,
    /// Bias of the feed-forward projections (gpt-oss: of its experts).
    pub mlp_bias: bool,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Gate on attention's output.
    pub output_gate: OutputGate,
    /// Layers of full attention have no value projection of their own (Gemma 4).
    pub k_is_v: bool,
    /// Norm vectors of the model's width a layer.
    pub norms: u64,
    /// Rows of a learned position table.
    pub learned_positions: u64,
    /// Per-layer input embeddings.
    pub per_layer_input: Option<PerLayerInput>,
    /// Last layers that use the KV of earlier ones and store none (Gemma 3n, Gemma 4 E models).
    pub kv_shared_layers: u64,
    /// Routed experts work in a narrower space of this width (Nemotron 3 Super, Kimi K3).
    pub moe_latent: Option<u64>,
    /// The shared expert has a gate of its own (Qwen).
    pub shared_gate: bool,
    /// Decay and output gates of Kimi delta attention.
    pub decay_gate: DecayGate,
    /// MLA has a gate on its output (Kimi K3).
    pub mla_gate: bool,
    /// Layers of the geometry that stay together when the model is split into stages.
    pub layers_a_block: u64,
    /// Built-in draft layers, when the configuration has them.
    pub nextn: Vec<Layer>,
    /// Vision tower.
    pub vision: Option<VisionWeights>,
    /// What SGLang's multimodal factor reads; `None` without a vision configuration.
    pub vision_factor: Option<FactorInputs>,
    /// Rotary table; `None` without rotation.
    pub rope: Option<RopeTable>,
    /// Module names, for quantisation rules.
    pub names: ModuleNames,
    /// Quantisation.
    pub quant: QuantPlan,
    /// Dtype of a recurrent state, unless the engine is told otherwise.
    pub ssm_dtype: Dtype,
    /// Context length as vLLM derives it (geometry has SGLang's).
    pub vllm_context_len: Tokens,
}
