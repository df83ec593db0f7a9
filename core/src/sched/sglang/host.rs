//! The host tier of the prefix cache, as the scheduler uses it.

use super::{SglangScheduler, cache::Cache, config::PrefixCache, request::Idx};
use crate::{
    kv::{Extend, HostEvent, RadixTree},
    sched::{Decision, Fatal},
};

impl SglangScheduler {
    const fn has_host_tier(&self) -> bool {
        matches!(self.config.prefix_cache, PrefixCache::Hierarchical(..))
            && self.config.swa.is_none()
    }

    /// The tree that may have a host tier.
    pub(super) const fn tiered(&self) -> Option<&RadixTree> {
        match &self.tree {
            Some(Cache::Radix(tree)) => Some(tree),
            Some(Cache::Swa(_)) | None => None,
        }
    }

    /// Too few slots fill a batch only while something runs or was admitted: so later releases, and earlier
    /// ones with a host tier.
    ///
    /// Source: SGLang `Scheduler.get_new_batch_prefill`.
    pub(super) const fn empty_batch_stays_open(&self) -> bool {
        self.has_host_tier() || self.rules.idle_batch_is_never_full()
    }

    /// Looks at the transfers between the tiers; the simulation takes them as ended by then.
    pub(super) fn acknowledge_transfers(&mut self) {
        if let Some(tree) = self.tree.as_mut().and_then(Cache::radix) {
            tree.acknowledge_transfers();
        }
    }

    /// Whether no turn changes anything by looking at transfers, as long as no prefill is tried.
    pub(super) fn nothing_to_poll(&self) -> bool {
        !self.rules.polls_each_turn() || !self.tiered().is_some_and(RadixTree::has_transfers)
    }

    pub(super) fn start_loads(&mut self) {
        if let Some(tree) = self.tree.as_mut().and_then(Cache::radix) {
            tree.start_loads();
        }
    }

    /// Puts what the host tier did into the log.
    pub(super) fn tell_host_events(&mut self) {
        let Some(tree) = self.tree.as_mut().and_then(Cache::radix) else { return };
        for event in tree.take_host_events() {
            self.log.push(match event {
                HostEvent::BackedUp { tokens, stored } => Decision::BackedUp { tokens, stored },
                HostEvent::Evicted { asked, freed } => Decision::EvictedHost { asked, freed },
            });
        }
    }

    /// Loads the part of a request's prefix that only the host holds, if it is long enough and slots can be
    /// had; else it is computed again. The node above it must be locked.
    ///
    /// Source: SGLang `HiRadixCache.init_load_back`, `load_back`.
    pub(super) fn load_back(&mut self, at: Idx) {
        let (request, prefix, hit) =
            (self.requests[at].id, self.requests[at].prefix, self.requests[at].host);
        let tree = self.tree.as_mut().filter(|_| hit.len > 0);
        let Some(tree) = tree.and_then(Cache::radix) else { return };
        let mut loaded = 0;
        if let Some(tokens) = tree.begin_load(hit.node) {
            let part = Extend { have: prefix, want: prefix + tokens, last: None };
            let mut slots = self.slots.extend(&[part]);
            if slots.is_none() {
                self.evict(tokens);
                slots = self.slots.extend(&[part]);
            }
            self.tell_slots(&[at]);
            let slots = slots.and_then(|mut slots| slots.pop()).unwrap_or_default();
            if let Some(tree) = self.tree.as_mut().and_then(Cache::radix) {
                tree.end_load(hit.node, &slots);
            }
            loaded = slots.len();
        }
        self.log.push(Decision::LoadedBack { request, found: hit.len, loaded });
        if loaded > 0 {
            let request = &mut self.requests[at];
            request.node = hit.node;
            request.prefix += loaded;
            request.protected = request.prefix;
            request.extend = request.fill - request.prefix;
        }
    }

    /// The scheduler dies of an eviction that had to copy and found no room on the host.
    ///
    /// Source: SGLang `HiRadixCache.evict`, an assertion.
    pub(super) fn host_death(&mut self) -> Option<Fatal> {
        self.tree.as_mut()?.radix()?.take_out_of_room().then(|| Fatal {
            code: "host_out_of_slots",
            message:
                "A node of the prefix cache could not be copied to the host before its eviction \
                      (assert node.backuped)."
                    .to_owned(),
        })
    }
}
