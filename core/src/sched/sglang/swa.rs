//! Hybrid models with a sliding window: what differs where there are two pools.
//!
//! The rules are those of 0.5.8, the release that was run; others are taken to follow it.

use super::{
    SglangScheduler,
    cache::{Cache, Slots},
    config::LoopKind,
    memory::Keep,
    request::Idx,
};
use crate::{
    kv::{Evicted, Mark, PerPool, Runs, Taken},
    sched::{Decision, Fatal, PoolUse, WindowEvicted},
};

/// What a request remembers of its window slots.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct WindowState {
    /// Leading tokens whose window slots are given back or the tree's (`swa_evicted_seqlen`).
    freed: u64,
    /// Decode steps that it was prepared for (`decode_batch_idx`).
    decodes: u64,
    /// Prefill batches that it was in (`extend_batch_idx`).
    extends: u64,
    /// Where its lock of window slots ends (`swa_uuid_for_lock`).
    pub(super) mark: Option<Mark>,
}

impl SglangScheduler {
    /// Puts a request back to before its first prefill.
    ///
    /// Source: SGLang `Req.reset_for_retract`.
    pub(super) fn reset(&mut self, at: Idx) {
        self.requests[at].reset();
        if self.rules.forgets_window() {
            self.requests[at].window = WindowState::default();
        }
    }

    /// Whether the prefix cache is that of a hybrid.
    pub(super) const fn has_swa_tree(&self) -> bool {
        matches!(self.tree, Some(Cache::Swa(_)))
    }

    /// Slots that are free or can be, in each pool; those of a single pool twice.
    pub(super) fn reachable_in_each(&self) -> PerPool {
        let cached = match &self.tree {
            Some(Cache::Swa(tree)) => tree.evictable(),
            Some(Cache::Radix(tree)) => {
                PerPool { full: tree.evictable(), window: tree.evictable() }
            }
            None => PerPool::default(),
        };
        self.slots.available_in_each() + cached
    }

    /// Use of the window pool, where there is one.
    pub(super) fn window_use(&self) -> Option<PoolUse> {
        let Slots::Two(slots) = &self.slots else { return None };
        let (evictable, protected) = match &self.tree {
            Some(Cache::Swa(tree)) => (tree.evictable().window, tree.protected().window),
            _ => (0, 0),
        };
        let available = slots.available().window;
        Some(PoolUse { pool: self.config.window_slots()?, available, evictable, protected })
    }

    /// Makes room for `count` slots in both pools; each is asked for what it lacks.
    ///
    /// Source: SGLang 0.5.8 `evict_from_tree_cache`, the part of hybrid allocators.
    pub(super) fn evict_from_both(&mut self, count: u64) {
        let (Slots::Two(slots), Some(Cache::Swa(tree))) = (&mut self.slots, &mut self.tree) else {
            return;
        };
        let before = slots.available();
        let asked = before.missing(count);
        if asked == PerPool::default() {
            return;
        }
        for evicted in tree.evict(asked) {
            match evicted {
                Evicted::Node(gone) => slots.free(&gone),
                Evicted::Window(gone) => slots.free_window(&gone),
            }
        }
        let after = slots.available();
        let window = WindowEvicted { asked: asked.window, freed: after.window - before.window };
        let (asked, freed) = (asked.full, after.full - before.full);
        self.log.push(Decision::Evicted { asked, freed, window: Some(window) });
    }

    /// Before the slots of a decode step: gives back what has left the window. That is looked at once in a
    /// window's length of steps.
    ///
    /// Source: SGLang 0.5.8 `ScheduleBatch.maybe_evict_swa`.
    pub(super) fn leave_window_in_decode(&mut self, members: &[Idx]) {
        let Some(window) = self.config.window_len() else { return };
        for at in members {
            if self.requests[*at].window.decodes % window == 1 {
                let end = self.requests[*at].len().saturating_sub(1);
                self.leave_window(*at, end, window);
            }
            self.requests[*at].window.decodes += 1;
        }
    }

    /// Before the slots of a prefill, without a prefix cache: gives back what has left the window. In the
    /// overlap loop the chunk before is still running and keeps its window.
    ///
    /// Source: SGLang 0.5.8 `ScheduleBatch.maybe_evict_swa`.
    pub(super) fn leave_window_in_prefill(&mut self, list: &[Idx]) {
        let Some(window) = self.config.window_len().filter(|_| self.tree.is_none()) else { return };
        for at in list {
            let request = &self.requests[*at];
            let end = match self.config.loop_kind {
                LoopKind::Normal => Some(request.prefix),
                LoopKind::Overlap if request.window.extends < 2 => None,
                LoopKind::Overlap => {
                    let running = self.config.chunked_prefill_size.unwrap_or(0);
                    Some(request.prefix.saturating_sub(running))
                }
            };
            if let Some(end) = end {
                self.leave_window(*at, end, window);
            }
            self.requests[*at].window.extends += 1;
        }
    }

    /// Gives back the window slots of a request's own tokens that a token at `end` does not see, in whole
    /// pages.
    ///
    /// Source: SGLang 0.5.8 `ScheduleBatch._evict_swa`.
    fn leave_window(&mut self, at: Idx, end: u64, window: u64) {
        let request = &self.requests[at];
        let from = request.window.freed.max(request.protected);
        let to = self.whole_pages(from.max(end.saturating_sub(window)));
        if let Slots::Two(slots) = &mut self.slots
            && from < to
        {
            slots.free_window(&request.slots.slice(from, to));
        }
        self.requests[at].window.freed = from.max(to);
    }

    /// Gives back all that a request holds and goes on with `slots`, which it had. Returns the slots that
    /// were its own. Outputs are cached here even by the release that caches none in the plain tree.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.cache_finished_req`.
    pub(super) fn release_hybrid(&mut self, at: Idx, slots: &Runs, keep: Keep) -> u64 {
        let own = slots.len();
        let key = self.whole_pages(own);
        let request = &self.requests[at];
        let (held, protected, node) = (request.prefix, request.protected, request.node);
        let WindowState { freed: window_freed, mark, .. } = request.window;
        let caches = window_freed < key || self.rules.caches_without_window();
        match keep {
            Keep::Cached if caches => {
                self.insert_hybrid(at, key, slots, Taken { held, window_freed })
            }
            Keep::Cached | Keep::Nothing => self.slots.free(&slots.slice(held, key)),
        }
        self.slots.free(&slots.slice(key, own));
        self.unlock(node, mark);
        own.saturating_sub(protected)
    }

    fn insert_hybrid(&mut self, at: Idx, key: u64, slots: &Runs, taken: Taken) {
        let request = &self.requests[at];
        let Some(Cache::Swa(tree)) = &mut self.tree else { return };
        let ids = request.ids.cursor().limit(key);
        for duplicates in tree.insert(request.namespace, ids, slots.cursor().limit(key), taken) {
            self.slots.free(&duplicates);
        }
    }

    /// Stores what a request has computed and goes on with the tree's slots. `held` is what it had before
    /// this batch: the tree's part and its own begun page.
    ///
    /// # Errors
    ///
    /// With pages, a chunk that was cut short by memory and ends inside the page that the one before it
    /// began: fewer tokens are found than it held, and an assertion ends the scheduler.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.cache_unfinished_req`.
    pub(super) fn cache_unfinished_hybrid(&mut self, at: Idx, held: u64) -> Result<(), Fatal> {
        let fill = self.requests[at].fill;
        let key = self.whole_pages(fill);
        let slots = std::mem::take(&mut self.requests[at].slots);
        self.insert_hybrid(at, key, &slots, Taken { held, window_freed: 0 });
        let request = &self.requests[at];
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let found = tree.match_prefix(request.namespace, request.ids.cursor().limit(key));
        let mut row = tree.slots_to(found.node);
        row.extend(&slots.slice(found.len, slots.len()));
        let request = &mut self.requests[at];
        let old = std::mem::replace(&mut request.node, found.node);
        request.slots = row;
        request.protected = found.len;
        tree.unlock(old, request.window.mark);
        request.window.mark = tree.lock(found.node);
        if found.len < held {
            let message = format!(
                "AssertionError in cache_unfinished_req: {held} tokens were held, {} are found again.",
                found.len
            );
            return Err(Fatal { code: "prefix_shrank", message });
        }
        Ok(())
    }

    /// An idle server whose pools do not hold what they should ends itself. Two ways lead there: a page
    /// longer than the window, where a finished request can leave tokens in the cache of which no window
    /// slot is left; and a retracted request, which by its old marks gives window slots back before its
    /// new prefill is cached (overlap loop), or caches slots without counting them.
    ///
    /// Source: SGLang 0.5.8 `SchedulerRuntimeCheckerMixin._check_hybrid_memory`.
    pub(super) fn check_hybrid(&self) -> Result<(), Fatal> {
        let Some(window) = self.window_use() else { return Ok(()) };
        let there = window.available + window.evictable;
        if there == window.pool || !self.rules.counts_window_when_idle() {
            return Ok(());
        }
        let message = format!(
            "token_to_kv_pool_allocator memory leak detected! {} tokens of the window pool are free \
             or can be evicted, of {}.",
            there, window.pool
        );
        Err(Fatal { code: "memory_leak", message })
    }
}
