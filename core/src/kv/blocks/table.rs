//! The blocks of one request in one KV group.

use super::{BlockId, NULL_BLOCK};

/// A place inside a prompt whose recurrent state is kept in a block of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Tokens up to there.
    pub tokens: u64,
    /// Entry of the table.
    pub column: usize,
}

/// A block table, with what is remembered beside it.
#[derive(Clone, Default, Debug)]
pub struct BlockTable {
    /// Blocks in the order of the tokens; null where none is needed.
    pub blocks: Vec<BlockId>,
    /// Leading blocks that the index has dealt with; `None` before the first.
    pub registered: Option<usize>,
    /// Entry of the latest recurrent state but one.
    pub last_state: Option<usize>,
    /// Leading entries that were given back and stay so.
    pub retired: usize,
    /// A state inside the prompt that is kept.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the engine knows a table of this request, be it empty.
    pub known: bool,
}

impl BlockTable {
    /// Whether an entry needs no block.
    #[must_use]
    pub fn is_null(&self, at: usize) -> bool {
        self.blocks.get(at).is_none_or(|id| *id == NULL_BLOCK)
    }

    /// Makes an entry null; returns its block if it had one.
    pub fn clear(&mut self, at: usize) -> Option<BlockId> {
        let entry = self.blocks.get_mut(at)?;
        let id = std::mem::replace(entry, NULL_BLOCK);
        (id != NULL_BLOCK).then_some(id)
    }
}
