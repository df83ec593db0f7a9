//! What a weight is called in a file.

use plimsoll_core::{
    model::gguf::{Gguf, MetaValue},
    tape::own::{Role, WeightId},
};

/// Whose names, and in which order the rows of queries and keys stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// transformers' names; the planes of a head are its two halves.
    HuggingFace,
    /// ggml's names, rows as in the original.
    Ggml,
    /// ggml's names; the converter interleaved the halves of query and key heads.
    GgmlInterleaved,
}

impl Style {
    /// Source: llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`: only what runs as `llama` is permuted.
    pub(crate) fn gguf(header: &Gguf) -> Self {
        match header.get("general.architecture") {
            Some(MetaValue::Text(kind)) if kind == "llama" || kind.starts_with("mistral") => {
                Self::GgmlInterleaved
            }
            _ => Self::Ggml,
        }
    }

    /// The tensor's name.
    pub(crate) fn name(self, id: WeightId) -> String {
        let (hugging_face, ggml, kind) = parts(id.role);
        let hub = self == Self::HuggingFace;
        let stem = if hub { hugging_face } else { ggml };
        match id.layer {
            Some(layer) if hub => format!("model.layers.{layer}.{stem}.{kind}"),
            Some(layer) => format!("blk.{layer}.{stem}.{kind}"),
            None => format!("{stem}.{kind}"),
        }
    }
}

fn parts(role: Role) -> (&'static str, &'static str, &'static str) {
    let (weight, bias) = ("weight", "bias");
    match role {
        Role::Embedding => ("model.embed_tokens", "token_embd", weight),
        Role::Head => ("lm_head", "output", weight),
        Role::FinalNorm => ("model.norm", "output_norm", weight),
        Role::AttentionNorm => ("input_layernorm", "attn_norm", weight),
        Role::Query => ("self_attn.q_proj", "attn_q", weight),
        Role::Key => ("self_attn.k_proj", "attn_k", weight),
        Role::Value => ("self_attn.v_proj", "attn_v", weight),
        Role::Output => ("self_attn.o_proj", "attn_output", weight),
        Role::QueryNorm => ("self_attn.q_norm", "attn_q_norm", weight),
        Role::KeyNorm => ("self_attn.k_norm", "attn_k_norm", weight),
        Role::MlpNorm => ("post_attention_layernorm", "ffn_norm", weight),
        Role::Gate => ("mlp.gate_proj", "ffn_gate", weight),
        Role::Up => ("mlp.up_proj", "ffn_up", weight),
        Role::Down => ("mlp.down_proj", "ffn_down", weight),
        Role::QueryBias => ("self_attn.q_proj", "attn_q", bias),
        Role::KeyBias => ("self_attn.k_proj", "attn_k", bias),
        Role::ValueBias => ("self_attn.v_proj", "attn_v", bias),
        Role::OutputBias => ("self_attn.o_proj", "attn_output", bias),
        Role::GateBias => ("mlp.gate_proj", "ffn_gate", bias),
        Role::UpBias => ("mlp.up_proj", "ffn_up", bias),
        Role::DownBias => ("mlp.down_proj", "ffn_down", bias),
    }
}
