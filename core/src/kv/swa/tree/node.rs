//! Nodes of the tree.

use std::collections::BTreeMap;

use crate::kv::{NodeId, Runs, radix::ChildKey};

/// Where the window lock of a path ends; whoever locked to there unlocks to there.
///
/// Source: SGLang `TreeNode.swa_uuid`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark(pub(super) u64);

/// Whether a node's window slots exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Window {
    /// They do.
    Alive,
    /// They were given back; the full slots are kept (`swa_tombstone`).
    Tombstone,
}

/// A run of tokens with its full slots.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) namespace: u64,
    pub(super) parent: NodeId,
    pub(super) children: BTreeMap<ChildKey, NodeId>,
    pub(super) key: Runs,
    pub(super) slots: Runs,
    pub(super) window: Window,
    pub(super) full_locks: u32,
    pub(super) window_locks: u32,
    pub(super) mark: Option<Mark>,
    /// Place in both recency lists; larger is more recent.
    pub(super) used: u64,
    /// Order of joining the parent.
    pub(super) ordinal: u64,
}

impl Node {
    pub(super) fn new(namespace: u64, parent: NodeId, key: Runs, slots: Runs) -> Self {
        Self {
            namespace,
            parent,
            children: BTreeMap::new(),
            key,
            slots,
            window: Window::Alive,
            full_locks: 0,
            window_locks: 0,
            mark: None,
            used: 0,
            ordinal: 0,
        }
    }

    /// Locked for ever.
    pub(super) fn root() -> Self {
        let mut root = Self::new(0, NodeId::ROOT, Runs::new(), Runs::new());
        (root.full_locks, root.window_locks) = (1, 1);
        root
    }

    pub(super) fn is_tombstone(&self) -> bool {
        self.window == Window::Tombstone
    }

    /// Whether the full list may evict it: a leaf that nobody uses.
    pub(super) fn is_free_leaf(&self) -> bool {
        self.full_locks == 0 && self.children.is_empty()
    }

    /// Whether the window list may evict it.
    pub(super) fn has_free_window(&self) -> bool {
        self.window_locks == 0 && !self.is_tombstone()
    }
}
