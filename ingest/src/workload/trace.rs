//! A trace as it is kept: a few dozen bytes a row, block ids as runs, dependencies in a list of their own.

use super::Format;
use plimsoll_core::units::Nanos;
use std::{collections::BTreeMap, num::NonZeroU32};

/// Most rows of a trace: their numbers, and the token ids that go by them, stay apart.
pub const MAX_ROWS: usize = 10_000_000;
/// Most tokens of one prompt or answer.
pub const MAX_TOKENS: u64 = 1 << 30;
/// Block ids from here on are numbered anew, in the order in which they come.
const PLAIN_IDS: u64 = 1 << 39;
/// Most tokens of a block.
pub const MAX_BLOCK_SIZE: u64 = 1 << 16;

/// Consecutive block ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// First id, below 2^40.
    pub first: u64,
    /// How many.
    pub len: u32,
}

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// When it is due, since the first row; where it waits for others, not before this.
    pub at: Nanos,
    /// Tokens of its own: the whole prompt, or what it adds to the history of `after_turn`.
    pub input: u32,
    /// Tokens of its answer.
    pub output: u32,
    /// Limit that its client asked for, where the trace says so.
    pub max_tokens: Option<NonZeroU32>,
    /// The row whose prompt and answer stand before its own tokens.
    pub after_turn: Option<NonZeroU32>,
    /// Namespace of the prefix cache; 0 for the common one.
    pub namespace: u32,
    /// End of its runs among all block runs.
    blocks_end: u32,
}

impl Row {
    /// Index of the row whose prompt and answer stand before its own tokens.
    #[must_use]
    pub fn history(&self) -> Option<usize> {
        self.after_turn.map(|row| row.get() as usize - 1)
    }
}

/// What of another row a row waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Trigger {
    /// It is sent.
    Dispatch,
    /// It is answered, or given up.
    Finish,
}

/// One row waits for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Link {
    /// Index of the row that waits.
    pub row: u32,
    /// Index of the row that it waits for.
    pub on: u32,
    /// For what.
    pub trigger: Trigger,
    /// Time between.
    pub delay: Nanos,
}

/// A workload that was read from a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// Format of the file.
    pub format: Format,
    /// Tokens of a block; 0 where the trace has no block ids.
    pub block_size: u64,
    /// In the order of the file.
    pub rows: Vec<Row>,
    /// Who waits for whom, by the row that waits.
    pub links: Vec<Link>,
    /// Priorities of the rows that have one.
    pub priorities: BTreeMap<u32, i64>,
    /// Requests that were under way together when the file was recorded, where only this is known of when
    /// they were sent.
    pub concurrency: Option<u64>,
    blocks: Vec<BlockRun>,
}

impl Trace {
    /// Runs of the block ids of a row; they may be fewer than its tokens need.
    #[must_use]
    pub fn blocks(&self, row: usize) -> &[BlockRun] {
        let end = |row: &Row| row.blocks_end as usize;
        let from = row.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, end);
        let to = self.rows.get(row).map_or(from, end);
        self.blocks.get(from..to).unwrap_or_default()
    }

    /// Bytes that it takes, without what the lists have in reserve.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.rows.len() * size_of::<Row>()
            + self.blocks.len() * size_of::<BlockRun>()
            + self.links.len() * size_of::<Link>()
    }
}

/// One row, as a reader found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewRow<'a> {
    /// On the clock of the file.
    pub at: Nanos,
    pub input: u32,
    pub output: u32,
    pub max_tokens: Option<NonZeroU32>,
    pub blocks: &'a [u64],
    pub history: Option<u32>,
    pub namespace: u32,
    pub priority: Option<i64>,
}

/// A trace under construction.
#[derive(Clone, Debug)]
pub(super) struct Builder {
    trace: Trace,
    renamed: BTreeMap<u64, u64>,
}

impl Builder {
    pub(super) const fn new(format: Format) -> Self {
        let trace = Trace {
            format,
            block_size: 0,
            rows: Vec::new(),
            links: Vec::new(),
            priorities: BTreeMap::new(),
            concurrency: None,
            blocks: Vec::new(),
        };
        Self { trace, renamed: BTreeMap::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.trace.rows.len()
    }

    pub(super) const fn set_block_size(&mut self, size: u64) {
        self.trace.block_size = size;
    }

    pub(super) const fn set_concurrency(&mut self, most: Option<u64>) {
        self.trace.concurrency = most;
    }

    pub(super) fn row(&self, index: u32) -> Option<&Row> {
        self.trace.rows.get(index as usize)
    }

    /// Adds a row and answers its index.
    pub(super) fn push(&mut self, row: NewRow<'_>) -> u32 {
        let index = u32::try_from(self.trace.rows.len()).unwrap_or(u32::MAX);
        self.push_blocks(row.blocks);
        if let Some(priority) = row.priority {
            self.trace.priorities.insert(index, priority);
        }
        self.trace.rows.push(Row {
            at: row.at,
            input: row.input,
            output: row.output,
            max_tokens: row.max_tokens,
            after_turn: row.history.and_then(|row| NonZeroU32::new(row + 1)),
            namespace: row.namespace,
            blocks_end: u32::try_from(self.trace.blocks.len()).unwrap_or(u32::MAX),
        });
        index
    }

    fn push_blocks(&mut self, ids: &[u64]) {
        let start = self.trace.blocks.len();
        for id in ids {
            let id = self.plain(*id);
            match self.trace.blocks.get_mut(start..).and_then(<[_]>::last_mut) {
                Some(run) if run.first + u64::from(run.len) == id => run.len += 1,
                _ => self.trace.blocks.push(BlockRun { first: id, len: 1 }),
            }
        }
    }

    /// Small ids are kept, so that runs stay runs; hashes are numbered in the order of coming.
    fn plain(&mut self, id: u64) -> u64 {
        if id < PLAIN_IDS {
            return id;
        }
        let next = PLAIN_IDS + self.renamed.len() as u64;
        *self.renamed.entry(id).or_insert(next)
    }

    pub(super) fn link(&mut self, link: Link) {
        self.trace.links.push(link);
    }

    /// Lets the clock begin at the first row, and puts the links in order.
    pub(super) fn finish(mut self) -> Trace {
        let first = self.trace.rows.iter().map(|row| row.at).min().unwrap_or_default();
        for row in &mut self.trace.rows {
            row.at = Nanos(row.at.0 - first.0);
        }
        self.trace.links.sort_unstable();
        self.trace.links.dedup();
        self.trace.rows.shrink_to_fit();
        self.trace.blocks.shrink_to_fit();
        self.trace
    }
}
