//! What is evicted first.

use super::{
    RadixTree,
    node::{ChildKey, Node, NodeId},
};
use crate::kv::runs::Runs;

/// Order of eviction among unlocked leaves (`--radix-eviction-policy`).
///
/// Source: SGLang `mem_cache/evict_policy.py`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionPolicy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Fewest hits first, then least recently used. In 0.5.8 only a tree with a host tier counts hits; in
    /// others this is the least recently used.
    Lfu,
    /// Nodes of fewer than two hits first, then least recently used. In releases near 0.5.23.
    Slru,
    /// Oldest first.
    Fifo,
    /// Most recently used first.
    Mru,
    /// Youngest first.
    Filo,
    /// Lowest priority first, then least recently used.
    Priority,
}

/// Hits from which on [`EvictionPolicy::Slru`] protects a node. Source: SGLang 0.5.23 `SLRUStrategy`, its
/// default.
const SLRU_PROTECTED: u32 = 2;

/// Smallest first.
pub(super) type LeafKey = (i64, i64);

impl EvictionPolicy {
    /// Place in the order of giving slots up; `None` for a node that cannot now. Children without slots
    /// do not keep it.
    pub(super) fn leaf_key(self, node: &Node) -> Option<LeafKey> {
        let can = node.locks == 0 && node.resident_children == 0 && node.is_resident();
        can.then(|| self.order(node))
    }

    /// Place in the order of giving a host copy up; `None` for a node that cannot now.
    pub(super) fn copy_key(self, node: &Node) -> Option<LeafKey> {
        let can = !node.is_resident() && node.children.is_empty() && !node.pinned;
        can.then(|| self.order(node))
    }

    fn order(self, node: &Node) -> LeafKey {
        let time = |ticks: u64| i64::try_from(ticks).unwrap_or(i64::MAX);
        match self {
            Self::Lru => (0, time(node.accessed)),
            Self::Lfu => (i64::from(node.hits), time(node.accessed)),
            Self::Slru => (i64::from(node.hits >= SLRU_PROTECTED), time(node.accessed)),
            Self::Fifo => (0, time(node.created)),
            Self::Mru => (0, -time(node.accessed)),
            Self::Filo => (0, -time(node.created)),
            Self::Priority => (node.priority, time(node.accessed)),
        }
    }
}

impl RadixTree {
    /// Removes unlocked leaves, whole, until at least `asked` tokens are gone or none is left; a parent that
    /// loses its last child becomes a leaf. Returns their slots, node by node. With a host tier, nodes with
    /// a copy stay without slots.
    ///
    /// Source: SGLang `RadixCache.evict`.
    pub fn evict(&mut self, asked: u64) -> Vec<Runs> {
        if self.host.is_some() {
            return self.evict_tiered(asked);
        }
        let (mut freed, mut tokens) = (Vec::new(), 0);
        while tokens < asked {
            let Some((_, id)) = self.leaves.pop_first() else { break };
            tokens += self.at(id).key.len();
            freed.push(self.remove(id));
        }
        freed
    }

    /// Removes a leaf that has left the orders of eviction.
    pub(super) fn remove(&mut self, id: NodeId) -> Runs {
        let node = &mut self.nodes[id.index()];
        let (parent, namespace) = (node.parent, node.namespace);
        let (key, slots) = (std::mem::take(&mut node.key), std::mem::take(&mut node.slots));
        self.evictable -= slots.len();
        let first = ChildKey::of(namespace, key.cursor(), self.options.page_size);
        let resident = u32::from(!slots.is_empty());
        self.rekey(parent, |node| {
            node.children.remove(&first);
            node.resident_children -= resident;
        });
        self.unused.push(id);
        slots
    }
}
