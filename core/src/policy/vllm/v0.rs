//! V0: blocks on the device and in host swap space, and the check of `max_model_len`.

use super::{
    refusal::Refusal,
    settings::Settings,
    spec::{Kind, LayerSpec},
};
use crate::{
    figure::{Tag, Why},
    units::{Bytes, Tokens},
};

/// Share of blocks that V0's block manager keeps free. Source: vLLM 0.6.6 `SelfAttnBlockSpaceManager`.
pub const WATERMARK: f64 = 0.01;

/// The V0 pool.
#[derive(Clone, PartialEq, Debug)]
pub struct V0Pool {
    /// Blocks on the device; no null block.
    pub gpu_blocks: u64,
    /// Blocks in host memory, from `--swap-space`.
    pub cpu_blocks: u64,
    /// Bytes of one block over all layers of the rank.
    pub block_bytes: Bytes,
    /// Slots: device blocks × block size.
    pub slots: Tokens,
    /// Blocks kept free at admission: `int(0.01 * gpu_blocks)`.
    pub watermark_blocks: u64,
    /// Longest request, tokens.
    pub max_model_len: u64,
    /// `slots / max_model_len`.
    pub max_concurrency: f64,
    /// Derivation of the blocks.
    pub why: Why,
}

/// Sizes the V0 pool from each rank's available bytes; the least of the ranks is used.
///
/// Source: vLLM 0.6.6 `Worker.determine_num_available_blocks`, `raise_if_cache_size_invalid`.
///
/// # Errors
/// [`Refusal::NoBlocks`] when no block fits, [`Refusal::PoolBelowMaxLen`] when one request does
/// not, [`Refusal::NoLayers`] without attention layers or ranks.
pub fn size_pool(
    settings: &Settings,
    layers: &[LayerSpec],
    available: &[i64],
) -> Result<V0Pool, Refusal> {
    let token: u64 = layers
        .iter()
        .filter(|l| !matches!(l.kind, Kind::Mamba | Kind::EncoderOnly))
        .map(|l| l.bytes)
        .fold(0, u64::saturating_add);
    let block_bytes = token.saturating_mul(settings.block_size);
    let least = available.iter().copied().min().ok_or(Refusal::NoLayers)?;
    if block_bytes == 0 {
        return Err(Refusal::NoLayers);
    }
    let fit = u64::try_from(least).unwrap_or(0) / block_bytes;
    let gpu_blocks = settings.num_gpu_blocks_override.unwrap_or(fit);
    if gpu_blocks == 0 {
        return Err(Refusal::NoBlocks { available: least });
    }
    let slots = gpu_blocks.saturating_mul(settings.block_size);
    let max_model_len = settings.max_model_len.ceiling();
    if max_model_len > slots {
        return Err(Refusal::PoolBelowMaxLen { max_model_len, slots });
    }
    let why = Why::new(
        Tag::Computed,
        "available // block bytes, least of all ranks",
        format!("{} Worker.determine_num_available_blocks", settings.rules.release()),
    )
    .with("available", format!("{least} B"))
    .with("block bytes", block_bytes);
    Ok(V0Pool {
        gpu_blocks,
        cpu_blocks: settings.swap_space.0 / block_bytes,
        block_bytes: Bytes(block_bytes),
        slots: Tokens(slots),
        watermark_blocks: (WATERMARK * gpu_blocks as f64) as u64,
        max_model_len,
        max_concurrency: slots as f64 / max_model_len as f64,
        why,
    })
}
