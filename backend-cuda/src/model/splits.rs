//! How many blocks share the past of one row in decode attention.

use plimsoll_core::tape::own::DecoderShape;

/// Blocks that a multiprocessor should have at once to hide the latency of memory.
const BLOCKS_EACH: u64 = 2;
/// Positions of a split at least: below, merging costs more than it brings.
const POSITIONS_MIN: u64 = 128;
/// Most splits: what the merge reads of a row stays small.
const SPLITS_MAX: u64 = 64;

/// Splits for a batch: enough blocks for all multiprocessors, none shorter than is worth it at the longest
/// context. A function of the batch and of what never changes, so that a graph can keep it.
pub(crate) fn splits(batch: u64, kv_heads: u64, multiprocessors: u64, context: u64) -> u64 {
    let blocks = (batch * kv_heads).max(1);
    let wanted = (BLOCKS_EACH * multiprocessors).div_ceil(blocks);
    wanted.min(context.div_ceil(POSITIONS_MIN)).clamp(1, SPLITS_MAX)
}

/// float32 values of the partial results of one batch.
pub(crate) const fn partial_values(own: &DecoderShape, batch: u64, splits: u64) -> u64 {
    if splits > 1 { batch * own.q_heads * splits * (own.head_dim + 2) } else { 0 }
}

/// The batch whose splits and products a decode step of `batch` sequences takes: the smallest of `sizes`
/// that holds it, so that it computes the same with and without a graph; itself beyond the last.
pub(crate) fn class(batch: u64, sizes: &[u64]) -> u64 {
    sizes.iter().copied().find(|size| *size >= batch).unwrap_or(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_the_device_and_no_more() {
        // One request of a model with 8 heads on 132 multiprocessors.
        assert_eq!(splits(1, 8, 132, 131_072), 33);
        assert_eq!(splits(4, 8, 132, 131_072), 9);
        assert_eq!(splits(64, 8, 132, 131_072), 1);
        // A short context is not cut into crumbs.
        assert_eq!(splits(1, 8, 132, 256), 2);
        assert_eq!(splits(1, 1, 132, 1 << 20), 64);
        assert_eq!(splits(0, 0, 0, 0), 1);
    }

    #[test]
    fn classes() {
        assert_eq!([1, 3, 4, 5, 9].map(|batch| class(batch, &[1, 2, 4, 8])), [1, 4, 4, 8, 9]);
    }
}
