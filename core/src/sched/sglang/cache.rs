//! The forms of the prefix cache and of the slots, behind the same names.

use crate::kv::{
    Cursor, Extend, Mark, Match, NodeId, PerPool, RadixTree, Runs, SlotAllocator, SlotChange,
    SwaAllocator, SwaTree,
};

/// The prefix cache.
#[derive(Clone, Debug)]
pub(super) enum Cache {
    /// Of a model whose layers all see every token.
    Radix(RadixTree),
    /// Of a hybrid with a sliding window.
    Swa(SwaTree),
}

impl Cache {
    /// Tokens that nobody uses, of the pool that slot ids are of.
    pub(super) const fn evictable(&self) -> u64 {
        match self {
            Self::Radix(tree) => tree.evictable(),
            Self::Swa(tree) => tree.evictable().full,
        }
    }

    /// Tokens that requests use, of the pool that slot ids are of.
    pub(super) const fn protected(&self) -> u64 {
        match self {
            Self::Radix(tree) => tree.protected(),
            Self::Swa(tree) => tree.protected().full,
        }
    }

    pub(super) fn match_prefix(&mut self, namespace: u64, ids: Cursor<'_>) -> Match {
        match self {
            Self::Radix(tree) => tree.match_prefix(namespace, ids),
            Self::Swa(tree) => tree.match_prefix(namespace, ids),
        }
    }

    pub(super) fn slots_to(&self, node: NodeId) -> Runs {
        match self {
            Self::Radix(tree) => tree.slots_to(node),
            Self::Swa(tree) => tree.slots_to(node),
        }
    }

    pub(super) fn all_slots(&self) -> Runs {
        match self {
            Self::Radix(tree) => tree.all_slots(),
            Self::Swa(tree) => tree.all_slots(),
        }
    }

    pub(super) fn heavy_first(&self, weights: &[(NodeId, u64)]) -> Vec<NodeId> {
        match self {
            Self::Radix(tree) => tree.heavy_first(weights),
            Self::Swa(tree) => tree.heavy_first(weights),
        }
    }

    /// Returns what [`Self::unlock`] needs.
    pub(super) fn lock(&mut self, node: NodeId) -> Option<Mark> {
        match self {
            Self::Radix(tree) => {
                tree.lock(node);
                None
            }
            Self::Swa(tree) => tree.lock(node),
        }
    }

    pub(super) fn unlock(&mut self, node: NodeId, mark: Option<Mark>) {
        match self {
            Self::Radix(tree) => tree.unlock(node),
            Self::Swa(tree) => tree.unlock(node, mark),
        }
    }

    pub(super) const fn radix(&mut self) -> Option<&mut RadixTree> {
        match self {
            Self::Radix(tree) => Some(tree),
            Self::Swa(_) => None,
        }
    }
}

/// Token slots.
#[derive(Clone, Debug)]
pub(super) enum Slots {
    /// One pool.
    One(SlotAllocator),
    /// A full pool and a window pool.
    Two(SwaAllocator),
}

impl Slots {
    /// Free slots of the pool that slot ids are of.
    pub(super) const fn available(&self) -> u64 {
        match self {
            Self::One(slots) => slots.available(),
            Self::Two(slots) => slots.available().full,
        }
    }

    /// Free slots of each pool; those of the one pool twice.
    pub(super) const fn available_in_each(&self) -> PerPool {
        match self {
            Self::One(slots) => PerPool { full: slots.available(), window: slots.available() },
            Self::Two(slots) => slots.available(),
        }
    }

    pub(super) fn extend(&mut self, parts: &[Extend]) -> Option<Vec<Runs>> {
        match self {
            Self::One(slots) => slots.extend(parts),
            Self::Two(slots) => slots.extend(parts),
        }
    }

    pub(super) fn decode(&mut self, requests: &[(u64, u64)]) -> Option<Runs> {
        match self {
            Self::One(slots) => slots.decode(requests),
            Self::Two(slots) => slots.decode(requests),
        }
    }

    pub(super) fn free(&mut self, freed: &Runs) {
        match self {
            Self::One(slots) => slots.free(freed),
            Self::Two(slots) => slots.free(freed),
        }
    }

    /// As [`SlotAllocator::lend`]; the two pools of a hybrid lend nothing.
    pub(super) fn lend(&mut self, most: u64) -> Runs {
        match self {
            Self::One(slots) => slots.lend(most),
            Self::Two(_) => Runs::new(),
        }
    }

    /// As [`SlotAllocator::take_back`].
    pub(super) fn take_back(&mut self, pages: &Runs) {
        if let Self::One(slots) = self {
            slots.take_back(pages);
        }
    }

    /// As [`SlotAllocator::count_only`]. What a window slot stands behind goes by numbers.
    pub(super) fn count_only(&mut self) -> bool {
        match self {
            Self::One(slots) => slots.count_only(),
            Self::Two(_) => false,
        }
    }

    pub(super) const fn counts_only(&self) -> bool {
        match self {
            Self::One(slots) => slots.counts_only(),
            Self::Two(_) => false,
        }
    }

    pub(super) const fn take_counted(&mut self, count: u64) -> bool {
        match self {
            Self::One(slots) => slots.take_counted(count),
            Self::Two(_) => false,
        }
    }

    pub(super) fn begin_group(&mut self) {
        match self {
            Self::One(slots) => slots.begin_group(),
            Self::Two(slots) => slots.begin_group(),
        }
    }

    pub(super) fn end_group(&mut self) {
        match self {
            Self::One(slots) => slots.end_group(),
            Self::Two(slots) => slots.end_group(),
        }
    }

    pub(super) fn keep_trace(&mut self) {
        match self {
            Self::One(slots) => slots.keep_trace(),
            Self::Two(slots) => slots.keep_trace(),
        }
    }

    pub(super) fn take_trace(&mut self) -> Vec<SlotChange> {
        match self {
            Self::One(slots) => slots.take_trace(),
            Self::Two(slots) => slots.take_trace(),
        }
    }
}
