//! The shape of a model as far as memory depends on it: one entry a layer, in order.

use crate::units::Tokens;

/// Element type of weights or activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit float, 4 exponent bits.
    Fp8E4m3,
    /// 8-bit float, 5 exponent bits.
    Fp8E5m2,
    /// 8-bit integer.
    I8,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::I8 => 1,
        }
    }
}

/// Which positions a GQA layer keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    /// All of them.
    Full,
    /// The last `window` tokens.
    Sliding {
        /// Window in tokens.
        window: u64,
    },
    /// The current chunk of `chunk` tokens (Llama 4 local layers).
    Chunked {
        /// Chunk in tokens.
        chunk: u64,
    },
}

/// Sparse-attention index of a DSA/NSA layer (DeepSeek V3.2, GLM 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indexer {
    /// Index heads.
    pub heads: u64,
    /// Width of one index key.
    pub head_dim: u64,
    /// Tokens chosen.
    pub topk: u64,
}

/// Kind of linear-attention or state-space layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinearKind {
    /// Mamba-2 (Nemotron-H, Granite 4, Falcon-H1).
    Mamba2,
    /// Gated DeltaNet (Qwen3-Next, Qwen3.5).
    Gdn,
    /// Kimi delta attention.
    Kda,
    /// Lightning attention (MiniMax-01, Ring-linear).
    Lightning,
}

/// State of a linear-attention layer, whole model (before tensor parallelism).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearState {
    /// Which recurrence.
    pub kind: LinearKind,
    /// Value heads (SSM heads); sharded over tensor-parallel ranks.
    pub heads: u64,
    /// Rows of one head's state (value head dim or SSM head dim).
    pub head_dim: u64,
    /// Columns of one head's state (key head dim or SSM state size).
    pub state_dim: u64,
    /// Channels of the short convolution, all of them; sharded. 0 when there is none.
    pub conv_channels: u64,
    /// Taps of the short convolution.
    pub conv_kernel: u64,
    /// Groups or key heads that must exist on each rank.
    pub groups: u64,
}

/// What one layer keeps of past tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// Multi-head or grouped-query attention.
    Gqa {
        /// Query heads.
        q_heads: u64,
        /// Key-value heads.
        kv_heads: u64,
        /// Width of a key head.
        head_dim: u64,
        /// Width of a value head.
        v_head_dim: u64,
        /// Positions kept.
        span: Span,
    },
    /// Multi-head latent attention.
    Mla {
        /// Query heads.
        q_heads: u64,
        /// Rank of the query projection; `None` when it is one matrix.
        q_lora_rank: Option<u64>,
        /// Width of the latent.
        kv_lora_rank: u64,
        /// Width of a head's part without rotation.
        qk_nope_head_dim: u64,
        /// Width of the rotated part, shared by heads.
        qk_rope_head_dim: u64,
        /// Width of a value head.
        v_head_dim: u64,
        /// Sparse index, when the layer has one.
        indexer: Option<Indexer>,
    },
    /// Linear attention or a state space: a fixed state for each request.
    Linear(LinearState),
    /// No memory of the past (an MLP-only layer of Nemotron-H).
    None,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mlp {
    /// Dense.
    Dense {
        /// Intermediate width.
        intermediate: u64,
        /// Matrices: 3 when gated, 2 when not.
        matrices: u64,
    },
    /// Mixture of experts.
    Moe {
        /// Routed experts.
        experts: u64,
        /// Experts a token visits.
        top_k: u64,
        /// Intermediate width of one expert.
        intermediate: u64,
        /// Total intermediate width of the shared experts; 0 for none.
        shared_intermediate: u64,
        /// Matrices of one expert: 3 when gated, 2 when not.
        matrices: u64,
    },
    /// None (a state-space-only layer).
    None,
}

/// One layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Its memory of the past.
    pub attention: Attention,
    /// Its feed-forward part.
    pub mlp: Mlp,
}

/// The vision tower, as far as memory depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisionTower {
    /// Transformer layers.
    pub layers: u64,
    /// Hidden width.
    pub hidden: u64,
    /// MLP width.
    pub intermediate: u64,
    /// Whether the configuration has both `num_hidden_layers` and `hidden_size` by these names;
    /// `Detail::vision_factor` has what SGLang's multimodal factor reads.
    pub sized: bool,
}

/// Weight storage of the checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct Quantization {
    /// `quant_method` (fp8, awq, gptq, compressed-tensors, mxfp4, modelopt, …).
    pub method: String,
    /// Bits of a quantised weight.
    pub weight_bits: u64,
    /// Elements that share a scale; 0 for one scale a tensor or channel.
    pub group_size: u64,
    /// Bytes of one scale.
    pub scale_bytes: u64,
    /// Whether each group also has a zero point of `weight_bits`.
    pub zero_points: bool,
    /// Module name patterns that stay in the model's dtype.
    pub ignored: Vec<String>,
    /// Only the routed experts are quantised (Kimi-K2.5, gpt-oss).
    pub experts_only: bool,
}

/// A model, as memory sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelGeometry {
    /// Name as asked for.
    pub name: String,
    /// `architectures[0]`.
    pub architecture: String,
    /// `model_type` of the text model.
    pub model_type: String,
    /// `torch_dtype` (`dtype`): activations and unquantised weights.
    pub dtype: Dtype,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Rows of the vocabulary.
    pub vocab_size: u64,
    /// Longest sequence that the configuration allows, as the engines derive it.
    pub context_len: Tokens,
    /// Input and output embeddings are one tensor.
    pub tie_word_embeddings: bool,
    /// Layers of the main model, in order.
    pub layers: Vec<Layer>,
    /// Layers of the built-in draft head (`num_nextn_predict_layers`).
    pub nextn_layers: u64,
    /// Weight storage, when quantised.
    pub quantization: Option<Quantization>,
    /// The checkpoint says that KV is kept in FP8.
    pub kv_cache_fp8: bool,
    /// Element type of recurrent states where the configuration names one (`mamba_ssm_dtype`,
    /// `mamba_ssm_cache_dtype`); each engine has its own default.
    pub state_dtype: Option<Dtype>,
    /// Vision tower of a multimodal model.
    pub vision: Option<VisionTower>,
    /// The engines load it as a multimodal model.
    pub multimodal: bool,
}
