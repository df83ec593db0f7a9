//! Where a chunk of a prompt must end, so that recurrent states are kept at whole blocks.

use super::{
    Idx, VllmScheduler,
    cache::{checkpoint_fits, floor_to},
};

impl VllmScheduler {
    /// How many of `new` tokens, after `found` ones, are computed now.
    ///
    /// Source: vLLM 0.19.0 `Scheduler._mamba_block_aligned_split`.
    pub(super) fn split(&self, at: Idx, new: u64, found: u64) -> u64 {
        let Some(checkpoints) = self.cache.states().filter(|_| self.rules.skips_states()) else {
            return new;
        };
        let of = &self.requests[at].sequence;
        let start = of.computed + found;
        if start >= of.prefill_end() {
            return new;
        }
        match self.rules.has_checkpoints() {
            false => self.split_length(of.known, start, new),
            true => {
                self.split_end((of.known, of.prefill_end()), of.boundary, (start, new), checkpoints)
            }
        }
    }

    /// Lengths of whole blocks, and an end at the last whole block.
    fn split_length(&self, known: u64, start: u64, new: u64) -> u64 {
        let block = self.config.block_size;
        let (last, end) = (floor_to(known, block), start + new);
        match () {
            () if end < last => floor_to(new, block),
            () if start < last && last < end => last - start,
            () => new,
        }
    }

    /// Ends at whole blocks, at the last block before the end, and where another group found more.
    fn split_end(
        &self,
        (known, prefill_end): (u64, u64),
        boundary: u64,
        (start, new): (u64, u64),
        checkpoints: Option<u64>,
    ) -> u64 {
        let block = self.config.block_size;
        let mut end = start + new;
        let inside = checkpoints.is_some_and(|every| {
            let at = floor_to(prefill_end.saturating_sub(1), block);
            let unit = self.cache.unit();
            end >= prefill_end && checkpoint_fits((start, end), at, unit, block, every)
        });
        if end < prefill_end {
            let threshold = self.config.long_prefill_token_threshold;
            let most = match threshold {
                0 => self.config.max_num_batched_tokens,
                some => self.config.max_num_batched_tokens.min(some),
            };
            let whole = floor_to(end, block);
            if whole > start || block <= most {
                end = whole;
            }
        }
        let last = if inside { 0 } else { floor_to(known.saturating_sub(1), block) };
        let edge =
            if inside || start.is_multiple_of(block) { 0 } else { floor_to(start, block) + block };
        let junction = match start < boundary && boundary < end {
            true => start + floor_to(boundary - start, block),
            false => 0,
        };
        let stops = [last, edge, junction].into_iter().filter(|stop| start < *stop && *stop < end);
        stops.min().unwrap_or(end).saturating_sub(start)
    }
}
