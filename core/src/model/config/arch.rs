//! The architectures that are known: how each differs from a plain gated decoder.

use crate::model::detail::{ModuleNames, OutputGate, QkNorm};

/// Which builder reads an architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// Attention of keys and values, feed-forward dense or of experts.
    Decoder,
    /// Multi-head latent attention.
    Mla,
    /// Gated DeltaNet with every n-th layer full attention.
    QwenHybrid,
    /// One mixer a layer: Mamba-2, attention, MLP or experts.
    NemotronH,
    /// Mamba-2 or attention, each with a feed-forward part.
    GraniteHybrid,
    /// Mamba-2 and attention side by side in each layer.
    FalconH1,
    /// Kimi delta attention with MLA layers between.
    KimiLinear,
    /// Lightning attention with full layers between.
    Lightning,
    /// Heads and widths given block by block.
    Deci,
    /// Known by name only; says what is missing.
    NotModelled(&'static str),
}

/// Which layers slide when the configuration has a window but no list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Windows {
    /// All of them.
    All,
    /// None without `use_sliding_window`; then those from `max_window_layers` on.
    Flagged,
    /// Every n-th is full, the others slide.
    FullEvery(u64),
    /// Every n-th is full, the others keep their chunk.
    ChunkedFullEvery(u64),
}

/// One architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arch {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) qkv_bias: bool,
    pub(super) o_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) qk_norm: QkNorm,
    pub(super) output_gate: OutputGate,
    pub(super) norms: u64,
    /// Value of `tie_word_embeddings` when the configuration leaves it out.
    pub(super) tied: bool,
    /// Matrices of a feed-forward part.
    pub(super) matrices: u64,
    pub(super) names: ModuleNames,
    pub(super) windows: Windows,
    pub(super) shared_gate: bool,
    /// Loaded as a multimodal model even when the file has no vision part.
    pub(super) multimodal: bool,
}

const NAMES: ModuleNames = ModuleNames {
    moe: "mlp",
    shared: "shared_experts",
    dense: "mlp",
    attention: "self_attn",
    linear: "linear_attn",
};
const SPARSE: ModuleNames = ModuleNames { moe: "block_sparse_moe", ..NAMES };
const SHARED_ONE: ModuleNames = ModuleNames { shared: "shared_expert", ..NAMES };
const MIXER: ModuleNames = ModuleNames {
    moe: "mixer",
    shared: "shared_experts",
    dense: "mixer",
    attention: "mixer",
    linear: "mixer",
};
const FEED_FORWARD: ModuleNames =
    ModuleNames { moe: "feed_forward", shared: "shared_expert", dense: "feed_forward", ..NAMES };
/// Gemma 4 keeps its experts beside the dense part, which counts as their shared expert.
const BESIDE: ModuleNames = ModuleNames { moe: "moe", ..NAMES };
const MAMBA: ModuleNames =
    ModuleNames { moe: "block_sparse_moe", shared: "shared_mlp", linear: "mamba", ..NAMES };

const fn decoder(name: &'static str) -> Arch {
    Arch {
        name,
        shape: Shape::Decoder,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: QkNorm::None,
        output_gate: OutputGate::None,
        norms: 2,
        tied: false,
        matrices: 3,
        names: NAMES,
        windows: Windows::All,
        shared_gate: false,
        multimodal: false,
    }
}

const fn qwen2(name: &'static str) -> Arch {
    Arch { qkv_bias: true, windows: Windows::Flagged, names: SHARED_ONE, ..decoder(name) }
}

const fn qwen3(name: &'static str) -> Arch {
    Arch { qk_norm: QkNorm::Head, windows: Windows::Flagged, ..decoder(name) }
}

const fn gemma(name: &'static str, windows: Windows) -> Arch {
    Arch { tied: true, norms: 4, windows, ..decoder(name) }
}

const fn gemma3(name: &'static str) -> Arch {
    Arch { qk_norm: QkNorm::Head, ..gemma(name, Windows::FullEvery(6)) }
}

const fn mla(name: &'static str) -> Arch {
    Arch { shape: Shape::Mla, ..decoder(name) }
}

const fn qwen_hybrid(name: &'static str) -> Arch {
    Arch {
        shape: Shape::QwenHybrid,
        qk_norm: QkNorm::Head,
        output_gate: OutputGate::Channel,
        names: SHARED_ONE,
        shared_gate: true,
        ..decoder(name)
    }
}

const fn seen(arch: Arch) -> Arch {
    Arch { multimodal: true, ..arch }
}

const fn old(name: &'static str) -> Arch {
    Arch {
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        matrices: 2,
        norms: 4,
        tied: true,
        ..decoder(name)
    }
}

const fn unmodelled(name: &'static str, what: &'static str) -> Arch {
    Arch { shape: Shape::NotModelled(what), ..decoder(name) }
}

const V4: &str = "its compressed KV layers have several pools with their own sizes, so the KV cell \
     is not modelled; give --kv-bytes-per-token and --weights";
const BLOCKS: &str = "its block-sparse attention keeps index caches beside KV, so the KV cell is \
     not modelled; give --kv-bytes-per-token and --weights";
const TWO: &str = "it has two attentions a layer, so the KV cell is not modelled; give \
     --kv-bytes-per-token and --weights";
const STATE: &str = "the state of its recurrent layers is not modelled; give \
     --kv-bytes-per-token and --weights";
const ALTUP: &str = "its side streams (AltUp, Laurel) and shared KV layers are not modelled; give \
     --kv-bytes-per-token and --weights";
const ENCODER: &str = "its cross-attention cache is not modelled; give --kv-bytes-per-token and \
     --weights";

/// All of them, in no order that matters.
pub(super) static ARCHS: &[Arch] = &[
    decoder("LlamaForCausalLM"),
    decoder("LLaMAForCausalLM"),
    decoder("MistralForCausalLM"),
    decoder("MinistralForCausalLM"),
    decoder("Ministral3ForCausalLM"),
    seen(decoder("Mistral3ForConditionalGeneration")),
    seen(decoder("LlavaForConditionalGeneration")),
    Arch { names: SPARSE, ..decoder("MixtralForCausalLM") },
    qwen2("Qwen2ForCausalLM"),
    seen(qwen2("Qwen2VLForConditionalGeneration")),
    seen(qwen2("Qwen2_5_VLForConditionalGeneration")),
    Arch { shared_gate: true, ..qwen2("Qwen2MoeForCausalLM") },
    qwen3("Qwen3ForCausalLM"),
    qwen3("Qwen3MoeForCausalLM"),
    seen(qwen3("Qwen3VLForConditionalGeneration")),
    seen(qwen3("Qwen3VLMoeForConditionalGeneration")),
    Arch { tied: true, ..decoder("GemmaForCausalLM") },
    gemma("Gemma2ForCausalLM", Windows::FullEvery(2)),
    gemma3("Gemma3ForCausalLM"),
    seen(gemma3("Gemma3ForConditionalGeneration")),
    Arch { names: BESIDE, ..gemma3("Gemma4ForCausalLM") },
    seen(Arch { names: BESIDE, ..gemma3("Gemma4ForConditionalGeneration") }),
    decoder("Phi3ForCausalLM"),
    Arch { norms: 2, tied: false, ..old("PhiForCausalLM") },
    decoder("OlmoForCausalLM"),
    Arch { qk_norm: QkNorm::AllHeads, ..decoder("Olmo2ForCausalLM") },
    Arch {
        qk_norm: QkNorm::AllHeads,
        windows: Windows::FullEvery(4),
        ..decoder("Olmo3ForCausalLM")
    },
    Arch { qk_norm: QkNorm::AllHeads, ..decoder("OlmoeForCausalLM") },
    decoder("GraniteForCausalLM"),
    Arch { names: SPARSE, ..decoder("GraniteMoeForCausalLM") },
    Arch { tied: true, norms: 1, ..decoder("CohereForCausalLM") },
    Arch { tied: true, norms: 1, windows: Windows::FullEvery(4), ..decoder("Cohere2ForCausalLM") },
    decoder("InternLM2ForCausalLM"),
    decoder("InternLM3ForCausalLM"),
    seen(qwen2("InternVLChatModel")),
    Arch { qkv_bias: true, ..decoder("GlmForCausalLM") },
    Arch { qkv_bias: true, norms: 4, ..decoder("Glm4ForCausalLM") },
    Arch { qkv_bias: true, ..decoder("Glm4MoeForCausalLM") },
    decoder("ExaoneForCausalLM"),
    Arch { qk_norm: QkNorm::Head, windows: Windows::FullEvery(4), ..decoder("Exaone4ForCausalLM") },
    Arch { tied: true, ..decoder("SmolLM3ForCausalLM") },
    Arch { tied: true, ..decoder("Ernie4_5ForCausalLM") },
    Arch { tied: true, ..decoder("Ernie4_5_MoeForCausalLM") },
    Arch { qkv_bias: true, ..decoder("SeedOssForCausalLM") },
    Arch { matrices: 2, qk_norm: QkNorm::Head, ..decoder("ApertusForCausalLM") },
    Arch { matrices: 2, ..decoder("ArceeForCausalLM") },
    Arch { matrices: 2, norms: 4, ..decoder("NemotronForCausalLM") },
    Arch { tied: true, ..old("Starcoder2ForCausalLM") },
    old("OPTForCausalLM"),
    old("GPT2LMHeadModel"),
    Arch { windows: Windows::Flagged, ..qwen2("MiMoForCausalLM") },
    decoder("MiMoV2FlashForCausalLM"),
    Arch { shape: Shape::Deci, ..decoder("DeciLMForCausalLM") },
    Arch {
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        windows: Windows::FullEvery(2),
        ..decoder("GptOssForCausalLM")
    },
    Arch {
        qk_norm: QkNorm::Head,
        names: ModuleNames { moe: "moe", shared: "share_expert", ..NAMES },
        ..decoder("Step3p5ForCausalLM")
    },
    Arch {
        qk_norm: QkNorm::Head,
        names: ModuleNames { moe: "moe", shared: "share_expert", ..NAMES },
        ..decoder("Step3p7FlashForCausalLM")
    },
    Arch { qk_norm: QkNorm::AllHeads, names: SPARSE, ..decoder("MiniMaxM2ForCausalLM") },
    Arch {
        names: FEED_FORWARD,
        windows: Windows::ChunkedFullEvery(4),
        ..decoder("Llama4ForCausalLM")
    },
    seen(Arch {
        names: FEED_FORWARD,
        windows: Windows::ChunkedFullEvery(4),
        ..decoder("Llama4ForConditionalGeneration")
    }),
    mla("DeepseekV2ForCausalLM"),
    mla("DeepseekV3ForCausalLM"),
    mla("DeepseekV32ForCausalLM"),
    mla("GlmMoeDsaForCausalLM"),
    mla("Glm4MoeLiteForCausalLM"),
    mla("MiniCPM3ForCausalLM"),
    seen(mla("KimiVLForConditionalGeneration")),
    seen(mla("KimiK25ForConditionalGeneration")),
    Arch { shape: Shape::KimiLinear, names: SPARSE, ..decoder("KimiLinearForCausalLM") },
    seen(Arch {
        shape: Shape::KimiLinear,
        names: SPARSE,
        ..decoder("KimiK3ForConditionalGeneration")
    }),
    qwen_hybrid("Qwen3NextForCausalLM"),
    qwen_hybrid("Qwen3_5ForCausalLM"),
    qwen_hybrid("Qwen3_5MoeForCausalLM"),
    seen(qwen_hybrid("Qwen3_5ForConditionalGeneration")),
    seen(qwen_hybrid("Qwen3_5MoeForConditionalGeneration")),
    Arch {
        shape: Shape::NemotronH,
        names: MIXER,
        matrices: 2,
        norms: 1,
        ..decoder("NemotronHForCausalLM")
    },
    Arch { shape: Shape::GraniteHybrid, names: MAMBA, ..decoder("GraniteMoeHybridForCausalLM") },
    Arch {
        shape: Shape::FalconH1,
        names: ModuleNames { dense: "feed_forward", ..MAMBA },
        ..decoder("FalconH1ForCausalLM")
    },
    Arch { shape: Shape::Lightning, names: SPARSE, ..decoder("MiniMaxText01ForCausalLM") },
    Arch { shape: Shape::Lightning, names: SPARSE, ..decoder("MiniMaxM1ForCausalLM") },
    unmodelled("DeepseekV4ForCausalLM", V4),
    unmodelled("MiniMaxM3ForCausalLM", BLOCKS),
    unmodelled("MiniMaxM3SparseForConditionalGeneration", BLOCKS),
    unmodelled("LongcatFlashForCausalLM", TWO),
    unmodelled("JambaForCausalLM", STATE),
    unmodelled("Lfm2ForCausalLM", STATE),
    unmodelled("Lfm2MoeForCausalLM", STATE),
    unmodelled("MambaForCausalLM", STATE),
    unmodelled("Mamba2ForCausalLM", STATE),
    unmodelled("Zamba2ForCausalLM", STATE),
    unmodelled("Gemma3nForConditionalGeneration", ALTUP),
    unmodelled("MllamaForConditionalGeneration", ENCODER),
    unmodelled("WhisperForConditionalGeneration", ENCODER),
];

/// The architecture of that name.
pub(super) fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|a| a.name == name)
}
