//! Layers of multi-head latent attention, with the sparse index where there is one.

use crate::model::{
    error::ConfigError,
    fields::{Fields, HEADS, LAYERS, LAYERS_OR_NONE, POSITIONS, WIDTH},
    geometry::{Attention, Indexer, Layer},
};

use super::{arch::Arch, decoder::one_each, moe};

/// One attention layer; `indexer` is filled in by `layers`.
pub(super) fn attention(text: &Fields<'_>) -> Result<Attention, ConfigError> {
    Ok(Attention::Mla {
        q_heads: text.need(&["num_attention_heads"], HEADS)?,
        q_lora_rank: text.number("q_lora_rank", WIDTH)?,
        kv_lora_rank: text.need(&["kv_lora_rank"], WIDTH)?,
        qk_nope_head_dim: text.need(&["qk_nope_head_dim"], WIDTH)?,
        qk_rope_head_dim: text.need(&["qk_rope_head_dim"], WIDTH)?,
        v_head_dim: text.need(&["v_head_dim"], WIDTH)?,
        indexer: None,
    })
}

fn indexer(text: &Fields<'_>) -> Result<Option<Indexer>, ConfigError> {
    let Some(head_dim) = text.number("index_head_dim", WIDTH)? else { return Ok(None) };
    Ok(Some(Indexer {
        heads: text.need(&["index_n_heads"], HEADS)?,
        head_dim,
        topk: text.need(&["index_topk"], POSITIONS)?,
    }))
}

/// Which layers own an index: `indexer_types`, else every `index_topk_freq`-th after the first
/// `index_skip_topk_offset` (GLM 5.2), else all.
fn owners(text: &Fields<'_>, count: u64) -> Result<Vec<bool>, ConfigError> {
    if let Some(types) = text.texts("indexer_types")? {
        one_each(text, "indexer_types", types.len(), count)?;
        return Ok(types.iter().map(|t| *t != "shared").collect());
    }
    let every = text.number("index_topk_freq", LAYERS)?.unwrap_or(1);
    let first = text.number("index_skip_topk_offset", LAYERS_OR_NONE)?.unwrap_or(1).max(1);
    Ok((0..count).map(|i| i < first || (i + 1 - first).is_multiple_of(every)).collect())
}

/// All layers.
pub(super) fn layers(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    count: u64,
) -> Result<Vec<Layer>, ConfigError> {
    let base = attention(text)?;
    let index = indexer(text)?;
    let owners = owners(text, count)?;
    let mlps = moe::layers(text, arch, hidden, count)?;
    Ok(owners
        .into_iter()
        .zip(mlps)
        .map(|(owns, mlp)| with_index(base, index.filter(|_| owns), mlp))
        .collect())
}

fn with_index(base: Attention, index: Option<Indexer>, mlp: crate::model::geometry::Mlp) -> Layer {
    let attention = match base {
        Attention::Mla {
            q_heads,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            ..
        } => Attention::Mla {
            q_heads,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            indexer: index,
        },
        other => other,
    };
    Layer { attention, mlp }
}
