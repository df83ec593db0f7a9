//! Nodes of the tree.

use std::collections::BTreeMap;

use super::super::runs::{Cursor, Run, Runs};

/// A node of the tree; stays valid until the node is evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(u32);

impl NodeId {
    /// The root: no tokens, never evicted.
    pub const ROOT: Self = Self(0);

    pub(in crate::kv) fn at(index: usize) -> Self {
        // More nodes than this do not fit in memory.
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(in crate::kv) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a child is found by: its namespace and first page. Page size 1: the first token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::kv) struct ChildKey {
    /// First: it tells most keys apart.
    head: Run,
    namespace: u64,
    /// The page's other runs; nearly always none.
    more: Vec<Run>,
}

impl ChildKey {
    pub(in crate::kv) fn of(namespace: u64, ids: Cursor<'_>, page: u64) -> Self {
        let mut ids = ids.limit(page);
        let head = ids.head().unwrap_or(Run { first: 0, len: 0 });
        ids.advance(head.len);
        let more = if ids.left() == 0 { Vec::new() } else { ids.rest().runs().to_vec() };
        Self { head, namespace, more }
    }
}

/// A run of tokens with its slots.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) namespace: u64,
    pub(super) parent: NodeId,
    pub(super) children: BTreeMap<ChildKey, NodeId>,
    /// Children that have slots.
    pub(super) resident_children: u32,
    pub(super) key: Runs,
    /// One slot a token; none in a node whose slots were evicted and whose host copy stayed.
    pub(super) slots: Runs,
    /// Host slots of its copy; none without one.
    pub(super) host: Runs,
    /// Being loaded: its host copy must stay.
    pub(super) pinned: bool,
    /// Inserts that passed it, where they are counted.
    pub(super) hits: u32,
    pub(super) locks: u32,
    pub(super) priority: i64,
    pub(super) accessed: u64,
    pub(super) created: u64,
    /// Order of joining the parent.
    pub(super) ordinal: u64,
}

impl Node {
    pub(super) fn root() -> Self {
        let mut root = Self::leaf(0, NodeId::ROOT, Runs::new(), Runs::new(), i64::MIN);
        root.locks = 1;
        root
    }

    pub(super) fn leaf(
        namespace: u64,
        parent: NodeId,
        key: Runs,
        slots: Runs,
        priority: i64,
    ) -> Self {
        Self {
            namespace,
            parent,
            children: BTreeMap::new(),
            resident_children: 0,
            key,
            slots,
            host: Runs::new(),
            pinned: false,
            hits: 0,
            locks: 0,
            priority,
            accessed: 0,
            created: 0,
            ordinal: 0,
        }
    }

    /// Whether its tokens have slots. The root has neither.
    pub(super) const fn is_resident(&self) -> bool {
        self.slots.len() == self.key.len()
    }

    pub(super) const fn has_copy(&self) -> bool {
        !self.host.is_empty()
    }
}
