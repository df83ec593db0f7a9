//! What the rules ask about the model and the machine, apart from the launch flags.

/// How attention keeps its past, as far as reserves and graph sizes differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttentionArch {
    /// Multi-head or grouped-query attention (and hybrids of it).
    #[default]
    Mha,
    /// Multi-head latent attention.
    Mla,
    /// Multi-head latent attention with a sparse index (DSA, NSA).
    Dsa,
}

impl AttentionArch {
    /// Latent attention, with or without an index.
    #[must_use]
    pub const fn is_mla(self) -> bool {
        matches!(self, Self::Mla | Self::Dsa)
    }
}

/// Whether the engine loads the model as a multimodal one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Multimodal {
    /// Text only.
    #[default]
    No,
    /// The configuration has a `vision_config`; a missing field of it is 24 layers, 1024 wide.
    WithVisionConfig {
        /// Transformer layers of the tower.
        layers: Option<u64>,
        /// Width of the tower.
        hidden: Option<u64>,
    },
    /// Multimodal without a `vision_config`.
    WithoutVisionConfig,
}

/// Families whose name the rules ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Family {
    /// None of the others.
    #[default]
    Other,
    /// DeepSeek V4.
    DeepseekV4,
    /// Nemotron-H.
    NemotronH,
    /// Kimi delta attention.
    Kda,
    /// Qwen3-VL.
    Qwen3Vl,
}

/// Whether an architecture chunks the prefill of multimodal prompts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MultimodalPrefill {
    /// It does (most do).
    #[default]
    Chunked,
    /// It does not; the engine switches chunking off.
    Whole,
}

/// Storage type of KV elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KvDtype {
    /// bfloat16.
    #[default]
    Bf16,
    /// IEEE half.
    Fp16,
    /// IEEE single.
    Fp32,
    /// 8-bit float, 4 exponent bits.
    Fp8E4m3,
    /// 8-bit float, 5 exponent bits.
    Fp8E5m2,
    /// Two 4-bit floats a byte, with block scales.
    Fp4,
}

impl KvDtype {
    /// Bytes of one element as the cell formulas take it (1 for FP4, which they halve).
    #[must_use]
    pub const fn element_bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp32 => 4,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::Fp4 => 1,
        }
    }

    /// Name as `--kv-cache-dtype` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::Fp16 => "float16",
            Self::Fp32 => "float32",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
            Self::Fp4 => "fp4_e2m1",
        }
    }

    /// From a `--kv-cache-dtype` or `--dtype` spelling; `None` for `auto` and unknown names.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bf16" | "bfloat16" => Self::Bf16,
            "fp16" | "float16" | "half" => Self::Fp16,
            "fp32" | "float32" | "float" => Self::Fp32,
            "fp8_e4m3" => Self::Fp8E4m3,
            "fp8_e5m2" => Self::Fp8E5m2,
            "fp4" | "fp4_e2m1" => Self::Fp4,
            _ => return None,
        })
    }
}

/// The model, as far as settings depend on it.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelFacts {
    /// Attention.
    pub attention: AttentionArch,
    /// Vision.
    pub multimodal: Multimodal,
    /// Prefill of multimodal prompts.
    pub multimodal_prefill: MultimodalPrefill,
    /// Named family.
    pub family: Family,
    /// `architectures[0]`; empty when unknown.
    pub architecture: String,
    /// Context of the configuration, tokens.
    pub context_len: u64,
    /// `torch_dtype`.
    pub dtype: KvDtype,
    /// Whether the checkpoint keeps KV in FP8 (or is read from GGUF, or neither).
    pub checkpoint: Checkpoint,
    /// Key-value heads as the configuration counts them (of latents: query heads); `None` when unknown.
    pub heads: Option<u64>,
    /// Keys and values differ in width, latents aside.
    pub asymmetric_kv: bool,
    /// Routed experts in FP4 by ModelOpt.
    pub fp4_experts: bool,
}

/// What the checkpoint says that matters to settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checkpoint {
    /// Nothing of note.
    #[default]
    Plain,
    /// Its quantisation names an FP8 KV cache.
    Fp8Kv,
    /// A GGUF file.
    Gguf,
}

impl ModelFacts {
    /// A text model with multi-head attention in bf16.
    #[must_use]
    pub fn text(context_len: u64) -> Self {
        Self {
            attention: AttentionArch::Mha,
            multimodal: Multimodal::No,
            multimodal_prefill: MultimodalPrefill::Chunked,
            family: Family::Other,
            architecture: String::new(),
            context_len,
            dtype: KvDtype::Bf16,
            checkpoint: Checkpoint::Plain,
            heads: None,
            asymmetric_kv: false,
            fp4_experts: false,
        }
    }
}

/// The machine, as far as settings depend on it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MachineFacts {
    /// Capacity in MiB as the engine reads it ([`super::capacity`]); `None` when unknown.
    pub gpu_mem_mib: Option<f64>,
    /// CUDA compute capability, major and minor, when known.
    pub compute_capability: Option<(u32, u32)>,
}
