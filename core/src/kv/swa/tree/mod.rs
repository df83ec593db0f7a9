//! The prefix cache of a hybrid model.
//!
//! A node has its full slots for as long as it lives. Its window slots can go before: it is a *tombstone*
//! then, and a prefix ends usefully only where a whole window behind its end is alive. A leaf is never a
//! tombstone. What was used least recently is evicted first, in an order of its own for each pool: leaves
//! for the full pool, all nodes with window slots for the other.

mod evict;
mod locks;
mod node;
#[cfg(test)]
mod tests;

pub use evict::Evicted;
pub use node::Mark;

use std::collections::BTreeSet;

use node::{Node, Window};

use super::PerPool;
use crate::kv::{
    Cursor, HostHit, Match, NodeId, Runs,
    radix::{ChildKey, heavy_first},
};

/// What an insert is given beside the ids and their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Leading tokens whose slots the caller has from the tree, or keeps: nodes that end there or before
    /// are left alone.
    pub held: u64,
    /// Leading tokens whose window slots the caller gave back, in whole pages.
    pub window_freed: u64,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct SwaTree {
    page_size: u64,
    /// Tokens that a window layer sees.
    window: u64,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    /// Leaves that nobody uses, least recently used first.
    free_leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes with window slots that nobody uses, least recently used first.
    free_windows: BTreeSet<(u64, NodeId)>,
    clock: u64,
    made: u64,
    marks: u64,
    evictable: PerPool,
    protected: PerPool,
}

impl SwaTree {
    /// An empty tree.
    #[must_use]
    pub fn new(page_size: u64, window: u64) -> Self {
        Self {
            page_size: page_size.max(1),
            window,
            nodes: vec![Node::root()],
            unused: Vec::new(),
            free_leaves: BTreeSet::new(),
            free_windows: BTreeSet::new(),
            clock: 0,
            made: 0,
            marks: 0,
            evictable: PerPool::default(),
            protected: PerPool::default(),
        }
    }

    /// Tokens that nobody uses.
    #[must_use]
    pub const fn evictable(&self) -> PerPool {
        self.evictable
    }

    /// Tokens that requests have locked.
    #[must_use]
    pub const fn protected(&self) -> PerPool {
        self.protected
    }

    /// Full slots from the root to the end of `node`, in order.
    #[must_use]
    pub fn slots_to(&self, node: NodeId) -> Runs {
        let mut out = Runs::new();
        for id in self.path(node).into_iter().rev() {
            out.extend(&self.at(id).slots);
        }
        out
    }

    /// Every full slot that the tree owns, in no order: for checks.
    #[must_use]
    pub fn all_slots(&self) -> Runs {
        // What was evicted left no slots behind.
        self.nodes.iter().flat_map(|node| node.slots.runs().iter().copied()).collect()
    }

    /// Longest prefix of `ids`, in whole pages, that can be used: a window before its end is alive, or all
    /// of it is. Its path becomes the most recently used, the end more than the beginning. A node of which
    /// only a part matches is split.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.match_prefix`.
    pub fn match_prefix(&mut self, namespace: u64, ids: Cursor<'_>) -> Match {
        let mut rest = ids.limit(ids.left() / self.page_size * self.page_size);
        let mut here = Match { node: NodeId::ROOT, len: 0, host: HostHit::NONE };
        let mut best = here;
        // Tokens alive since the last tombstone; `None` before the first one.
        let mut alive: Option<u64> = None;
        while let Some(child) = self.child(here.node, namespace, rest) {
            let tombstone = self.at(child).is_tombstone();
            if tombstone {
                if self.covers(alive) {
                    best = here;
                }
                alive = Some(0);
            }
            let (whole, common) = (self.at(child).key.len(), self.common(child, rest));
            let node = if common < whole { self.split(child, common) } else { child };
            here = Match { node, len: here.len + common, host: HostHit::NONE };
            if !tombstone {
                alive = alive.map(|tokens| tokens + common);
            }
            rest.advance(common);
            if common < whole {
                break;
            }
        }
        if self.covers(alive) {
            best = here;
        }
        for id in self.path(best.node).into_iter().rev() {
            self.touch(id);
        }
        best
    }

    /// Stores `slots` for `ids`, which must be whole pages. Nodes that are there keep their slots, and the
    /// given ones are freed; a tombstone takes those that still have window slots instead and is alive
    /// again. The rest becomes a leaf, after a tombstone where window slots are gone. Returns what is to be
    /// freed, call by call.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache._insert_helper`.
    pub fn insert(
        &mut self,
        namespace: u64,
        ids: Cursor<'_>,
        slots: Cursor<'_>,
        taken: Taken,
    ) -> Vec<Runs> {
        let (mut rest, mut slots, mut freed) = (ids, slots, Vec::new());
        let (mut at, mut done) = (NodeId::ROOT, 0);
        while let Some(child) = self.child(at, namespace, rest) {
            self.touch(child);
            let (whole, common) = (self.at(child).key.len(), self.common(child, rest));
            at = if common < whole { self.split(child, common) } else { child };
            if taken.held < done + common {
                let gone = taken.window_freed.saturating_sub(done);
                self.meet(at, slots.limit(common), gone, &mut freed);
            }
            done += common;
            rest.advance(common);
            slots.advance(common);
        }
        let gone = taken.window_freed.saturating_sub(done);
        if 0 < gone && gone < rest.left() {
            at = self.attach(
                namespace,
                at,
                (rest.limit(gone), slots.limit(gone)),
                Window::Tombstone,
            );
            rest.advance(gone);
            slots.advance(gone);
        }
        if rest.left() > 0 {
            self.attach(namespace, at, (rest, slots), Window::Alive);
        }
        freed
    }

    /// Slots are given for a node that is there; the window slots of the first `gone` are gone.
    fn meet(&mut self, id: NodeId, given: Cursor<'_>, gone: u64, freed: &mut Vec<Runs>) {
        let len = given.left();
        if !self.at(id).is_tombstone() || gone >= len {
            freed.push(given.rest());
            return;
        }
        freed.push(self.at(id).slots.slice(gone, len));
        let mut kept = given;
        if gone > 0 {
            // The upper part stays a tombstone; the node itself is the lower part from here on.
            self.split(id, gone);
            freed.push(given.limit(gone).rest());
            kept.advance(gone);
        }
        self.evictable.window += kept.left();
        let slots = kept.rest();
        self.change(id, |node| {
            node.slots = slots;
            node.window = Window::Alive;
        });
    }

    /// Visits the nodes in `weights` and their ancestors depth first, heavier children before lighter (see
    /// [`crate::kv::RadixTree::heavy_first`]).
    #[must_use]
    pub fn heavy_first(&self, weights: &[(NodeId, u64)]) -> Vec<NodeId> {
        let children = |id| {
            let children = self.at(id).children.values();
            children.map(|child| (*child, self.at(*child).ordinal)).collect()
        };
        heavy_first(weights, |id| self.at(id).parent, children)
    }

    fn covers(&self, alive: Option<u64>) -> bool {
        alive.is_none_or(|tokens| tokens >= self.window)
    }

    /// From `node` up to a child of the root.
    fn path(&self, node: NodeId) -> Vec<NodeId> {
        let (mut path, mut at) = (Vec::new(), node);
        while at != NodeId::ROOT {
            path.push(at);
            at = self.at(at).parent;
        }
        path
    }

    fn at(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    fn child(&self, node: NodeId, namespace: u64, rest: Cursor<'_>) -> Option<NodeId> {
        if rest.left() == 0 {
            return None;
        }
        let key = ChildKey::of(namespace, rest, self.page_size);
        self.at(node).children.get(&key).copied()
    }

    /// Tokens of a node that `rest` shares, in whole pages.
    fn common(&self, node: NodeId, rest: Cursor<'_>) -> u64 {
        self.at(node).key.cursor().common_len(rest) / self.page_size * self.page_size
    }

    /// Takes a node out of the orders of eviction.
    fn unlist(&mut self, id: NodeId) {
        let used = self.at(id).used;
        self.free_leaves.remove(&(used, id));
        self.free_windows.remove(&(used, id));
    }

    /// Changes a node and keeps its places in the orders of eviction right.
    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let node = &mut self.nodes[id.index()];
        let before = (node.used, node.is_free_leaf(), node.has_free_window());
        change(node);
        let after = (node.used, node.is_free_leaf(), node.has_free_window());
        if before == after {
            return;
        }
        self.free_leaves.remove(&(before.0, id));
        self.free_windows.remove(&(before.0, id));
        if after.1 {
            self.free_leaves.insert((after.0, id));
        }
        if after.2 {
            self.free_windows.insert((after.0, id));
        }
    }

    /// Makes a node the most recently used.
    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let now = self.clock;
        self.change(id, |node| node.used = now);
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

    fn attach(
        &mut self,
        namespace: u64,
        parent: NodeId,
        (ids, slots): (Cursor<'_>, Cursor<'_>),
        window: Window,
    ) -> NodeId {
        let key = ChildKey::of(namespace, ids, self.page_size);
        let mut node = Node::new(namespace, parent, ids.rest(), slots.rest());
        node.window = window;
        self.made += 1;
        node.ordinal = self.made;
        self.evictable.full += node.key.len();
        if window == Window::Alive {
            self.evictable.window += node.key.len();
        }
        let id = self.store(node);
        self.touch(id);
        self.change(parent, |node| {
            node.children.insert(key, id);
        });
        id
    }

    /// Cuts a node after `at` tokens. The new upper part is returned, and takes the mark; the lower part
    /// keeps its id and is the most recently used, the upper part next.
    fn split(&mut self, id: NodeId, at: u64) -> NodeId {
        let page = self.page_size;
        let node = &mut self.nodes[id.index()];
        let key = ChildKey::of(node.namespace, node.key.cursor(), page);
        let (lower_key, lower_slots) = (node.key.split_off(at), node.slots.split_off(at));
        let lower_first = ChildKey::of(node.namespace, lower_key.cursor(), page);
        let upper_key = std::mem::replace(&mut node.key, lower_key);
        let upper_slots = std::mem::replace(&mut node.slots, lower_slots);
        let parent = node.parent;
        let mut upper = Node::new(node.namespace, parent, upper_key, upper_slots);
        upper.window = node.window;
        upper.full_locks = node.full_locks;
        upper.window_locks = node.window_locks;
        upper.mark = node.mark.take();
        // The upper part takes its child's place among the siblings.
        upper.ordinal = node.ordinal;
        upper.children.insert(lower_first, id);
        let upper = self.store(upper);
        self.nodes[parent.index()].children.insert(key, upper);
        self.nodes[id.index()].parent = upper;
        self.touch(upper);
        self.touch(id);
        upper
    }
}
