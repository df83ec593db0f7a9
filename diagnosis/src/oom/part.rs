//! Which part of the server asked for the memory, from the frames above the failure.

use plimsoll_ingest::log::Frame;

/// A part of a server, as far as its memory follows a rule of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Buffers of communication: NCCL, symmetric memory, DeepEP, NVSHMEM.
    Communication,
    /// Weights or pools that come back beside a trainer on the same device.
    Colocated,
    /// Scores of a sparse-attention indexer: queries × keys.
    Indexer,
    /// A host pool or pinned staging buffer.
    HostPool,
    /// The table from requests to token slots.
    RequestTable,
    /// State of Mamba or linear-attention layers.
    Mamba,
    /// LoRA buffers.
    Lora,
    /// The key-value pool.
    KvPool,
    /// Vision or audio tower.
    Encoder,
    /// Log-probabilities of prompt tokens.
    PromptLogprobs,
    /// Sampling: softmax, sort, penalties over rows × vocabulary.
    Sampler,
    /// Logits: the head's output and its copy in float.
    Logits,
    /// A workspace of experts.
    MoeWorkspace,
    /// Experts.
    Moe,
    /// A workspace of an attention backend.
    AttentionWorkspace,
    /// Attention.
    Attention,
    /// Rewriting weights after they were read (repacking, dequantising, merging).
    WeightConversion,
    /// Making room for weights, or reading them.
    Weights,
    /// Feed-forward, norms, rotary embedding.
    Mlp,
    /// Token embedding.
    Embedding,
}

impl Part {
    /// In words, for a sentence.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Communication => "buffers of communication (NCCL, symmetric memory, DeepEP)",
            Self::Colocated => "memory that comes back beside a trainer",
            Self::Indexer => "the indexer's scores (chunk × context)",
            Self::HostPool => "a host pool",
            Self::RequestTable => "the request-to-token table",
            Self::Mamba => "state of Mamba layers",
            Self::Lora => "LoRA buffers",
            Self::KvPool => "the KV pool",
            Self::Encoder => "the vision or audio encoder",
            Self::PromptLogprobs => "log-probabilities of prompt tokens",
            Self::Sampler => "sampling (rows × vocabulary)",
            Self::Logits => "logits (rows × vocabulary)",
            Self::MoeWorkspace => "a workspace of the experts",
            Self::Moe => "the experts",
            Self::AttentionWorkspace => "the attention backend's workspace",
            Self::Attention => "attention",
            Self::WeightConversion => "rewriting weights after loading",
            Self::Weights => "loading weights",
            Self::Mlp => "the feed-forward layers",
            Self::Embedding => "the token embedding",
        }
    }
}

/// Words of files, functions and source lines by part, most telling first. One frame is matched against the
/// whole table before the frame around it is tried.
const WORDS: &[(Part, &[&str])] = &[
    (
        Part::Communication,
        &[
            "symm_mem",
            "symmetric_mem",
            "deep_ep",
            "deepep",
            "nvshmem",
            "pynccl",
            "all_to_all",
            "mooncake_ep",
            "custom_all_reduce",
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "low_latency_dispatch",
            "hccl",
            "quick_all_reduce",
        ],
    ),
    (
        Part::WeightConversion,
        &[
            "process_weights_after_loading",
            "repack",
            "dequant",
            "requant",
            "permute_weights",
            "shuffle_weight",
            "transform_weight",
            "_post_load",
        ],
    ),
    (Part::Colocated, &["memory_saver", "resume_memory", "update_weights_from", "release_memory"]),
    (Part::Indexer, &["indexer", "mqa_logits", "topk_paged", "index_topk"]),
    (
        Part::HostPool,
        &[
            "memory_pool_host",
            "pin_memory",
            "hiradix",
            "hicache",
            "host_pool",
            "host_kv",
            "cudahostalloc",
            "cudahostregister",
        ],
    ),
    (Part::RequestTable, &["reqtotokenpool", "req_to_token = torch", "self.req_to_token ="]),
    (
        Part::Lora,
        &["lora/", "lora_manager", "lora_a", "lora_b", "lora_backend", "set_lora", "apply_lora"],
    ),
    (
        Part::Mamba,
        &[
            "mambapool",
            "mamba_pool",
            "mamba",
            "ssm_state",
            "temporal_state",
            "gated_delta",
            "linear_attn",
            "causal_conv1d",
        ],
    ),
    (
        Part::KvPool,
        &[
            "tokentokvpool",
            "token_to_kv_pool =",
            "kv_buffer = ",
            "k_buffer = ",
            "create_buffers",
            "memory_pool.py",
            "initialize_kv_cache",
            "allocate_kv_cache",
            "init_memory_pool",
        ],
    ),
    (
        Part::Encoder,
        &[
            "image_feature",
            "video_feature",
            "audio_feature",
            "vision",
            "visual",
            "siglip",
            "internvit",
            "whisper",
            "audio",
            "clip.py",
            "intern_vit",
            "mm_utils",
            "embed_mm",
            "image_embed",
            "multimodal_embed",
            "image_encoder",
            "pixel_values",
        ],
    ),
    (
        Part::PromptLogprobs,
        &[
            "input_logprob",
            "prompt_logprob",
            "input_token_logprob",
            "token_ids_logprob",
            "get_top_logprobs",
            "temp_scaled_logprobs",
            "compute_temp_top_p_normalized_logprobs",
        ],
    ),
    (
        Part::MoeWorkspace,
        &["prepare_moe", "moe_workspace", "workspace13", "workspace2", "get_moe_workspace"],
    ),
    (Part::Moe, &["moe", "experts", "grouped_gemm", "fused_experts", "deep_gemm_wrapper"]),
    (
        Part::Sampler,
        &[
            "sampler.py",
            "sampler(",
            "apply_top",
            "top_p",
            "top_k",
            "penalt",
            "multinomial",
            "logit_bias",
            "topk_topp",
            "sampling_from_probs",
        ],
    ),
    (
        Part::AttentionWorkspace,
        &[
            "workspace_buffer",
            "workspace",
            "attn_logits",
            "init_attention_backend",
            "init_cuda_graph_state",
            "split_kv",
            "attn_lse",
        ],
    ),
    (
        Part::Logits,
        &[
            "logits_processor",
            "lm_head",
            "get_logits",
            "compute_logits",
            "logits = ",
            "logits.float",
        ],
    ),
    (
        Part::Attention,
        &[
            "attention",
            "flashinfer_backend",
            "triton_backend",
            "aiter_backend",
            "mla_backend",
            "attn",
            "flash_mla",
            "fmha",
        ],
    ),
    (
        Part::Weights,
        &[
            "create_weights",
            "weight_loader",
            "load_weights",
            "load_model",
            "_initialize_model",
            "loader.py",
            "initialize_model",
            "get_model",
        ],
    ),
    (
        Part::Mlp,
        &[
            "mlp",
            "silu",
            "act_fn",
            "gate_up",
            "activation",
            "layernorm",
            "rmsnorm",
            "rotary",
            "linear.py",
            "feed_forward",
        ],
    ),
    (Part::Embedding, &["embedding", "embed_tokens"]),
];

/// The part that asked: the innermost frame that tells.
#[must_use]
pub fn part(frames: &[Frame]) -> Option<Part> {
    frames.iter().rev().find_map(of_frame)
}

/// Whether a draft model asked: its worker stands in the frames.
pub(super) fn in_draft(frames: &[Frame]) -> bool {
    let words = [
        "eagle_worker",
        "draft_worker",
        "standalone_worker",
        "multi_layer_eagle",
        "draft_model_runner",
    ];
    frames.iter().map(frame_text).any(|text| words.iter().any(|word| text.contains(word)))
}

/// That frame in words: `_get_logits (logits_processor.py)`.
#[must_use]
pub fn telling_frame(frames: &[Frame]) -> Option<String> {
    let frame = frames.iter().rev().find(|frame| of_frame(frame).is_some())?;
    Some(match &frame.function {
        Some(function) => format!("{function} ({})", frame.file),
        None => frame.file.to_string(),
    })
}

fn of_frame(frame: &Frame) -> Option<Part> {
    let text = frame_text(frame);
    WORDS
        .iter()
        .find(|(_, words)| words.iter().any(|word| text.contains(word)))
        .map(|(part, _)| *part)
}

/// File, function and source line of a frame in lower case. A model's own file says nothing of the part
/// (`qwen3_moe.py` holds its attention too) and is left out.
pub(super) fn frame_text(frame: &Frame) -> String {
    let function = frame.function.as_deref().unwrap_or_default();
    let code = frame.code.as_deref().unwrap_or_default();
    let towers = ["vision", "clip", "siglip", "intern_vit", "internvit", "whisper", "audio"];
    let tower = towers.iter().any(|word| frame.file.contains(word));
    let file = if frame.file.contains("models/") && !tower { "" } else { &*frame.file };
    format!("{file} {function} {code}").to_ascii_lowercase()
}
