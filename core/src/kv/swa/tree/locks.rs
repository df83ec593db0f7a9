//! Locks: a request's whole path keeps its full slots, the last window of it its window slots too.

use super::{SwaTree, node::Mark};
use crate::kv::NodeId;

impl SwaTree {
    /// Locks a node and its path for the full pool, and from the node upward until a window is covered for
    /// the window pool. Returns where that ended; `None` where the path is shorter.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.inc_lock_ref`.
    pub fn lock(&mut self, node: NodeId) -> Option<Mark> {
        let (mut at, mut covered, mut mark) = (node, 0, None);
        while at != NodeId::ROOT {
            self.lock_full(at);
            if covered < self.window {
                covered += self.lock_window(at);
                if covered >= self.window {
                    mark = Some(self.mark(at));
                }
            }
            at = self.at(at).parent;
        }
        mark
    }

    /// Takes back one [`Self::lock`], given what that returned.
    ///
    /// Source: SGLang 0.5.8 `SWARadixCache.dec_lock_ref`.
    pub fn unlock(&mut self, node: NodeId, mark: Option<Mark>) {
        let (mut at, mut in_window) = (node, true);
        while at != NodeId::ROOT {
            self.unlock_full(at);
            if in_window {
                self.unlock_window(at);
                in_window = mark.is_none() || self.at(at).mark != mark;
            }
            at = self.at(at).parent;
        }
    }

    fn mark(&mut self, id: NodeId) -> Mark {
        if let Some(mark) = self.at(id).mark {
            return mark;
        }
        self.marks += 1;
        let mark = Mark(self.marks);
        self.nodes[id.index()].mark = Some(mark);
        mark
    }

    fn lock_full(&mut self, id: NodeId) {
        let node = self.at(id);
        if node.full_locks == 0 {
            let len = node.key.len();
            self.evictable.full -= len;
            self.protected.full += len;
        }
        self.change(id, |node| node.full_locks = node.full_locks.saturating_add(1));
    }

    fn unlock_full(&mut self, id: NodeId) {
        let node = self.at(id);
        if node.full_locks == 1 {
            let len = node.key.len();
            self.evictable.full += len;
            self.protected.full -= len;
        }
        self.change(id, |node| node.full_locks = node.full_locks.saturating_sub(1));
    }

    /// Returns the node's length.
    fn lock_window(&mut self, id: NodeId) -> u64 {
        let node = self.at(id);
        let len = node.key.len();
        if node.window_locks == 0 {
            self.evictable.window -= len;
            self.protected.window += len;
        }
        self.change(id, |node| node.window_locks = node.window_locks.saturating_add(1));
        len
    }

    fn unlock_window(&mut self, id: NodeId) {
        let node = self.at(id);
        if node.window_locks == 1 {
            let len = node.key.len();
            self.evictable.window += len;
            self.protected.window -= len;
        }
        self.change(id, |node| node.window_locks = node.window_locks.saturating_sub(1));
    }
}
