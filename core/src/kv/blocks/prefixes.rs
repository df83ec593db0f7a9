//! Names of prefixes: equal token sequences of whole units have one name, others never share one.
//!
//! Where the engine chains hashes, the contents themselves are kept in a tree, one node a unit. A node
//! lives as long as somebody holds it or a longer prefix.

use std::collections::BTreeMap;

use super::{BlockId, pool::Space};
use crate::kv::{Cursor, Run};

/// A prefix: all tokens from the start to the end of one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Prefix(u32);

/// What a unit holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Content {
    /// Nothing: the beginning of every sequence of a namespace.
    Root(u64),
    /// Consecutive ids from this one.
    From(u64),
    /// Any ids.
    Runs(Box<[Run]>),
}

impl Content {
    /// The next `unit` ids of a reader, which must have them.
    #[must_use]
    pub fn read(cursor: Cursor<'_>, unit: u64) -> Self {
        match cursor.head() {
            Some(run) if run.len >= unit => Self::From(run.first),
            _ => Self::Runs(cursor.limit(unit).rest().runs().into()),
        }
    }
}

#[derive(Clone, Debug)]
struct Node {
    parent: Option<Prefix>,
    content: Content,
    /// Longer prefixes by one unit, sequences that end here, and blocks that are found by it.
    holders: u32,
    /// Blocks that are found by it, in the order in which they were entered.
    blocks: Vec<(Space, BlockId)>,
}

/// All prefixes that somebody holds.
#[derive(Clone, Default, Debug)]
pub struct Prefixes {
    nodes: Vec<Node>,
    unused: Vec<u32>,
    names: BTreeMap<(Option<Prefix>, Content), Prefix>,
}

impl Prefixes {
    /// The empty prefix of a namespace; the caller holds it.
    pub fn root(&mut self, namespace: u64) -> Prefix {
        self.hold_named(None, Content::Root(namespace))
    }

    /// The prefix that is longer by one unit. The caller's hold goes over from `prefix` to it.
    pub fn extend(&mut self, prefix: Prefix, content: Content) -> Prefix {
        let next = self.hold_named(Some(prefix), content);
        self.release(prefix);
        next
    }

    /// Holds a prefix once more.
    pub fn hold(&mut self, prefix: Prefix) {
        self.nodes[prefix.0 as usize].holders += 1;
    }

    /// Gives a hold back; prefixes that nobody holds are forgotten.
    pub fn release(&mut self, prefix: Prefix) {
        let mut next = Some(prefix);
        while let Some(prefix) = next {
            let node = &mut self.nodes[prefix.0 as usize];
            node.holders -= 1;
            if node.holders > 0 {
                return;
            }
            next = node.parent;
            let content = std::mem::replace(&mut node.content, Content::Root(0));
            self.names.remove(&(next, content));
            self.unused.push(prefix.0);
        }
    }

    /// Prefixes that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn hold_named(&mut self, parent: Option<Prefix>, content: Content) -> Prefix {
        let key = (parent, content);
        if let Some(prefix) = self.names.get(&key).copied() {
            self.hold(prefix);
            return prefix;
        }
        if let Some(parent) = parent {
            self.hold(parent);
        }
        let node = Node { parent, content: key.1.clone(), holders: 1, blocks: Vec::new() };
        let prefix = match self.unused.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                Prefix(at)
            }
            None => {
                self.nodes.push(node);
                // As many as blocks and units of live requests: memory ends before 2^32.
                Prefix(u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.names.insert(key, prefix);
        prefix
    }

    /// The block that was entered first and is still there.
    pub(super) fn find(&self, prefix: Prefix, space: Space) -> Option<BlockId> {
        let blocks = &self.nodes[prefix.0 as usize].blocks;
        blocks.iter().find(|(of, _)| *of == space).map(|(_, id)| *id)
    }

    /// Whether a block is found by a prefix.
    pub(super) fn has(&self, prefix: Prefix, space: Space, id: BlockId) -> bool {
        self.nodes[prefix.0 as usize].blocks.contains(&(space, id))
    }

    /// Enters a block, which holds the prefix.
    pub(super) fn enter(&mut self, prefix: Prefix, space: Space, id: BlockId) {
        self.hold(prefix);
        self.nodes[prefix.0 as usize].blocks.push((space, id));
    }

    /// Takes a block out.
    pub(super) fn leave(&mut self, prefix: Prefix, space: Space, id: BlockId) {
        self.nodes[prefix.0 as usize].blocks.retain(|entry| *entry != (space, id));
        self.release(prefix);
    }
}
