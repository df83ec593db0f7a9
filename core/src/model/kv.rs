//! What a model keeps of past tokens: layers by kind, KV bytes per token, state bytes per request.
//!
//! The plain formulas; what an engine budgets differently (FP4, DSA with FP8, page padding) is in
//! its policy.

use std::ops::Range;

use super::{
    detail::Model,
    geometry::{Attention, Dtype, Layer, LinearState, Span},
    parallel::{Loader, ParallelError, stage_layers},
};
use crate::units::Bytes;

/// Layers by what they keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvLayers {
    /// Keys and values of all positions.
    pub full: u64,
    /// Keys and values of a window.
    pub sliding: u64,
    /// Keys and values of a chunk.
    pub chunked: u64,
    /// A latent of all positions.
    pub latent: u64,
    /// Of those, with an index of their own.
    pub indexed: u64,
    /// A fixed state a request.
    pub linear: u64,
    /// Nothing.
    pub none: u64,
}

/// Bytes of one token on one rank, all layers of the stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvCell {
    /// In layers that keep all positions.
    pub full: Bytes,
    /// In layers that keep a window or a chunk.
    pub sliding: Bytes,
    /// In sparse-attention indexes: key width plus a float32 scale for 128 of it, one byte each.
    pub index: Bytes,
}

impl KvCell {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.full.saturating_add(self.sliding).saturating_add(self.index)
    }
}

/// Bytes of one request's state in linear layers, on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateBytes {
    /// The short convolution's last inputs.
    pub conv: Bytes,
    /// The recurrent state.
    pub recurrent: Bytes,
}

impl StateBytes {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.conv.saturating_add(self.recurrent)
    }
}

/// Layers of one pipeline stage as a range of `geometry.layers`; blocks that hold several layers
/// stay together.
///
/// # Errors
/// As `stage_layers`.
pub fn stage(
    model: &Model,
    loader: Loader,
    pp: u64,
    stage: u64,
) -> Result<Range<usize>, ParallelError> {
    let block = model.detail.layers_a_block.max(1);
    let blocks = model.geometry.layers.len() as u64 / block;
    let range = stage_layers(loader, blocks, pp, stage)?;
    Ok((range.start * block) as usize..(range.end * block) as usize)
}

/// Layers of `range` that keep KV of their own: those that use an earlier layer's KV are out.
fn own<'a>(model: &'a Model, range: &Range<usize>) -> impl Iterator<Item = &'a Layer> {
    let all = &model.geometry.layers;
    let last = all.len().saturating_sub(model.detail.kv_shared_layers as usize);
    all.get(range.start..range.end.min(last)).unwrap_or_default().iter()
}

/// Counts the layers of `range`. Layers that use an earlier layer's KV count as `none`.
#[must_use]
pub fn count(model: &Model, range: Range<usize>) -> KvLayers {
    let mut kinds = KvLayers::default();
    let mut seen = 0;
    for layer in own(model, &range) {
        seen += 1;
        match layer.attention {
            Attention::Gqa { span: Span::Full, .. } => kinds.full += 1,
            Attention::Gqa { span: Span::Sliding { .. }, .. } => kinds.sliding += 1,
            Attention::Gqa { span: Span::Chunked { .. }, .. } => kinds.chunked += 1,
            Attention::Mla { indexer, .. } => {
                kinds.latent += 1;
                kinds.indexed += u64::from(indexer.is_some());
            }
            Attention::Linear(_) => kinds.linear += 1,
            Attention::None => kinds.none += 1,
        }
    }
    kinds.none += (range.len() as u64).saturating_sub(seen);
    kinds
}

/// KV heads on one rank: the integer quotient, at least one (heads are copied when there are more
/// ranks than heads). Source: vLLM and SGLang `ModelConfig.get_num_kv_heads`.
#[must_use]
pub fn heads_on_rank(kv_heads: u64, attention_tp: u64) -> u64 {
    (kv_heads / attention_tp.max(1)).max(1)
}

/// KV bytes of one token in one layer on one rank, index not counted. A latent is on every rank
/// whole.
#[must_use]
pub fn layer_bytes(attention: &Attention, dtype: Dtype, attention_tp: u64) -> Bytes {
    Bytes(match *attention {
        Attention::Gqa { kv_heads, head_dim, v_head_dim, .. } => {
            heads_on_rank(kv_heads, attention_tp) * (head_dim + v_head_dim) * dtype.size()
        }
        Attention::Mla { kv_lora_rank, qk_rope_head_dim, .. } => {
            (kv_lora_rank + qk_rope_head_dim) * dtype.size()
        }
        Attention::Linear(_) | Attention::None => 0,
    })
}

/// Bytes of one token over the layers of `range`.
#[must_use]
pub fn cell(model: &Model, range: Range<usize>, dtype: Dtype, attention_tp: u64) -> KvCell {
    let mut cell = KvCell::default();
    for layer in own(model, &range) {
        let bytes = layer_bytes(&layer.attention, dtype, attention_tp);
        match layer.attention {
            Attention::Gqa { span: Span::Sliding { .. } | Span::Chunked { .. }, .. } => {
                cell.sliding = cell.sliding.saturating_add(bytes);
            }
            _ => cell.full = cell.full.saturating_add(bytes),
        }
        if let Attention::Mla { indexer: Some(indexer), .. } = layer.attention {
            let index = Bytes(indexer.head_dim + indexer.head_dim / 128 * 4);
            cell.index = cell.index.saturating_add(index);
        }
    }
    cell
}

/// State of one linear layer for one request on one rank: heads divided by the ranks (rounded up),
/// groups at least one on each; the convolution keeps `conv_kernel - 1` inputs in `conv_dtype`.
/// Source: vLLM `mamba_utils.py` `MambaStateShapeCalculator`; SGLang `configs/mamba_utils.py`.
#[must_use]
pub fn linear_state(
    state: &LinearState,
    conv_dtype: Dtype,
    state_dtype: Dtype,
    attention_tp: u64,
) -> StateBytes {
    let tp = attention_tp.max(1);
    let heads = state.heads.div_ceil(tp);
    let recurrent = heads.saturating_mul(state.head_dim).saturating_mul(state.state_dim);
    let groups = state.groups.div_ceil(tp);
    let channels = match state.conv_channels {
        0 => 0,
        _ => heads * state.head_dim + 2 * groups * state.state_dim,
    };
    let conv = channels * state.conv_kernel.saturating_sub(1);
    StateBytes {
        conv: Bytes(conv.saturating_mul(conv_dtype.size())),
        recurrent: Bytes(recurrent.saturating_mul(state_dtype.size())),
    }
}

/// State of all linear layers of `range` for one request on one rank. The convolution is kept in
/// the engine's dtype, the recurrent state in the configuration's (float32 unless it says).
#[must_use]
pub fn request_state(model: &Model, range: Range<usize>, attention_tp: u64) -> StateBytes {
    let mut sum = StateBytes::default();
    for layer in own(model, &range) {
        if let Attention::Linear(state) = &layer.attention {
            let dtypes = (model.engine_dtype(), model.detail.ssm_dtype);
            let one = linear_state(state, dtypes.0, dtypes.1, attention_tp);
            sum.conv = sum.conv.saturating_add(one.conv);
            sum.recurrent = sum.recurrent.saturating_add(one.recurrent);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::geometry::LinearKind;

    #[test]
    fn the_worked_hybrid_states_of_two_public_logs() {
        // Qwen3.8-27B FP8 at tp 2: 48 value heads, 16 key heads; per rank 1,572,864 + 30,720 B.
        let mut state = LinearState {
            kind: LinearKind::Gdn,
            heads: 48,
            head_dim: 128,
            state_dim: 128,
            conv_channels: 2 * 16 * 128 + 48 * 128,
            conv_kernel: 4,
            groups: 16,
        };
        let bytes = linear_state(&state, Dtype::Bf16, Dtype::F32, 2);
        assert_eq!((bytes.recurrent, bytes.conv), (Bytes(1_572_864), Bytes(30_720)));
        // Qwen3.6-35B-A3B at tp 1: 32 value heads; 2,097,152 + 49,152 B.
        state.heads = 32;
        state.conv_channels = 2 * 16 * 128 + 32 * 128;
        let bytes = linear_state(&state, Dtype::Bf16, Dtype::F32, 1);
        assert_eq!((bytes.recurrent, bytes.conv), (Bytes(2_097_152), Bytes(49_152)));
    }

    #[test]
    fn heads_are_copied_when_ranks_outnumber_them() {
        assert_eq!(heads_on_rank(8, 4), 2);
        assert_eq!(heads_on_rank(4, 8), 1);
    }
}
