//! What is evicted: leaves for full slots, any node for window slots.

use super::{
    super::PerPool,
    SwaTree,
    node::{Node, Window},
};
use crate::kv::{NodeId, Runs, radix::ChildKey};

/// Slots that the tree gives up, in the order of giving.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// A node is gone: its full slots, and the window slots that they still have.
    Node(Runs),
    /// A node became a tombstone: its window slots.
    Window(Runs),
}

impl SwaTree {
    /// Gives up at least so much of each pool, if there is so much that nobody uses: first the least
    /// recently used leaves until enough full slots are gone, which count for both pools; then, while too
    /// few window slots are gone, the least recently used node of the window list, of which an inner one
    /// stays as a tombstone. A tombstone that lost its last child goes with it.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.evict`.
    pub fn evict(&mut self, asked: PerPool) -> Vec<Evicted> {
        let (mut out, mut gone) = (Vec::new(), PerPool::default());
        while gone.full < asked.full {
            let Some((_, leaf)) = self.free_leaves.first().copied() else { break };
            let len = self.at(leaf).key.len();
            gone = gone + PerPool { full: len + self.remove_leaf(leaf, &mut out), window: len };
        }
        while gone.window < asked.window {
            let Some((_, id)) = self.free_windows.first().copied() else { break };
            gone.window += self.at(id).key.len();
            if self.at(id).children.is_empty() {
                self.remove_leaf(id, &mut out);
            } else {
                self.bury_window(id, &mut out);
            }
        }
        out
    }

    /// An inner node gives up its window slots.
    fn bury_window(&mut self, id: NodeId, out: &mut Vec<Evicted>) {
        out.push(Evicted::Window(self.at(id).slots.clone()));
        self.evictable.window -= self.at(id).key.len();
        self.change(id, |node| node.window = Window::Tombstone);
    }

    /// Removes a leaf, and tombstones above it that are left without a child. Returns the tokens of those.
    fn remove_leaf(&mut self, leaf: NodeId, out: &mut Vec<Evicted>) -> u64 {
        let (mut above, mut tokens) = (self.remove(leaf, out), 0);
        while self.at(above).is_tombstone() && self.at(above).is_free_leaf() {
            tokens += self.at(above).key.len();
            above = self.remove(above, out);
        }
        tokens
    }

    /// Removes a node without children; returns its parent.
    fn remove(&mut self, id: NodeId, out: &mut Vec<Evicted>) -> NodeId {
        self.unlist(id);
        let gone = Node::new(0, NodeId::ROOT, Runs::new(), Runs::new());
        let node = std::mem::replace(&mut self.nodes[id.index()], gone);
        self.evictable.full -= node.key.len();
        if !node.is_tombstone() {
            self.evictable.window -= node.key.len();
        }
        let first = ChildKey::of(node.namespace, node.key.cursor(), self.page_size);
        self.change(node.parent, |parent| {
            parent.children.remove(&first);
        });
        self.unused.push(id);
        out.push(Evicted::Node(node.slots));
        node.parent
    }
}
