//! The host tier of the prefix cache (HiCache): copies of nodes in host memory.
//!
//! A node has slots, a copy in host slots, or both. What loses its slots but has a copy stays in the tree;
//! such nodes always form the lower part of a path. A copy that is being written, and slots that are being
//! loaded, lock their path until the engine looks at what its transfers have finished.
//!
//! Known and as the engine has it: a node without a copy whose slots are evicted takes the copies of its
//! children with it, and their host slots are never free again.

use std::collections::BTreeSet;

use super::{RadixTree, TreeClock, evict::LeafKey, node::NodeId};
use crate::kv::{free_list::FreeList, runs::Runs};

/// Fewer tokens than this are computed again rather than loaded. Source: SGLang
/// `HiRadixCache.load_back_threshold`.
const LEAST_LOAD: u64 = 10;

/// When a node is copied to the host (`--hicache-write-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WritePolicy {
    /// At its first insert.
    #[default]
    WriteThrough,
    /// At its second insert: a request inserts after its prefill and at its end.
    WriteThroughSelective,
    /// When its slots are evicted.
    WriteBack,
}

impl WritePolicy {
    /// Inserts that must have passed a node; `None` where inserts copy nothing and are not counted.
    ///
    /// Source: SGLang `HiRadixCache.write_through_threshold`, `_inc_hit_count`.
    const fn hits(self) -> Option<u32> {
        match self {
            Self::WriteThrough => Some(1),
            Self::WriteThroughSelective => Some(2),
            Self::WriteBack => None,
        }
    }
}

/// How a host tier is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostTierOptions {
    /// Token slots of the host pool.
    pub tokens: u64,
    /// When nodes are copied.
    pub write_policy: WritePolicy,
}

/// The part of a match that has lost its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostHit {
    /// Deepest node of the match that has a copy; the root where none has.
    pub node: NodeId,
    /// Tokens of the match that only the host holds.
    pub len: u64,
}

impl HostHit {
    /// Nothing.
    pub const NONE: Self = Self { node: NodeId::ROOT, len: 0 };
}

/// What the host tier did, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// A node of so many tokens was copied, or was to be.
    BackedUp {
        /// Tokens of the node.
        tokens: u64,
        /// Host slots that it took: as many, or 0 where they could not be had.
        stored: u64,
    },
    /// Copies were given up.
    Evicted {
        /// Host slots asked for.
        asked: u64,
        /// Host slots freed; nodes are freed whole.
        freed: u64,
    },
}

/// Copies, and transfers under way.
#[derive(Clone, Debug)]
pub(super) struct HostTier {
    write_policy: WritePolicy,
    free: FreeList,
    /// Leaves without slots, in the order of giving their copies up.
    pub(super) copies: BTreeSet<(LeafKey, NodeId)>,
    /// Nodes whose copy is being written.
    writing: Vec<NodeId>,
    /// Nodes whose load waits for the next batch, and those whose load is under way.
    queued: Vec<NodeId>,
    loading: Vec<NodeId>,
    events: Vec<HostEvent>,
    /// Slots were to be evicted by copying them, and the host had no room.
    out_of_room: bool,
}

impl HostTier {
    pub(super) fn new(options: HostTierOptions) -> Self {
        Self {
            write_policy: options.write_policy,
            // A queue of slots, as the device's; returned ones go to the end.
            free: FreeList::new(0, options.tokens),
            copies: BTreeSet::new(),
            writing: Vec::new(),
            queued: Vec::new(),
            loading: Vec::new(),
            events: Vec::new(),
            out_of_room: false,
        }
    }
}

impl RadixTree {
    /// Free slots of the host tier; 0 without one.
    #[must_use]
    pub fn host_available(&self) -> u64 {
        self.host.as_ref().map_or(0, |tier| tier.free.len())
    }

    /// Copies whose end the engine has not looked at yet.
    #[must_use]
    pub fn pending_writes(&self) -> u64 {
        self.host.as_ref().map_or(0, |tier| tier.writing.len() as u64)
    }

    /// Whether a transfer is under way that [`Self::acknowledge_transfers`] would end.
    #[must_use]
    pub fn has_transfers(&self) -> bool {
        self.host.as_ref().is_some_and(|it| !it.writing.is_empty() || !it.loading.is_empty())
    }

    /// What the host tier did since the last call.
    pub fn take_host_events(&mut self) -> Vec<HostEvent> {
        self.host.as_mut().map(|tier| std::mem::take(&mut tier.events)).unwrap_or_default()
    }

    /// Whether an eviction failed for want of host slots since the last call: the engine dies of it.
    pub fn take_out_of_room(&mut self) -> bool {
        self.host.as_mut().is_some_and(|tier| std::mem::take(&mut tier.out_of_room))
    }

    /// Looks at transfers: whatever was under way has ended, and its path is unlocked.
    ///
    /// Source: SGLang `HiRadixCache.check_hicache_events`.
    pub fn acknowledge_transfers(&mut self) {
        let Some(tier) = &mut self.host else { return };
        let mut ended = std::mem::take(&mut tier.writing);
        ended.append(&mut tier.loading);
        for node in ended {
            self.unlock(node);
        }
    }

    /// Starts the loads that were asked for: a batch is launched that needs them.
    ///
    /// Source: SGLang `HiRadixCache.ready_to_load_host_cache`.
    pub fn start_loads(&mut self) {
        if let Some(tier) = &mut self.host {
            tier.loading.append(&mut tier.queued);
        }
    }

    /// Tokens between `node` and the slots above it, if they are enough to be loaded. Its copy stays until
    /// [`Self::end_load`], which must follow.
    ///
    /// Source: SGLang `HiRadixCache.load_back`.
    pub fn begin_load(&mut self, node: NodeId) -> Option<u64> {
        let tokens = self.without_slots(node).iter().map(|id| self.at(*id).key.len()).sum();
        if tokens < LEAST_LOAD {
            return None;
        }
        self.rekey(node, |node| node.pinned = true);
        Some(tokens)
    }

    /// Ends [`Self::begin_load`]: gives its nodes their `slots` and locks them until the load is seen to have
    /// ended. With too few slots everything stays as it was.
    pub fn end_load(&mut self, node: NodeId, slots: &Runs) {
        self.rekey(node, |node| node.pinned = false);
        let path = self.without_slots(node);
        let tokens: u64 = path.iter().map(|id| self.at(*id).key.len()).sum();
        if tokens == 0 || slots.len() < tokens {
            return;
        }
        let mut rest = slots.cursor();
        for id in path.into_iter().rev() {
            let len = self.at(id).key.len();
            self.adopt(id, rest.limit(len).rest());
            rest.advance(len);
        }
        self.lock(node);
        if let Some(tier) = &mut self.host {
            tier.queued.push(node);
        }
    }

    /// `node` and its ancestors as far as they have no slots, lowest first.
    fn without_slots(&self, node: NodeId) -> Vec<NodeId> {
        let (mut path, mut at) = (Vec::new(), node);
        while !self.at(at).is_resident() {
            path.push(at);
            at = self.at(at).parent;
        }
        path
    }

    /// The host's part of a match that ends in `node`.
    ///
    /// Source: SGLang `HiRadixCache.match_prefix`.
    pub(super) fn host_hit(&self, node: NodeId) -> HostHit {
        let mut hit = HostHit { node, len: 0 };
        hit.len = self.without_slots(node).iter().map(|id| self.at(*id).key.len()).sum();
        while hit.node != NodeId::ROOT && !self.at(hit.node).has_copy() {
            hit.node = self.at(hit.node).parent;
        }
        hit
    }

    /// Gives a node without slots some.
    pub(super) fn adopt(&mut self, id: NodeId, slots: Runs) {
        self.evictable += slots.len();
        let parent = self.at(id).parent;
        self.rekey(id, |node| node.slots = slots);
        self.rekey(parent, |node| node.resident_children += 1);
    }

    /// Counts an insert that passed a node, and copies the node when it was passed often enough. Without a
    /// host tier only later releases count.
    ///
    /// Source: SGLang `HiRadixCache._inc_hit_count`; 0.5.23 `UnifiedTreeCore._inc_hit_count_and_check`.
    pub(super) fn count_hit(&mut self, id: NodeId) {
        let threshold = match &self.host {
            Some(tier) => tier.write_policy.hits(),
            None => (self.options.clock == TreeClock::PerNode).then_some(u32::MAX),
        };
        let Some(threshold) = threshold else { return };
        self.rekey(id, |node| node.hits = node.hits.saturating_add(1));
        let node = self.at(id);
        if node.hits < threshold || node.has_copy() || self.copy(id) == 0 {
            return;
        }
        self.lock(id);
        if let Some(tier) = &mut self.host {
            tier.writing.push(id);
        }
    }

    /// Copies a node. Returns the host slots that it took; 0 where they could not be had.
    ///
    /// Source: SGLang `HiRadixCache.write_backup`.
    fn copy(&mut self, id: NodeId) -> u64 {
        let tokens = self.at(id).key.len();
        let mut taken = self.take_host(tokens);
        if taken.is_none() {
            self.evict_copies(tokens);
            taken = self.take_host(tokens);
        }
        let host = taken.unwrap_or_default();
        let stored = host.len();
        self.nodes[id.index()].host = host;
        self.tell(HostEvent::BackedUp { tokens, stored });
        stored
    }

    fn take_host(&mut self, tokens: u64) -> Option<Runs> {
        self.host.as_mut()?.free.take_front(tokens)
    }

    fn tell(&mut self, event: HostEvent) {
        if let Some(tier) = &mut self.host {
            tier.events.push(event);
        }
    }

    /// Gives copies of leaves without slots up, whole nodes, until at least `asked` host slots are free
    /// again or none is left.
    ///
    /// Source: SGLang `HiRadixCache.evict_host`.
    fn evict_copies(&mut self, asked: u64) {
        let mut freed = 0;
        while freed < asked {
            let Some((_, id)) = self.host.as_mut().and_then(|tier| tier.copies.pop_first()) else {
                break;
            };
            let copy = std::mem::take(&mut self.nodes[id.index()].host);
            freed += copy.len();
            if let Some(tier) = &mut self.host {
                tier.free.push_back(&copy);
            }
            self.remove(id);
        }
        self.tell(HostEvent::Evicted { asked, freed });
    }

    /// [`RadixTree::evict`] with a host tier. Nodes that are copied on the way count when the copy is made,
    /// and give their slots up last.
    ///
    /// Source: SGLang `HiRadixCache.evict`.
    pub(super) fn evict_tiered(&mut self, asked: u64) -> Vec<Runs> {
        let back = self.host.as_ref().is_some_and(|it| it.write_policy == WritePolicy::WriteBack);
        let (mut freed, mut tokens, mut copied) = (Vec::new(), 0, Vec::new());
        while tokens < asked {
            let Some((key, id)) = self.leaves.pop_first() else { break };
            let len = self.at(id).key.len();
            if !self.at(id).has_copy() && !back {
                self.drop_copies_below(id);
                freed.push(self.remove(id));
            } else if self.at(id).has_copy() {
                self.leave_residents(id);
                freed.push(self.take_slots(id));
            } else if self.copy(id) > 0 {
                self.leave_residents(id);
                copied.push(id);
            } else {
                self.leaves.insert((key, id));
                if let Some(tier) = &mut self.host {
                    tier.out_of_room = true;
                }
                break;
            }
            tokens += len;
        }
        freed.extend(copied.into_iter().map(|id| self.take_slots(id)));
        freed
    }

    /// The parent of a node no longer counts it among those that have slots.
    fn leave_residents(&mut self, id: NodeId) {
        let parent = self.at(id).parent;
        self.rekey(parent, |node| node.resident_children -= 1);
    }

    /// Takes the slots of a node that has a copy.
    fn take_slots(&mut self, id: NodeId) -> Runs {
        let mut slots = Runs::new();
        self.rekey(id, |node| slots = std::mem::take(&mut node.slots));
        self.evictable -= slots.len();
        slots
    }

    /// Removes everything below a node, all of it without slots. Its host slots are lost.
    fn drop_copies_below(&mut self, id: NodeId) {
        let mut left: Vec<NodeId> =
            std::mem::take(&mut self.nodes[id.index()].children).into_values().collect();
        while let Some(id) = left.pop() {
            let policy = self.options.eviction;
            let node = &mut self.nodes[id.index()];
            if let (Some(key), Some(tier)) = (policy.copy_key(node), &mut self.host) {
                tier.copies.remove(&(key, id));
            }
            node.key = Runs::new();
            node.host = Runs::new();
            left.extend(std::mem::take(&mut node.children).into_values());
            self.unused.push(id);
        }
    }
}
