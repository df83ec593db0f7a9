//! What is evicted first.

use super::{
    RadixTree,
    node::{ChildKey, Node, NodeId},
};
use crate::kv::runs::Runs;

/// Order of eviction among unlocked leaves (`--radix-eviction-policy`).
///
/// Source: SGLang `mem_cache/evict_policy.py`. `lfu` counts hits that the plain tree never raises, so it is
/// `lru`; from 0.5.23 they are counted, which is not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionPolicy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Oldest first.
    Fifo,
    /// Most recently used first.
    Mru,
    /// Youngest first.
    Filo,
    /// Lowest priority first, then least recently used.
    Priority,
}

/// Smallest first.
pub(super) type LeafKey = (i64, i64);

impl EvictionPolicy {
    /// Place in the order; `None` for a node that cannot be evicted now.
    pub(super) fn leaf_key(self, node: &Node) -> Option<LeafKey> {
        if node.locks > 0 || !node.children.is_empty() {
            return None;
        }
        let time = |ticks: u64| i64::try_from(ticks).unwrap_or(i64::MAX);
        Some(match self {
            Self::Lru => (0, time(node.accessed)),
            Self::Fifo => (0, time(node.created)),
            Self::Mru => (0, -time(node.accessed)),
            Self::Filo => (0, -time(node.created)),
            Self::Priority => (node.priority, time(node.accessed)),
        })
    }
}

impl RadixTree {
    /// Removes unlocked leaves, whole, until at least `asked` tokens are gone or none is left; a parent that
    /// loses its last child becomes a leaf. Returns their slots, node by node.
    ///
    /// Source: SGLang `RadixCache.evict`.
    pub fn evict(&mut self, asked: u64) -> Vec<Runs> {
        let (mut freed, mut tokens) = (Vec::new(), 0);
        while tokens < asked {
            let Some((_, id)) = self.leaves.pop_first() else { break };
            tokens += self.at(id).key.len();
            freed.push(self.remove(id));
        }
        freed
    }

    /// Removes a leaf that has left the order of eviction.
    fn remove(&mut self, id: NodeId) -> Runs {
        let node = &mut self.nodes[id.index()];
        let (parent, namespace) = (node.parent, node.namespace);
        let (key, slots) = (std::mem::take(&mut node.key), std::mem::take(&mut node.slots));
        self.evictable -= key.len();
        let first = ChildKey::of(namespace, key.cursor(), self.options.page_size);
        self.rekey(parent, |node| {
            node.children.remove(&first);
        });
        self.unused.push(id);
        slots
    }
}
