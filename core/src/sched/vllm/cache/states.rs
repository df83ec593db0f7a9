//! Recurrent states that are kept inside a chunk or where a prompt ends.

use super::{BlockCache, Group, Sequence, floor_to, index};
use crate::kv::blocks::{BlockId, Key, NULL_BLOCK, Space};

/// Whether a chunk of tokens `start..end` can keep its state after `at` tokens: far enough inside, in blocks
/// of `block`, and a multiple of `every` after the start.
///
/// Source: vLLM 0.33.0 `MambaManager`, internal checkpoints.
pub(in super::super) const fn checkpoint_fits(
    (start, end): (u64, u64),
    at: u64,
    unit: u64,
    block: u64,
    every: u64,
) -> bool {
    // Blocks before the last two, beyond the one that holds the token before the start (none at 0).
    let behind = end.div_ceil(block) as i64 - 2;
    let first = if start == 0 { -1 } else { ((start - 1) / block) as i64 };
    start.is_multiple_of(unit)
        && behind > first
        && start + unit <= at
        && start < at
        && at < end
        && (at - start).is_multiple_of(every)
}

/// Entry of the table for a state inside a chunk that ends at `end`.
pub(super) fn checkpoint_column(end: u64, block: u64) -> Option<usize> {
    end.div_ceil(block).checked_sub(2).map(index)
}

impl BlockCache {
    /// What registration of a group's whole blocks leaves to do for states; `from` were registered before.
    ///
    /// Source: vLLM 0.19.0 `MambaManager.cache_blocks`.
    pub(super) fn register_states(
        &mut self,
        of: &mut Sequence,
        group: Group,
        tokens: u64,
        from: usize,
    ) {
        if !group.is_mamba() || !self.rules.skips_states() {
            return;
        }
        if group.aligns() && self.rules.has_checkpoints() {
            let key = self.register_state(of, &group, tokens);
            self.recent[group.at].extend(key);
        }
        let table = &of.tables[group.at];
        let to = table.registered.unwrap_or(0);
        let new = table.blocks.get(from..to).unwrap_or_default();
        let keys = new.iter().filter_map(|id| self.pool.key(*id));
        self.recent[group.at].extend(keys);
    }

    /// The state inside the chunk, or the one at the prompt's end.
    fn register_state(&mut self, of: &Sequence, group: &Group, tokens: u64) -> Option<Key> {
        let table = &of.tables[group.at];
        if let Some(kept) = table.checkpoint {
            let id = *table.blocks.get(kept.column)?;
            if !self.keeps_checkpoint(of, group, kept.tokens) {
                self.pool.forget(id);
                return None;
            }
            if self.pool.key_tokens(id) == Some(kept.tokens) {
                return None;
            }
            self.pool.forget(id);
            return self.enter_state(of, group, id, kept.tokens);
        }
        let end = floor_to(of.prompt.saturating_sub(1), self.unit);
        if tokens == 0 || tokens != end {
            return None;
        }
        let id = *table.blocks.get(index(group.blocks(tokens) - 1))?;
        let stands = self.pool.key_tokens(id);
        if id == NULL_BLOCK || stands == Some(tokens) {
            return None;
        }
        let key = self.state_key(of, group, tokens)?;
        if stands.is_some_and(|stands| stands < tokens) && !self.pool.has(key, id) {
            self.pool.forget(id);
        }
        self.enter_state(of, group, id, tokens)
    }

    /// Whether a state inside a chunk is one that will be asked for.
    fn keeps_checkpoint(&self, of: &Sequence, group: &Group, tokens: u64) -> bool {
        let prompt_end = floor_to(of.prompt.saturating_sub(1), self.align);
        let whole = tokens.is_multiple_of(group.block);
        let retained = || {
            let block = index((tokens / group.block).saturating_sub(1));
            self.retention(of, group).without_boundaries().keeps(block)
        };
        tokens == prompt_end || tokens == of.boundary || (whole && retained())
    }

    fn state_key(&self, of: &Sequence, group: &Group, tokens: u64) -> Option<Key> {
        let prefix = of.chain.as_ref()?.prefix(tokens)?;
        Some(Key { space: Space { coarse: false, ..group.space }, prefix })
    }

    fn enter_state(
        &mut self,
        of: &Sequence,
        group: &Group,
        id: BlockId,
        tokens: u64,
    ) -> Option<Key> {
        let key = self.state_key(of, group, tokens).filter(|_| id != NULL_BLOCK)?;
        self.pool.enter(key, id, tokens);
        Some(key)
    }
}
