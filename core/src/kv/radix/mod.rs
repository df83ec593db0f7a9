//! The prefix cache: a tree whose nodes hold runs of token ids with their slots.
//!
//! Nodes that a request uses are locked, with their whole path. Unlocked leaves are evicted whole, in the
//! order of a strategy, until enough is free. Time is logical: it ticks with the calls, so that no two
//! leaves share a time and the order of eviction is exact.

mod evict;
mod host;
#[cfg(test)]
mod host_tests;
mod node;
#[cfg(test)]
mod tests;
mod weight;

pub use evict::EvictionPolicy;
pub use host::{HostEvent, HostHit, HostTierOptions, WritePolicy};
pub(in crate::kv) use node::ChildKey;
pub use node::NodeId;
pub(in crate::kv) use weight::heavy_first;

use std::collections::BTreeSet;

use evict::LeafKey;
use host::HostTier;
use node::Node;

use super::runs::{Cursor, Runs};

/// Ticks between two moments: ancestors are touched this much finer than calls.
const FINE: u64 = 100_000;

/// When the clock ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeClock {
    /// Once at the start of a match or an insert, for every node on the way; twice for a new node.
    /// Source: SGLang 0.5.8 `RadixCache`.
    PerCall,
    /// A match ticks at its end: the last node gets the tick, every ancestor a little less. An insert
    /// ticks for each node that it visits. Source: SGLang 0.5.23 `UnifiedRadixCache`.
    PerNode,
    /// For each node that a match or an insert visits; twice for a new node. Source: SGLang 0.5.8
    /// `HiRadixCache`.
    PerVisit,
}

/// How a tree is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeOptions {
    /// Tokens of a page: only whole pages are shared.
    pub page_size: u64,
    /// What is evicted first.
    pub eviction: EvictionPolicy,
    /// When the clock ticks.
    pub clock: TreeClock,
}

/// What a match found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// Deepest node of the match that has slots; the root where nothing matched.
    pub node: NodeId,
    /// Tokens from the root to its end.
    pub len: u64,
    /// What follows in the host tier.
    pub host: HostHit,
}

/// What an insert did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inserted {
    /// Node at the end of the inserted ids.
    pub node: NodeId,
    /// Tokens that had slots before: their given slots are duplicates.
    pub present: u64,
    /// Where each node that was there before ends; the last is `present`.
    pub ends: Vec<u64>,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct RadixTree {
    options: TreeOptions,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    /// Unlocked leaves in the order of eviction.
    leaves: BTreeSet<(LeafKey, NodeId)>,
    host: Option<HostTier>,
    clock: u64,
    made: u64,
    evictable: u64,
    protected: u64,
}

impl RadixTree {
    /// An empty tree.
    #[must_use]
    pub fn new(options: TreeOptions) -> Self {
        let options = TreeOptions { page_size: options.page_size.max(1), ..options };
        Self {
            options,
            nodes: vec![Node::root()],
            unused: Vec::new(),
            leaves: BTreeSet::new(),
            host: None,
            clock: 0,
            made: 0,
            evictable: 0,
            protected: 0,
        }
    }

    /// An empty tree with a host tier.
    #[must_use]
    pub fn with_host(options: TreeOptions, host: HostTierOptions) -> Self {
        Self { host: Some(HostTier::new(host)), ..Self::new(options) }
    }

    /// Tokens in nodes that nobody uses.
    #[must_use]
    pub const fn evictable(&self) -> u64 {
        self.evictable
    }

    /// Tokens in locked nodes.
    #[must_use]
    pub const fn protected(&self) -> u64 {
        self.protected
    }

    /// Slots from the root to the end of `node`, in order.
    #[must_use]
    pub fn slots_to(&self, node: NodeId) -> Runs {
        let mut path = Vec::new();
        let mut at = node;
        while at != NodeId::ROOT {
            path.push(at);
            at = self.at(at).parent;
        }
        let mut out = Runs::new();
        for id in path.into_iter().rev() {
            out.extend(&self.at(id).slots);
        }
        out
    }

    /// Longest cached prefix of `ids` in whole pages. Refreshes the time of what it meets and splits a node
    /// of which only a part matches.
    ///
    /// Source: SGLang `RadixCache.match_prefix`.
    pub fn match_prefix(&mut self, namespace: u64, ids: Cursor<'_>) -> Match {
        let page = self.options.page_size;
        let mut rest = ids.limit(ids.left() / page * page);
        let mut found = Match { node: NodeId::ROOT, len: 0, host: HostHit::NONE };
        if rest.left() == 0 {
            return found;
        }
        let begun = self.tick();
        while let Some(child) = self.child(found.node, namespace, rest) {
            match self.options.clock {
                TreeClock::PerCall => self.touch(child, begun),
                TreeClock::PerVisit => {
                    let time = self.tick();
                    self.touch(child, time);
                }
                TreeClock::PerNode => {}
            }
            let whole = self.at(child).key.len();
            let common = self.common(child, rest);
            found.len += common;
            rest.advance(common);
            if common < whole {
                found.node = self.split(child, common);
                break;
            }
            found.node = child;
        }
        if self.options.clock == TreeClock::PerNode {
            self.touch_upward(found.node);
        }
        self.with_host_hit(found)
    }

    /// A match that ends in a node with slots, and what follows in the host tier.
    fn with_host_hit(&self, mut found: Match) -> Match {
        if self.host.is_none() {
            return found;
        }
        found.host = self.host_hit(found.node);
        found.len -= found.host.len;
        while !self.at(found.node).is_resident() {
            found.node = self.at(found.node).parent;
        }
        found
    }

    /// Stores `slots` for `ids`, which must be whole pages. Nodes that have slots keep them, nodes of the host
    /// tier that lost theirs take the given ones; what is new becomes one leaf, unlocked. Priorities on the
    /// way are raised to `priority`. It is a hit of every node that had slots.
    ///
    /// Source: SGLang `RadixCache._insert_helper`, `UnifiedRadixCache.insert`, `HiRadixCache.insert`.
    pub fn insert(
        &mut self,
        namespace: u64,
        ids: Cursor<'_>,
        slots: Cursor<'_>,
        priority: i64,
    ) -> Inserted {
        self.insert_beyond(namespace, ids, slots, priority, 0)
    }

    /// [`Self::insert`] that is no hit of nodes which end at `counted` tokens or before.
    pub fn insert_beyond(
        &mut self,
        namespace: u64,
        ids: Cursor<'_>,
        slots: Cursor<'_>,
        priority: i64,
        counted: u64,
    ) -> Inserted {
        let len = ids.left();
        let (mut rest, mut slots) = (ids, slots);
        let per_call = self.options.clock == TreeClock::PerCall;
        let begun = self.tick();
        let mut done = Inserted { node: NodeId::ROOT, present: 0, ends: Vec::new() };
        while let Some(child) = self.child(done.node, namespace, rest) {
            let time = if per_call { begun } else { self.tick() };
            self.touch(child, time);
            let common = self.common(child, rest);
            let whole = self.at(child).key.len();
            done.node = if common < whole { self.split(child, common) } else { child };
            self.rekey(done.node, |node| node.priority = node.priority.max(priority));
            if self.at(done.node).is_resident() {
                done.present += common;
                if done.present > counted {
                    self.count_hit(done.node);
                }
                done.ends.push(done.present);
            } else {
                self.adopt(done.node, slots.limit(common).rest());
            }
            rest.advance(common);
            slots.advance(common);
        }
        if rest.left() > 0 {
            let key = ChildKey::of(namespace, rest, self.options.page_size);
            let leaf = Node::leaf(namespace, done.node, rest.rest(), slots.rest(), priority);
            done.node = self.attach(leaf, key);
            if len > counted {
                self.count_hit(done.node);
            }
        }
        done
    }

    /// Locks a node and its path: they are not evicted.
    ///
    /// Source: SGLang `RadixCache.inc_lock_ref`.
    pub fn lock(&mut self, node: NodeId) {
        self.walk_locks(node, |locks| locks.saturating_add(1));
    }

    /// Takes back one [`Self::lock`].
    ///
    /// Source: SGLang `RadixCache.dec_lock_ref`.
    pub fn unlock(&mut self, node: NodeId) {
        self.walk_locks(node, |locks| locks.saturating_sub(1));
    }

    fn walk_locks(&mut self, node: NodeId, change: impl Fn(u32) -> u32) {
        let mut at = node;
        while at != NodeId::ROOT {
            let (before, len) = (self.at(at).locks, self.at(at).key.len());
            let after = change(before);
            self.rekey(at, |node| node.locks = after);
            if before == 0 && after > 0 {
                self.evictable -= len;
                self.protected += len;
            } else if before > 0 && after == 0 {
                self.evictable += len;
                self.protected -= len;
            }
            at = self.at(at).parent;
        }
    }

    /// Visits the nodes in `weights` and their ancestors depth first: heavier children before lighter,
    /// equal ones in the order in which they joined their parent; a node after its children. The weight of
    /// a node is its own plus that of its children.
    ///
    /// Source: SGLang `SchedulePolicy._get_dfs_priority`, `_calc_weight`.
    #[must_use]
    pub fn heavy_first(&self, weights: &[(NodeId, u64)]) -> Vec<NodeId> {
        let children = |id| {
            let children = self.at(id).children.values();
            children.map(|child| (*child, self.at(*child).ordinal)).collect()
        };
        heavy_first(weights, |id| self.at(id).parent, children)
    }

    /// Every slot that the tree owns, in no order: for checks.
    #[must_use]
    pub fn all_slots(&self) -> Runs {
        // What was evicted left no slots behind.
        let runs = self.nodes.iter().flat_map(|node| node.slots.runs().iter().copied());
        runs.collect()
    }

    fn at(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock.saturating_mul(FINE)
    }

    fn child(&self, node: NodeId, namespace: u64, rest: Cursor<'_>) -> Option<NodeId> {
        let children = &self.at(node).children;
        if rest.left() == 0 || children.is_empty() {
            return None;
        }
        children.get(&ChildKey::of(namespace, rest, self.options.page_size)).copied()
    }

    /// Tokens of a node that `rest` shares, in whole pages.
    fn common(&self, node: NodeId, rest: Cursor<'_>) -> u64 {
        let common = self.at(node).key.cursor().common_len(rest);
        common / self.options.page_size * self.options.page_size
    }

    /// Changes a node and keeps its places in the orders of eviction right.
    fn rekey(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let policy = self.options.eviction;
        let node = &mut self.nodes[id.index()];
        let leaf = policy.leaf_key(node);
        let copy = self.host.as_ref().and_then(|_| policy.copy_key(node));
        change(node);
        move_in(&mut self.leaves, id, leaf, policy.leaf_key(node));
        if let Some(tier) = &mut self.host {
            move_in(&mut tier.copies, id, copy, policy.copy_key(node));
        }
    }

    fn touch(&mut self, id: NodeId, time: u64) {
        self.rekey(id, |node| node.accessed = time);
    }

    /// The last node gets a tick, each ancestor one fine step less.
    fn touch_upward(&mut self, node: NodeId) {
        let (mut at, mut time) = (node, self.tick());
        while at != NodeId::ROOT {
            self.touch(at, time);
            time = time.saturating_sub(1);
            at = self.at(at).parent;
        }
    }

    fn store(&mut self, node: Node) -> NodeId {
        match self.unused.pop() {
            Some(id) => {
                self.nodes[id.index()] = node;
                id
            }
            None => {
                let id = NodeId::at(self.nodes.len());
                self.nodes.push(node);
                id
            }
        }
    }

    /// Gives a new node its times.
    fn stamp(&mut self, node: &mut Node) {
        node.accessed = self.tick();
        node.created = self.tick();
    }

    fn attach(&mut self, mut leaf: Node, key: ChildKey) -> NodeId {
        self.stamp(&mut leaf);
        self.made += 1;
        leaf.ordinal = self.made;
        self.evictable += leaf.key.len();
        let parent = leaf.parent;
        let id = self.store(leaf);
        self.rekey(parent, |node| {
            node.children.insert(key, id);
            node.resident_children += 1;
        });
        // It was no leaf of the order before.
        if let Some(key) = self.options.eviction.leaf_key(self.at(id)) {
            self.leaves.insert((key, id));
        }
        id
    }

    /// Cuts a node after `at` tokens; the new upper part is returned, the lower part keeps its id, its time
    /// and its place in the order of eviction.
    fn split(&mut self, id: NodeId, at: u64) -> NodeId {
        let page = self.options.page_size;
        let node = &mut self.nodes[id.index()];
        let namespace = node.namespace;
        let key = ChildKey::of(namespace, node.key.cursor(), page);
        let (lower_key, lower_slots) = (node.key.split_off(at), node.slots.split_off(at));
        let upper_key = std::mem::replace(&mut node.key, lower_key);
        let upper_slots = std::mem::replace(&mut node.slots, lower_slots);
        let lower_host = node.host.split_off(at);
        let upper_host = std::mem::replace(&mut node.host, lower_host);
        let parent = node.parent;
        let mut upper = Node::leaf(namespace, parent, upper_key, upper_slots, node.priority);
        upper.host = upper_host;
        upper.hits = node.hits;
        upper.resident_children = u32::from(node.is_resident());
        upper.locks = node.locks;
        // The upper part takes its child's place among the siblings.
        upper.ordinal = node.ordinal;
        self.stamp(&mut upper);
        let lower_first = ChildKey::of(namespace, self.at(id).key.cursor(), page);
        upper.children.insert(lower_first, id);
        let upper = self.store(upper);
        self.nodes[parent.index()].children.insert(key, upper);
        self.nodes[id.index()].parent = upper;
        if self.options.clock == TreeClock::PerNode {
            let time = self.tick();
            self.touch(id, time);
        }
        upper
    }
}

/// Moves a node within an order, into it or out of it.
fn move_in(
    order: &mut BTreeSet<(LeafKey, NodeId)>,
    id: NodeId,
    before: Option<LeafKey>,
    after: Option<LeafKey>,
) {
    if before == after {
        return;
    }
    if let Some(key) = before {
        order.remove(&(key, id));
    }
    if let Some(key) = after {
        order.insert((key, id));
    }
}
