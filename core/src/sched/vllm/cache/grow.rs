//! Block tables: dropping what is no longer needed, adopting what was found, growing.

use super::{BlockCache, Group, NewBlocks, Sequence, index};
use crate::kv::blocks::{BlockId, NULL_BLOCK};

impl BlockCache {
    /// Gives back blocks that a request with `computed` tokens needs no more, the last first.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.remove_skipped_blocks`.
    pub(super) fn drop_skipped(&mut self, of: &mut Sequence, group: Group, computed: u64) {
        let table = &mut of.tables[group.at];
        let to = group.skipped(computed, self.rules.skips_states()).min(table.blocks.len());
        let retires = group.aligns() && self.rules.has_checkpoints();
        let from = if retires { table.retired } else { 0 };
        let mut dropped = Vec::new();
        for at in (from..to).rev() {
            match table.clear(at) {
                Some(id) => dropped.push(id),
                None if retires => {}
                None => break,
            }
        }
        if retires {
            table.retired = table.retired.max(to);
        }
        self.pool.release(dropped.into_iter());
        if !group.aligns() {
            return;
        }
        let before_last = group.blocks(computed).saturating_sub(1);
        let passed = table.last_state.filter(|at| (*at as u64) < before_last);
        if let Some(id) = passed.and_then(|at| table.clear(at)) {
            self.pool.release(std::iter::once(id));
        }
    }

    /// Puts what was found at the head of the tables.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.save_new_computed_blocks`; 0.19.0
    /// `allocate_new_computed_blocks`.
    pub(super) fn adopt(&mut self, of: &mut Sequence, hits: &[Vec<BlockId>], total: u64) {
        for (at, hits) in hits.iter().enumerate() {
            let group = self.groups[at];
            let skipped = match self.rules.nulls_skipped_hits() {
                true => group.skipped(total, self.rules.skips_states()),
                false => 0,
            };
            let found = hits.get(skipped..).unwrap_or_default();
            for id in found {
                self.pool.touch(*id);
            }
            self.know(of, at);
            let table = &mut of.tables[at];
            table.blocks.resize(table.blocks.len() + skipped, NULL_BLOCK);
            table.blocks.extend_from_slice(found);
            table.registered = Some(table.blocks.len());
        }
    }

    /// Takes the blocks of a table of `tokens`.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.allocate_new_blocks`; for states, `MambaManager`.
    pub(super) fn grow(&mut self, of: &mut Sequence, group: Group, tokens: u64) {
        self.know(of, group.at);
        let table = &mut of.tables[group.at];
        let (before, want) = (table.blocks.len(), index(group.blocks(tokens)));
        if want <= before && !(group.aligns() && table.checkpoint.is_some()) {
            return;
        }
        if group.aligns() {
            if before > 0 {
                table.last_state = Some(before - 1);
            }
            let kept = usize::from(table.checkpoint.is_some());
            let pad = (want - 1).saturating_sub(kept);
            if before < pad {
                table.blocks.resize(pad, NULL_BLOCK);
            }
        }
        while table.blocks.len() < want {
            // The need was compared with what is free.
            let Some((id, found)) = self.pool.take() else { break };
            table.blocks.push(id);
            self.counts.0 += 1;
            self.counts.1 += u64::from(found);
        }
        let blocks = table.blocks[before..].to_vec();
        if !blocks.is_empty() {
            self.given.push(NewBlocks { group: group.at, blocks });
        }
    }
}
