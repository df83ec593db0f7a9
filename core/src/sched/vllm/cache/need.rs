//! Whether a request's blocks can be had, and taking them.

use super::{
    BlockCache, Group, Hit, Sequence, index,
    states::{checkpoint_column, checkpoint_fits},
};
use crate::kv::blocks::{BlockId, Checkpoint, NULL_BLOCK};

/// How much is asked for.
pub(in super::super) struct Ask<'a> {
    /// New tokens.
    pub(in super::super) new: u64,
    /// What was found for a request that is admitted.
    pub(in super::super) hit: Option<&'a Hit>,
    /// All known tokens must fit.
    pub(in super::super) whole: bool,
    /// Blocks that must stay free.
    pub(in super::super) spare: u64,
}

/// Blocks are missing; nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Shortage {
    /// Blocks that are needed, those to stay free included.
    pub(in super::super) needed: u64,
}

/// Why the need is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// To see whether the whole sequence fits.
    Gate,
    /// To take the blocks.
    Take,
}

/// A table of `tokens` for a request that has `start`.
#[derive(Clone, Copy)]
struct Want<'a> {
    purpose: Purpose,
    start: u64,
    tokens: u64,
    /// The same, not cut to the longest sequence: for recurrent states.
    state_tokens: u64,
    hits: &'a [Vec<BlockId>],
}

impl Want<'_> {
    const fn tokens_of(&self, group: &Group) -> u64 {
        if group.aligns() { self.state_tokens } else { self.tokens }
    }
}

impl BlockCache {
    /// Gives a request the blocks of its next tokens; [`BlockCache::given`] names them.
    ///
    /// Source: vLLM `KVCacheManager.allocate_slots`.
    pub(in super::super) fn allocate(
        &mut self,
        of: &mut Sequence,
        ask: &Ask<'_>,
    ) -> Result<(), Shortage> {
        self.given.clear();
        let hit = ask.hit.filter(|hit| hit.blocks.iter().any(|blocks| !blocks.is_empty()));
        let hits = hit.map_or(&[][..], |hit| &hit.blocks);
        let longest = self.max_model_len;
        let total = (of.computed + ask.hit.map_or(0, |hit| hit.tokens)).min(longest);
        if ask.whole {
            let all = of.known.min(longest);
            let want =
                Want { purpose: Purpose::Gate, start: total, tokens: all, state_tokens: all, hits };
            self.fits(of, &want, ask.spare)?;
        }
        let keep = match () {
            () if self.rules.keeps_blocks_in_flight() => total.saturating_sub(of.in_flight),
            () if self.rules.nulls_skipped_hits() => total,
            () => of.computed,
        };
        for at in 0..self.groups.len() {
            self.drop_skipped(of, self.groups[at], keep);
        }
        let want = Want {
            purpose: Purpose::Take,
            start: total,
            tokens: (total + ask.new).min(longest),
            state_tokens: total + ask.new,
            hits,
        };
        self.fits(of, &want, ask.spare)?;
        if hit.is_some() && of.tables.iter().all(|table| table.registered.is_none()) {
            self.adopt(of, hits, total);
        }
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            self.grow(of, group, want.tokens_of(&group));
        }
        self.register(of, (total + ask.new).min(of.known));
        Ok(())
    }

    fn fits(&mut self, of: &mut Sequence, want: &Want<'_>, spare: u64) -> Result<(), Shortage> {
        let mut needed = i64::try_from(spare).unwrap_or(i64::MAX);
        for at in 0..self.groups.len() {
            needed = needed.saturating_add(self.need(of, self.groups[at], want));
        }
        if needed > i64::try_from(self.pool.free()).unwrap_or(i64::MAX) {
            return Err(Shortage { needed: needed.unsigned_abs() });
        }
        Ok(())
    }

    /// Free blocks that one group takes; negative where it has more than it needs.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.get_num_blocks_to_allocate` and those of its kinds.
    fn need(&mut self, of: &mut Sequence, group: Group, want: &Want<'_>) -> i64 {
        let hits = want.hits.get(group.at).map_or(&[][..], Vec::as_slice);
        let tokens = want.tokens_of(&group);
        let blocks = group.blocks(tokens);
        if self.rules.failure_leaves_table() {
            self.know(of, group.at);
        }
        let held = of.tables[group.at].blocks.len();
        let beside = signed(blocks) - signed((hits.len() + held) as u64);
        if !self.rules.nulls_skipped_hits() {
            return beside + self.taken_by(hits);
        }
        if group.is_mamba() {
            let last = hits.last().and_then(|id| self.pool.key(*id));
            if last.is_some_and(|key| self.recent[group.at].contains(&key)) {
                // A state that this turn computes cannot be read in it.
                return signed(self.pool.total()) + 1;
            }
        }
        if group.aligns() {
            let kept = self.plan_checkpoint(of, &group, want);
            return beside.min(1 + kept) + self.taken_by(hits);
        }
        let capped = group.most.filter(|_| want.purpose == Purpose::Gate);
        let blocks = index(capped.map_or(blocks, |most| blocks.min(most)));
        if of.tables[group.at].registered.is_some() {
            return blocks.saturating_sub(held) as i64;
        }
        let skipped = group.skipped(want.start, self.rules.skips_states());
        let missing = blocks.saturating_sub(skipped.max(hits.len() + held));
        let adopted = hits.get(skipped.saturating_sub(held)..).unwrap_or_default();
        missing as i64 + self.taken_by(adopted)
    }

    /// Found blocks that nobody holds: holding them takes free blocks.
    fn taken_by(&self, hits: &[BlockId]) -> i64 {
        let free = |id: &&BlockId| **id != NULL_BLOCK && self.pool.holders(**id) == 0;
        hits.iter().filter(free).count() as i64
    }

    /// Blocks for a state inside the chunk, 0 or 1; noted for the request where the blocks are taken.
    ///
    /// Source: vLLM 0.33.0 `MambaManager`, internal checkpoints.
    fn plan_checkpoint(&self, of: &mut Sequence, group: &Group, want: &Want<'_>) -> i64 {
        let Some(every) = group.checkpoints().filter(|_| self.rules.has_checkpoints()) else {
            return 0;
        };
        let end = want.tokens_of(group);
        let at = floor_to_last(end, self.align);
        let from = if self.retention == Some(0) { of.prefill_end() } else { 0 };
        let column = checkpoint_column(end, group.block);
        let table = &mut of.tables[group.at];
        let fits = end >= from
            && at > 0
            && checkpoint_fits((want.start, end), at, self.unit, group.block, every);
        let planned = column.filter(|column| fits && table.is_null(*column));
        if want.purpose == Purpose::Take {
            table.checkpoint = planned.map(|column| Checkpoint { tokens: at, column });
        }
        i64::from(planned.is_some())
    }
}

/// The last multiple of `unit` before the last of `tokens`.
const fn floor_to_last(tokens: u64, unit: u64) -> u64 {
    super::floor_to(tokens.saturating_sub(1), unit)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
