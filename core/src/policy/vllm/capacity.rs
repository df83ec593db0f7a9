//! The pool: blocks over all ranks, the checks, the longest request, concurrency and tokens.

use super::{
    groups::{self, Grouping},
    hybrid::{self, HybridPages},
    refusal::Refusal,
    rules::{KvSizeRule, NeededRule},
    settings::{MaxModelLen, Settings},
    spec::LayerSpec,
};
use crate::{
    figure::{Tag, Why},
    units::{Bytes, Tokens},
};

/// One rank: its layers and the memory that it found for KV.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Layers of this rank (all of them under tensor parallelism, a stage's under pipeline).
    pub layers: Vec<LayerSpec>,
    /// Available KV memory, bytes; may be negative.
    pub available: i64,
}

/// The sized pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    /// Blocks, the null block included; the same on every rank.
    pub num_blocks: u64,
    /// Bytes of one block id on the rank that decided.
    pub bytes_per_block: Bytes,
    /// Index of the rank that decided (the smallest number of blocks).
    pub deciding_rank: usize,
    /// Grouping of that rank.
    pub grouping: Grouping,
    /// Hybrid block size, when the model has recurrent states.
    pub hybrid: Option<HybridPages>,
    /// Longest request; smaller than asked for after an auto-fit.
    pub max_model_len: u64,
    /// Blocks of one request of `max_model_len`.
    pub blocks_per_request: u64,
    /// Requests of `max_model_len` that fit at once.
    pub max_concurrency: f64,
    /// The figure of the "KV cache size" line.
    pub kv_cache_tokens: Tokens,
    /// Derivations by name.
    pub whys: Vec<(&'static str, Why)>,
}

impl Pool {
    /// Blocks that requests can hold: block 0 is the null block.
    #[must_use]
    pub const fn usable_blocks(&self) -> u64 {
        self.num_blocks.saturating_sub(1)
    }

    /// Bytes that the pool takes on the deciding rank.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.num_blocks.saturating_mul(self.bytes_per_block.0))
    }
}

/// Sizes the pool over all ranks; the rank with the fewest blocks decides.
///
/// Source: vLLM `kv_cache_utils.get_kv_cache_configs` (0.8.5+).
///
/// # Errors
/// [`Refusal::NoBlocks`], [`Refusal::TooLong`], [`Refusal::AutoFitFailed`],
/// [`Refusal::CannotUnify`], [`Refusal::NoLayers`].
pub fn size_pool(settings: &Settings, ranks: &[Rank]) -> Result<Pool, Refusal> {
    let mut prepared = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let (layers, pages) = hybrid::apply(settings, &rank.layers);
        prepared.push((groups::group(settings, &layers)?, pages, rank.available));
    }
    let max_model_len = checked_len(settings, &prepared)?;
    let mut best: Option<(u64, usize)> = None;
    for (i, (grouping, _, available)) in prepared.iter().enumerate() {
        let blocks = num_blocks(settings, grouping, *available);
        if best.is_none_or(|(fewest, _)| blocks < fewest) {
            best = Some((blocks, i));
        }
    }
    let (num_blocks, deciding_rank) = best.ok_or(Refusal::NoLayers)?;
    let (grouping, hybrid, available) = prepared.swap_remove(deciding_rank);
    let blocks_per_request = grouping.blocks_per_request(settings, max_model_len);
    let max_concurrency = num_blocks as f64 / blocks_per_request.max(1) as f64;
    let tokens = kv_cache_tokens(settings, &grouping, num_blocks, max_model_len);
    let whys = whys(settings, &grouping, hybrid.as_ref(), (available, max_model_len));
    Ok(Pool {
        num_blocks,
        bytes_per_block: grouping.bytes_per_block,
        deciding_rank,
        hybrid,
        max_model_len,
        blocks_per_request,
        max_concurrency,
        kv_cache_tokens: Tokens(tokens),
        whys,
        grouping,
    })
}

type Prepared = (Grouping, Option<HybridPages>, i64);

/// Runs the checks of every rank and returns `max_model_len`, fitted where asked.
fn checked_len(settings: &Settings, ranks: &[Prepared]) -> Result<u64, Refusal> {
    let mut len = settings.max_model_len.ceiling();
    for (grouping, _, available) in ranks {
        if grouping.bytes_per_block == Bytes::ZERO {
            return Err(Refusal::NoLayers);
        }
        let usable = usable_bytes(settings, grouping, *available);
        match settings.max_model_len {
            MaxModelLen::Auto { .. } => {
                let fit = estimated_max_len(settings, grouping, usable, len);
                if fit == 0 {
                    return Err(Refusal::AutoFitFailed { available: usable });
                }
                len = fit;
            }
            MaxModelLen::Tokens(max) => check(settings, grouping, usable, max)?,
        }
    }
    Ok(len)
}

/// The two checks of one rank: something is available, and one request fits.
///
/// # Errors
/// [`Refusal::NoBlocks`] and [`Refusal::TooLong`] with the estimated longest request.
pub fn check(
    settings: &Settings,
    grouping: &Grouping,
    usable: i64,
    max_model_len: u64,
) -> Result<(), Refusal> {
    if usable <= 0 {
        return Err(Refusal::NoBlocks { available: usable });
    }
    let needed = needed_bytes(settings, grouping, max_model_len);
    if i128::from(needed.0) > i128::from(usable) {
        return Err(Refusal::TooLong {
            max_model_len,
            needed,
            available: Bytes(usable.unsigned_abs()),
            estimated: estimated_max_len(settings, grouping, usable, max_model_len),
        });
    }
    Ok(())
}

/// Available bytes as the checks see them: those of the overridden blocks, less the null block
/// from 0.30 on.
#[must_use]
pub fn usable_bytes(settings: &Settings, grouping: &Grouping, available: i64) -> i64 {
    let block = grouping.bytes_per_block.0;
    let available = match settings.num_gpu_blocks_override {
        Some(blocks) => i64::try_from(blocks.saturating_mul(block)).unwrap_or(i64::MAX),
        None => available,
    };
    if settings.rules.null_block_in_checks.exists() {
        available.saturating_sub(i64::try_from(block).unwrap_or(i64::MAX))
    } else {
        available
    }
}

/// `floor(available / bytes_per_block)`, 0 when nothing is available; the override replaces it.
#[must_use]
pub fn num_blocks(settings: &Settings, grouping: &Grouping, available: i64) -> u64 {
    if let Some(blocks) = settings.num_gpu_blocks_override {
        return blocks;
    }
    u64::try_from(available).unwrap_or(0).checked_div(grouping.bytes_per_block.0).unwrap_or(0)
}

/// Bytes that one request of `len` tokens needs.
///
/// Before 0.15 the sum over layers of blocks × page; from 0.15 `bytes_per_block` × blocks of all
/// groups, padding included. Source: vLLM `max_memory_usage_bytes` and its successor.
#[must_use]
pub fn needed_bytes(settings: &Settings, grouping: &Grouping, len: u64) -> Bytes {
    match settings.rules.needed {
        NeededRule::LayerSum => Bytes(
            grouping
                .layers
                .iter()
                .map(|l| l.blocks(settings, len).saturating_mul(l.page_size().0))
                .fold(0, u64::saturating_add),
        ),
        NeededRule::GroupBlocks => {
            let blocks = grouping.blocks_per_request(settings, len);
            Bytes(blocks.saturating_mul(grouping.bytes_per_block.0))
        }
    }
}

/// The longest request in `1..=limit` that fits in `usable` bytes, tokens; 0 when none does.
///
/// Source: vLLM `estimate_max_model_len` (binary search).
#[must_use]
pub fn estimated_max_len(settings: &Settings, grouping: &Grouping, usable: i64, limit: u64) -> u64 {
    let fits = |len| i128::from(needed_bytes(settings, grouping, len).0) <= i128::from(usable);
    let (mut fit, mut right) = (0, limit);
    while fit < right {
        let middle = fit + (right - fit).div_ceil(2);
        if fits(middle) {
            fit = middle;
        } else {
            right = middle - 1;
        }
    }
    fit
}

/// The figure of the "KV cache size" line, tokens.
///
/// To 0.20 `num_blocks // groups * smallest block size` times context-parallel ranks, from 0.21
/// `int(concurrency * max_model_len)` in float64. The null block is not taken off.
#[must_use]
pub fn kv_cache_tokens(
    settings: &Settings,
    grouping: &Grouping,
    num_blocks: u64,
    max_model_len: u64,
) -> u64 {
    match settings.rules.kv_size {
        KvSizeRule::BlocksTimesBlockSize => {
            let groups = grouping.groups.len().max(1) as u64;
            (num_blocks / groups)
                .saturating_mul(grouping.min_block_size())
                .saturating_mul(settings.decode_context_parallel_size)
        }
        KvSizeRule::ConcurrencyTimesLen => {
            let blocks = grouping.blocks_per_request(settings, max_model_len).max(1);
            (num_blocks as f64 / blocks as f64 * max_model_len as f64) as u64
        }
    }
}

fn whys(
    settings: &Settings,
    grouping: &Grouping,
    hybrid: Option<&HybridPages>,
    (available, max_model_len): (i64, u64),
) -> Vec<(&'static str, Why)> {
    let release = settings.rules.release();
    let computed = |rule: &str, function: &str| {
        Why::new(Tag::Computed, rule, format!("{release} kv_cache_utils.{function}"))
    };
    let mut out = vec![("bytes_per_block", grouping.why.clone())];
    if let Some(pages) = hybrid {
        out.push(("block_size", pages.why.clone()));
    }
    out.push(match settings.num_gpu_blocks_override {
        Some(blocks) => (
            "num_gpu_blocks",
            Why::new(Tag::Measured, "num_gpu_blocks_override as given", "launch command")
                .with("num_gpu_blocks_override", blocks),
        ),
        None => (
            "num_gpu_blocks",
            computed("floor(available / bytes_per_block), least of all ranks", "get_num_blocks")
                .with("available", format!("{available} B"))
                .with("bytes_per_block", format!("{:?}", grouping.bytes_per_block)),
        ),
    });
    let mut per_request =
        computed("sum over groups of blocks(max_model_len)", "max_memory_usage_bytes")
            .with("max_model_len", max_model_len);
    for group in &grouping.groups {
        let blocks = group.spec.blocks(settings, max_model_len);
        per_request = per_request.with(group.spec.kind.name(), blocks);
    }
    out.push(("blocks_per_request", per_request));
    let function = "get_max_concurrency_for_kv_cache_config";
    out.push(("max_concurrency", computed("num_gpu_blocks / blocks_per_request", function)));
    let rule = match settings.rules.kv_size {
        KvSizeRule::BlocksTimesBlockSize => "num_gpu_blocks // groups * smallest block size",
        KvSizeRule::ConcurrencyTimesLen => "int(max_concurrency * max_model_len)",
    };
    out.push(("kv_cache_tokens", computed(rule, "_report_kv_cache_config")));
    out
}
