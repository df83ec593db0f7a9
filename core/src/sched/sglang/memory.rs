//! Slots, rows and the prefix cache of requests: taken, stored, given back.

use super::{
    SglangScheduler,
    cache::{Cache, Slots},
    config::FinishKey,
    request::Idx,
};
use crate::{
    kv::{Inserted, Mark, NodeId, Runs, SlotChange},
    sched::{Decision, Fatal, Finish},
};

/// Whether a request's tokens are kept in the prefix cache when it gives its slots back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keep {
    /// They are.
    Cached,
    /// They are not (retraction).
    Nothing,
}

/// Whether all that a request computes is stored in the prefix cache, or a part while its prompt goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    /// All.
    Whole,
    /// A part.
    Chunk,
}

impl SglangScheduler {
    pub(super) fn evictable(&self) -> u64 {
        self.tree.as_ref().map_or(0, Cache::evictable)
    }

    /// Slots that are free or can be; of two pools the smaller sum.
    pub(super) fn reachable(&self) -> u64 {
        self.reachable_in_each().least()
    }

    /// Makes room for `count` slots, if there is less.
    ///
    /// Source: SGLang `evict_from_tree_cache`.
    pub(super) fn evict_if_short(&mut self, count: u64) {
        if matches!(self.slots, Slots::Two(_)) {
            return self.evict_from_both(count);
        }
        let missing = count.saturating_sub(self.slots.available());
        if missing > 0 {
            self.evict(if self.rules.evicts_shortfall() { missing } else { count });
        }
    }

    pub(super) fn evict(&mut self, asked: u64) {
        let Some(tree) = self.tree.as_mut().and_then(Cache::radix) else { return };
        let before = self.slots.available();
        for slots in tree.evict(asked) {
            self.slots.free(&slots);
        }
        let freed = self.slots.available() - before;
        self.tell_host_events();
        self.log.push(Decision::Evicted { asked, freed, window: None });
    }

    /// Returns what [`Self::unlock`] needs.
    pub(super) fn lock(&mut self, node: NodeId) -> Option<Mark> {
        self.tree.as_mut()?.lock(node)
    }

    pub(super) fn unlock(&mut self, node: NodeId, mark: Option<Mark>) {
        if let Some(tree) = &mut self.tree {
            tree.unlock(node, mark);
        }
    }

    /// One more slot for each of `members`, in order.
    ///
    /// Source: SGLang `alloc_for_decode`.
    pub(super) fn decode_slots(&mut self, members: &[Idx]) -> Result<(), Fatal> {
        self.leave_window_in_decode(members);
        self.evict_if_short(members.len() as u64 * self.config.page_size);
        if self.slots.counts_only() {
            return self.decode_counted(members);
        }
        let ends: Vec<(u64, u64)> = members
            .iter()
            .map(|at| &self.requests[*at].slots)
            .map(|slots| (slots.len(), slots.last().unwrap_or(0)))
            .collect();
        let Some(slots) = self.slots.decode(&ends) else {
            return Err(out_of_slots(
                "decode_out_of_slots",
                members.len() as u64,
                self.reachable(),
            ));
        };
        for (at, slot) in members.iter().zip(slots.values()) {
            self.requests[*at].slots.push_value(slot);
        }
        self.detail.decode_slots = slots;
        self.tell_slots(members);
        Ok(())
    }

    /// The same where slots are only counted.
    fn decode_counted(&mut self, members: &[Idx]) -> Result<(), Fatal> {
        let page = self.config.page_size;
        let fresh = |at: &&Idx| self.requests[**at].slots.len().is_multiple_of(page);
        let pages = members.iter().filter(fresh).count() as u64;
        if !self.slots.take_counted(pages) {
            let (asked, reachable) = (members.len() as u64, self.reachable());
            return Err(out_of_slots("decode_out_of_slots", asked, reachable));
        }
        for at in members {
            let slots = &mut self.requests[*at].slots;
            slots.push_value(slots.len());
        }
        Ok(())
    }

    /// Tells what changed hands since the last call, where that is asked for; what was taken is that of
    /// `members`.
    pub(super) fn tell_slots(&mut self, members: &[Idx]) {
        for change in self.slots.take_trace() {
            let told = match change {
                SlotChange::Freed { slots } => Decision::SlotsFreed { slots },
                SlotChange::Taken { part, slots } => {
                    let Some(at) = members.get(part) else { continue };
                    Decision::SlotsTaken { request: self.requests[*at].id, slots }
                }
            };
            self.log.push(told);
        }
    }

    /// Gives back all that a request holds. Returns the slots that were its own.
    ///
    /// Source: SGLang `RadixCache.cache_finished_req`, `release_kv_cache`.
    pub(super) fn release(&mut self, at: Idx, keep: Keep) -> u64 {
        let request = &mut self.requests[at];
        request.write_outputs(self.config.output_ids);
        let own = request.slots.len().min(request.len());
        let (protected, node) = (request.protected, request.node);
        if let Some(row) = request.row.take() {
            self.rows.give_back(row);
        }
        let slots = std::mem::take(&mut self.requests[at].slots);
        if self.tree.is_none() {
            self.slots.free(&slots);
            return slots.len();
        }
        if self.has_swa_tree() {
            return self.release_hybrid(at, &slots, keep);
        }
        let lost = own.saturating_sub(protected);
        if self.rules.inserts_in_place() {
            self.requests[at].slots = slots;
            if keep == Keep::Cached {
                self.checkpoint(at, own, Stored::Whole);
            }
            let request = &mut self.requests[at];
            let (slots, from) = (std::mem::take(&mut request.slots), request.protected);
            let node = request.node;
            self.slots.free(&slots.slice(from, own));
            self.unlock(node, None);
            return lost;
        }
        let key = self.finish_key(at, own);
        match keep {
            Keep::Cached => {
                let present = self.insert(at, key, &slots, Stored::Whole).present;
                self.slots.free(&slots.slice(protected, present));
            }
            Keep::Nothing => self.slots.free(&slots.slice(protected, key)),
        }
        self.slots.free(&slots.slice(key, own));
        self.unlock(node, None);
        lost
    }

    /// Length of the key that a finished request is stored under, in whole pages.
    fn finish_key(&self, at: Idx, own: u64) -> u64 {
        let rule = self.config.finish_key.unwrap_or(self.rules.finish_key());
        let len = match rule {
            FinishKey::Filled => self.requests[at].fill,
            FinishKey::Committed => own,
        };
        self.whole_pages(len)
    }

    pub(super) const fn whole_pages(&self, tokens: u64) -> u64 {
        tokens / self.config.page_size * self.config.page_size
    }

    fn insert(&mut self, at: Idx, key: u64, slots: &Runs, stored: Stored) -> Inserted {
        let request = &self.requests[at];
        let (ids, slots) = (request.ids.cursor().limit(key), slots.cursor().limit(key));
        let (namespace, priority) = (request.namespace, request.priority.unwrap_or(0));
        let Some(tree) = self.tree.as_mut().and_then(Cache::radix) else {
            return Inserted { node: NodeId::ROOT, present: 0, ends: Vec::new() };
        };
        let counted = match stored {
            _ if self.rules.counts_hits_once() => request.inserted,
            Stored::Whole => 0,
            Stored::Chunk => key,
        };
        let inserted = tree.insert_beyond(namespace, ids, slots, priority, counted);
        self.requests[at].inserted = key.max(counted);
        self.tell_host_events();
        inserted
    }

    /// Stores what a request has computed and goes on with the tree's slots: after its prefill, or between
    /// two chunks.
    ///
    /// # Errors
    ///
    /// [`Fatal`] where the prefix cache of a hybrid dies (see [`Self::cache_unfinished_hybrid`]).
    ///
    /// Source: SGLang `RadixCache.cache_unfinished_req`.
    pub(super) fn cache_unfinished(&mut self, at: Idx, stored: Stored) -> Result<(), Fatal> {
        let request = &mut self.requests[at];
        request.write_outputs(self.config.output_ids);
        let fill = request.fill;
        let held = std::mem::replace(&mut request.prefix, fill);
        if self.tree.is_none() {
            return Ok(());
        }
        if self.has_swa_tree() {
            return self.cache_unfinished_hybrid(at, held);
        }
        if self.rules.inserts_in_place() {
            self.checkpoint(at, fill, stored);
            return Ok(());
        }
        let key = self.whole_pages(fill);
        let slots = std::mem::take(&mut self.requests[at].slots);
        let present = self.insert(at, key, &slots, stored).present;
        self.slots.free(&slots.slice(self.requests[at].protected, present));
        let request = &self.requests[at];
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let found = tree.match_prefix(request.namespace, request.ids.cursor().limit(key));
        self.move_to(at, found.node, key, &slots);
        Ok(())
    }

    /// Puts the tree's slots in place of the request's own up to `key`, and its lock on `node`.
    fn move_to(&mut self, at: Idx, node: NodeId, key: u64, slots: &Runs) {
        let Some(tree) = &mut self.tree else { return };
        let mut row = tree.slots_to(node);
        row.extend(&slots.slice(key, slots.len()));
        let request = &mut self.requests[at];
        request.slots = row;
        request.protected = key;
        let old = std::mem::replace(&mut request.node, node);
        tree.unlock(old, None);
        tree.lock(node);
    }

    /// Stores the first `len` tokens, node by node, and once more the prompt alone, so that a node ends
    /// where it does.
    ///
    /// Source: SGLang 0.5.23 `UnifiedRadixCache`.
    fn checkpoint(&mut self, at: Idx, len: u64, stored: Stored) {
        let key = self.whole_pages(len);
        if key == 0 || self.tree.is_none() {
            return;
        }
        let slots = std::mem::take(&mut self.requests[at].slots);
        let done = self.insert(at, key, &slots, stored);
        let mut from = self.requests[at].protected;
        for end in done.ends {
            self.slots.free(&slots.slice(from, end));
            from = from.max(end);
        }
        let prompt = self.whole_pages(self.requests[at].prompt_len);
        let request = &self.requests[at];
        let tree = self.tree.as_mut().filter(|_| 0 < prompt && prompt < key);
        if let Some(tree) = tree.and_then(Cache::radix) {
            let priority = request.priority.unwrap_or(0).saturating_add(1);
            let ids = request.ids.cursor().limit(prompt);
            // That the prompt is stored once more is no hit of it.
            let slots = slots.cursor().limit(prompt);
            tree.insert_beyond(request.namespace, ids, slots, priority, prompt);
        }
        self.move_to(at, done.node, key, &slots);
    }

    /// Stores the computed part of the request whose prompt goes on; to 0.5.8 its row is given back.
    ///
    /// # Errors
    ///
    /// As [`Self::cache_unfinished`].
    pub(super) fn stash_chunked(&mut self) -> Result<(), Fatal> {
        let Some(at) = self.chunked else { return Ok(()) };
        if self.requests[at].aborting && self.rules.abort_stops_chunks() {
            self.chunked = None;
            self.release(at, Keep::Cached);
            self.end(at, Finish::Abort);
            return Ok(());
        }
        self.cache_unfinished(at, Stored::Chunk)?;
        if !self.rules.chunks_keep_row()
            && let Some(row) = self.requests[at].row.take()
        {
            self.rows.give_back(row);
        }
        Ok(())
    }
}

/// The scheduler dies: an allocation that the engine does not expect to fail.
///
/// Source: SGLang `alloc_for_extend`, `alloc_for_decode`: "... out of memory. Try to lower your batch size."
pub(super) fn out_of_slots(code: &'static str, asked: u64, reachable: u64) -> Fatal {
    let part = if code == "decode_out_of_slots" { "Decode" } else { "Prefill" };
    let message = format!(
        "{part} out of memory. Try to lower your batch size. Try to allocate {asked} tokens; \
         {reachable} are free or can be evicted."
    );
    Fatal { code, message }
}
