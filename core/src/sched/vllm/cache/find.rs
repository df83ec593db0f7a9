//! What the cache has of a prompt.

use super::{BlockCache, Group, Sequence, floor_to, index};
use crate::{
    kv::blocks::{BlockId, NULL_BLOCK},
    sched::vllm::config::{GroupKind, PrefixCaching},
};

/// Found blocks and the tokens that they cover.
#[derive(Clone, Default, Debug)]
pub(in super::super) struct Hit {
    /// One list a group; null where a block is not needed.
    pub(in super::super) blocks: Vec<Vec<BlockId>>,
    /// Tokens.
    pub(in super::super) tokens: u64,
}

impl BlockCache {
    /// The longest prefix that every group has, all tokens but the last at most; notes how far a single one
    /// reached.
    ///
    /// Source: vLLM `KVCacheManager.get_computed_blocks` and the coordinators' `find_longest_cache_hit`.
    pub(in super::super) fn find(&self, of: &mut Sequence) -> Hit {
        of.boundary = 0;
        let mut blocks = vec![Vec::new(); self.groups.len()];
        let limit = of.known.saturating_sub(1);
        if self.caching == PrefixCaching::Off {
            return Hit { blocks, tokens: 0 };
        }
        let tokens = match self.kinds.as_slice() {
            [only] => self.search(of, only, limit, &mut blocks),
            [full, other] if !self.rules.joins_many_kinds() => {
                let whole = self.search(of, full, limit, &mut blocks);
                let tokens = self.search(of, other, whole, &mut blocks);
                for at in full {
                    blocks[*at].truncate(index(tokens / self.groups[*at].block));
                }
                tokens
            }
            _ => self.search_until_agreed(of, limit, &mut blocks),
        };
        Hit { blocks, tokens }
    }

    /// Searches the kinds in turn until none shortens what the others found.
    fn search_until_agreed(
        &self,
        of: &mut Sequence,
        limit: u64,
        blocks: &mut [Vec<BlockId>],
    ) -> u64 {
        let first = |kind: &[usize]| self.groups[kind[0]];
        let is_full = |kind: &[usize]| first(kind).kind == GroupKind::Full;
        let once = self.kinds.len() == 2 && is_full(&self.kinds[0]);
        let mut found: Vec<Option<u64>> = vec![None; self.kinds.len()];
        let (mut hit, mut longest) = (limit, 0);
        loop {
            let mut now = hit;
            for (kind, found) in self.kinds.iter().zip(&mut found) {
                now = match found.filter(|_| is_full(kind)) {
                    Some(before) if self.rules.clips_by_found() => now.min(before),
                    Some(_) => floor_to(now, first(kind).block),
                    None => {
                        let tokens = self.search(of, kind, now, blocks);
                        *found = Some(tokens);
                        longest = longest.max(tokens);
                        tokens
                    }
                };
            }
            if now >= hit {
                break;
            }
            hit = now;
            if once {
                break;
            }
        }
        for group in self.groups.iter().filter(|group| group.kind == GroupKind::Full) {
            blocks[group.at].truncate(index(group.blocks(hit)));
        }
        if self.rules.registers_sparsely() && longest > hit {
            of.boundary = longest;
        }
        hit
    }

    /// Searches the groups of one kind up to `limit` tokens; returns the tokens that were found.
    fn search(&self, of: &Sequence, kind: &[usize], limit: u64, out: &mut [Vec<BlockId>]) -> u64 {
        let search = Search { cache: self, of, kind };
        let group = self.groups[kind[0]];
        let blocks = index(limit / group.block);
        for at in kind {
            out[*at].clear();
        }
        match group.kind {
            GroupKind::Full => search.in_a_row(out, 0, blocks),
            GroupKind::Window { window } => {
                search.window(out, &group, index((window - 1).div_ceil(group.block)), blocks);
            }
            GroupKind::Chunked { chunk } => {
                let skipped = index(floor_to(limit, chunk) / group.block);
                search.in_a_row(out, skipped, blocks);
            }
            GroupKind::Mamba(_) => search.last_state(out, &group, blocks),
        }
        if matches!(group.kind, GroupKind::Full) {
            search.align(out, &group);
        }
        out[group.at].len() as u64 * group.block
    }

    /// Whether a hit may end after this many blocks.
    fn may_end(&self, group: &Group, blocks: usize) -> bool {
        !self.rules.aligns_hits() || (blocks as u64 * group.block).is_multiple_of(self.align)
    }
}

/// A search through the groups of one kind: a block counts where all of them have it.
struct Search<'a> {
    cache: &'a BlockCache,
    of: &'a Sequence,
    kind: &'a [usize],
}

impl Search<'_> {
    /// Block `at` of every group.
    fn at(&self, at: usize, into: &mut Vec<BlockId>) -> bool {
        into.clear();
        for group in self.kind {
            let key = self.cache.key(self.of, &self.cache.groups[*group], at);
            let Some(id) = key.and_then(|key| self.cache.pool.find(key)) else { return false };
            into.push(id);
        }
        true
    }

    /// Nulls, then the blocks from there to the first that is missing.
    fn in_a_row(&self, out: &mut [Vec<BlockId>], nulls: usize, blocks: usize) {
        let mut found = Vec::new();
        for group in self.kind {
            out[*group].resize(nulls, NULL_BLOCK);
        }
        for at in nulls..blocks {
            if !self.at(at, &mut found) {
                return;
            }
            for (group, id) in self.kind.iter().zip(&found) {
                out[*group].push(*id);
            }
        }
    }

    /// The last `needed` blocks in a row, or those from the start.
    fn window(&self, out: &mut [Vec<BlockId>], group: &Group, needed: usize, blocks: usize) {
        let (mut run, mut found) = (0, Vec::new());
        for group in self.kind {
            out[*group].resize(blocks, NULL_BLOCK);
        }
        for at in (0..blocks).rev() {
            if !self.at(at, &mut found) {
                run = 0;
                continue;
            }
            if run == 0 && !self.cache.may_end(group, at + 1) {
                continue;
            }
            for (group, id) in self.kind.iter().zip(&found) {
                out[*group][at] = *id;
            }
            run += 1;
            if run >= needed {
                for group in self.kind {
                    out[*group].truncate(at + run);
                }
                return;
            }
        }
        for group in self.kind {
            out[*group].truncate(run);
        }
        self.align(out, group);
    }

    /// The last state, after nulls.
    fn last_state(&self, out: &mut [Vec<BlockId>], group: &Group, blocks: usize) {
        let mut found = Vec::new();
        for at in (0..blocks).rev() {
            if !self.cache.may_end(group, at + 1) || !self.at(at, &mut found) {
                continue;
            }
            for (group, id) in self.kind.iter().zip(&found) {
                out[*group].resize(at, NULL_BLOCK);
                out[*group].push(*id);
            }
            return;
        }
    }

    /// Shortens what was found to where it may end.
    fn align(&self, out: &mut [Vec<BlockId>], group: &Group) {
        let mut len = out[group.at].len();
        while !self.cache.may_end(group, len) {
            len -= 1;
        }
        for at in self.kind {
            out[*at].truncate(len);
        }
    }
}
