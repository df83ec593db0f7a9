//! The blocks of all KV groups: holders, the free queue, and the index by prefix.

use super::{
    BlockId, FreeQueue, NULL_BLOCK,
    prefixes::{Prefix, Prefixes},
};
use crate::kv::Run;

/// Which keys are compared with each other: those of one group, and whether they name whole blocks of a
/// group whose blocks are larger than the unit of prefixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Space {
    /// The group.
    pub group: u32,
    /// Whole blocks of several units.
    pub coarse: bool,
}

/// What a block is found by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Where it counts.
    pub space: Space,
    /// The prefix.
    pub prefix: Prefix,
}

/// Where blocks go that nobody holds any more.
///
/// Source: vLLM `BlockPool.free_blocks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Behind the last (0.11.2, 0.19.0).
    Back,
    /// Those that can be found again behind the last, the others before the first (0.33.0).
    UnfoundFirst,
}

#[derive(Clone, Default, Debug)]
struct Block {
    holders: u32,
    key: Option<Key>,
    /// Further keys of a block that stands for several lengths.
    more: Vec<Key>,
    /// Tokens that its first key stands for.
    tokens: u64,
}

/// The block pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    /// Blocks that were ever taken, by number; the null block first.
    blocks: Vec<Block>,
    free: FreeQueue,
    release: Release,
    total: BlockId,
    /// Blocks that have a key, and those of them that are free.
    keyed: u32,
    keyed_free: u32,
    /// Names of prefixes.
    pub prefixes: Prefixes,
    trace: Option<Vec<Change>>,
}

/// A block whose contents began or ended. A free block that can still be found keeps its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A request writes it.
    Taken(BlockId),
    /// What it held is lost.
    Freed(BlockId),
}

impl BlockPool {
    /// `total` blocks, the null block among them.
    #[must_use]
    pub fn new(total: BlockId, release: Release) -> Self {
        Self {
            blocks: vec![Block::default()],
            free: FreeQueue::new(total),
            release,
            total,
            keyed: 0,
            keyed_free: 0,
            prefixes: Prefixes::default(),
            trace: None,
        }
    }

    /// Blocks in all, the null block included.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total as u64
    }

    /// Free blocks, those that can still be found among them.
    #[must_use]
    pub fn free(&self) -> u64 {
        u64::from(self.free.len())
    }

    /// Free blocks that can still be found.
    #[must_use]
    pub fn free_and_keyed(&self) -> u64 {
        u64::from(self.keyed_free)
    }

    /// Blocks that can be found.
    #[must_use]
    pub fn keyed(&self) -> u64 {
        u64::from(self.keyed)
    }

    /// Free blocks that can still be found, ascending.
    pub fn kept(&self) -> impl Iterator<Item = BlockId> + '_ {
        let kept = |(at, block): (usize, &Block)| {
            let free = block.holders == 0 && block.key.is_some();
            BlockId::try_from(at).ok().filter(|_| free)
        };
        self.blocks.iter().enumerate().filter_map(kept)
    }

    /// Free blocks in the order in which they will be taken.
    pub fn free_runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.free.runs()
    }

    /// The free block that will be taken last.
    #[must_use]
    pub fn last_free(&self) -> Option<BlockId> {
        self.free.last()
    }

    /// Holders of a block.
    #[must_use]
    pub fn holders(&self, id: BlockId) -> u32 {
        self.at(id).holders
    }

    /// The first key of a block.
    #[must_use]
    pub fn key(&self, id: BlockId) -> Option<Key> {
        self.at(id).key
    }

    /// Tokens that the first key stands for, if there is one.
    #[must_use]
    pub fn key_tokens(&self, id: BlockId) -> Option<u64> {
        let block = self.at(id);
        block.key.map(|_| block.tokens)
    }

    /// Keeps a record of blocks that change hands.
    pub fn keep_trace(&mut self) {
        self.trace.get_or_insert_with(Vec::new);
    }

    /// What changed hands since the last call; empty without [`Self::keep_trace`].
    pub fn take_trace(&mut self) -> Vec<Change> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes the first free block; nothing is found by it any more. Says whether something was.
    pub fn take(&mut self) -> Option<(BlockId, bool)> {
        let id = self.free.pop_front()?;
        if id as usize == self.blocks.len() {
            self.blocks.push(Block::default());
        }
        let found = self.at(id).key.is_some();
        if found {
            self.note(Change::Freed(id));
        }
        self.forget(id);
        self.blocks[id as usize].holders = 1;
        self.note(Change::Taken(id));
        Some((id, found))
    }

    /// One holder more for a block that was found.
    pub fn touch(&mut self, id: BlockId) {
        if id == NULL_BLOCK {
            return;
        }
        let block = &mut self.blocks[id as usize];
        block.holders += 1;
        if block.holders > 1 {
            return;
        }
        self.keyed_free -= u32::from(block.key.is_some());
        self.free.remove(id);
    }

    /// One holder less for each block, in the given order.
    pub fn release(&mut self, ids: impl Iterator<Item = BlockId>) {
        let mut to_front = Vec::new();
        for id in ids.filter(|id| *id != NULL_BLOCK) {
            let block = &mut self.blocks[id as usize];
            block.holders -= 1;
            if block.holders > 0 {
                continue;
            }
            let keyed = block.key.is_some();
            self.keyed_free += u32::from(keyed);
            match self.release {
                Release::UnfoundFirst if !keyed => to_front.push(id),
                _ => self.free.push_back(id),
            }
            if !keyed {
                self.note(Change::Freed(id));
            }
        }
        for id in to_front.into_iter().rev() {
            self.free.push_front(id);
        }
    }

    /// The block that was entered under a key first.
    #[must_use]
    pub fn find(&self, key: Key) -> Option<BlockId> {
        self.prefixes.find(key.prefix, key.space)
    }

    /// Whether a block is found by a key.
    #[must_use]
    pub fn has(&self, key: Key, id: BlockId) -> bool {
        self.prefixes.has(key.prefix, key.space, id)
    }

    /// Enters a held block under a key that stands for `tokens`; once only.
    pub fn enter(&mut self, key: Key, id: BlockId, tokens: u64) {
        if self.has(key, id) {
            return;
        }
        let block = &mut self.blocks[id as usize];
        if block.key.is_none() {
            block.key = Some(key);
            block.tokens = tokens;
            self.keyed += 1;
        } else {
            block.more.push(key);
        }
        self.prefixes.enter(key.prefix, key.space, id);
    }

    /// Takes a block out of the index.
    pub fn forget(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        let Some(key) = block.key.take() else { return };
        self.keyed -= 1;
        self.keyed_free -= u32::from(block.holders == 0);
        let more = std::mem::take(&mut block.more);
        for key in std::iter::once(key).chain(more) {
            self.prefixes.leave(key.prefix, key.space, id);
        }
    }

    fn at(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn note(&mut self, change: Change) {
        if let Some(trace) = &mut self.trace {
            trace.push(change);
        }
    }
}
