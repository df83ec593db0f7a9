//! PyTorch's caching allocator as an exact algorithm, over any source of segments.
//!
//! Rounding, best fit, splitting, growing ranges, graph pools, other streams, garbage collection and
//! the order of what is tried before a request fails are those of torch 2.1 to 2.15. Decisions follow
//! logical addresses, never pointers, so that they are the same everywhere.

mod block;
mod capture;
mod cycle;
mod expandable;
mod free_set;
mod malloc;
mod oom;
mod options;
mod player;
mod pool;
mod release;
mod restore;
mod size;
mod source;
mod stats;
mod streams;
mod trace;
mod verify;
mod view;

use std::collections::{BTreeMap, VecDeque};

use block::{Block, Blocks, Segments, State};
use pool::{Pool, PrivatePool};
use trace::Trace;

pub use oom::{OutOfMemory, ProcessUse, format_size};
pub use options::{
    Divisions, ExpandableSegments, OptionError, OptionProblem, Options, TorchVersion,
};
pub use player::TapeStopped;
pub use pool::{CaptureScope, PoolId};
pub use restore::RestoreError;
pub use size::{
    LARGE_SEGMENT, MIN_BLOCK, OWN_SEGMENT, ROUND_LARGE, SMALL_MAX, SMALL_SEGMENT, SizeClass,
    rounded_size, segment_size,
};
pub use source::{CountingSource, SegmentAddress, SegmentSource, SourceError};
pub use stats::{Stat, Stats};
pub use streams::EventMark;
pub use trace::{Action, Event, History};
pub use verify::Broken;
pub use view::Place;

/// A stream; 0 is the default stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct StreamId(pub u64);

/// A block that the program holds. Ids are never reused, so one that was freed is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlockId {
    index: u32,
    generation: u32,
}

/// What orders blocks of equal size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AddressOrder {
    /// Segments in the order of their creation: the same decisions on every machine.
    #[default]
    Logical,
    /// The source's own addresses; only for the replay of foreign traces.
    Source,
}

/// How an allocator starts.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its options.
    pub options: Options,
    /// Total memory of the device that programs see, bytes: bounds fractions and growing ranges.
    pub device_total: u64,
    /// Order among equals.
    pub order: AddressOrder,
    /// How much history is kept.
    pub history: History,
}

impl Setup {
    /// Default options, logical addresses, no history.
    #[must_use]
    pub fn new(device_total: u64) -> Self {
        Self {
            options: Options::default(),
            device_total,
            order: AddressOrder::Logical,
            history: History::Off,
        }
    }
}

/// Why a request failed. Every failure but [`MallocError::Lost`] leaves blocks as they are; what
/// was cached may have gone back to the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MallocError {
    /// Not enough memory, after everything was tried.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// Zero bytes: torch answers a null pointer before it asks the allocator.
    #[error("a request of 0 bytes does not reach the allocator")]
    Zero,
    /// The rounded size does not fit 64 bits, or addresses have run out.
    #[error("a request of {0} bytes cannot be addressed")]
    TooLarge(u64),
    /// The source failed for good.
    #[error("device lost: {0}")]
    Lost(String),
}

/// A mistake of the caller; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A block that was freed already, or belongs to another allocator.
    #[error("the block is not allocated")]
    NotAllocated,
    /// A pool that no capture has begun, or that is being torn down.
    #[error("no such pool")]
    NoSuchPool,
    /// [`PoolId::DEFAULT`] where a graph pool is asked for.
    #[error("the default pool is not a graph pool")]
    DefaultPool,
    /// Cached memory cannot go back while a graph is captured.
    #[error("a capture is under way")]
    CaptureUnderWay,
}

/// Why cached memory could not be given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// See [`Misuse`].
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The source failed; what was released before stays released.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Where the first logical segment begins; like the addresses that a driver gives.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// Default pools by index.
const SMALL_POOL: u32 = 0;
const LARGE_POOL: u32 = 1;

/// The allocator of one device.
///
/// The source is lent to each call that may need it, so that one machine can serve many allocators.
///
/// ```
/// use plimsoll_core::memory::caching_allocator::{
///     CachingAllocator, CountingSource, Setup, StreamId,
/// };
/// let mut device = CountingSource::new(1 << 30);
/// let mut cache = CachingAllocator::new(Setup::new(1 << 30));
/// let a = cache.malloc(&mut device, 100, StreamId(0))?;
/// assert_eq!(cache.stats().allocated.current, 512);
/// assert_eq!(cache.stats().reserved.current, 2 << 20);
/// cache.free(a)?;
/// cache.empty_cache(&mut device)?;
/// assert_eq!(device.free(), 1 << 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CachingAllocator {
    options: Options,
    order: AddressOrder,
    device_total: u64,
    limit: Option<u64>,
    blocks: Blocks,
    segments: Segments,
    pools: Vec<Pool>,
    vacant_pools: Vec<u32>,
    private: BTreeMap<PoolId, PrivatePool>,
    captures: Vec<(PoolId, CaptureScope)>,
    /// Other streams that were recorded on a block, by its index.
    foreign: BTreeMap<u32, Vec<StreamId>>,
    /// Blocks that were freed while a capture was under way, in order.
    deferred: Vec<u32>,
    /// Outstanding events of each recording stream, in order.
    events: BTreeMap<StreamId, VecDeque<(u64, u32)>>,
    /// Up to which event a stream has got.
    reached: BTreeMap<StreamId, u64>,
    last_event: u64,
    next_ordinal: u64,
    next_address: u64,
    stats: Stats,
    trace: Trace,
}

impl CachingAllocator {
    /// An allocator that holds nothing.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut allocator = Self {
            options: Options::default(),
            order: setup.order,
            device_total: setup.device_total,
            limit: None,
            blocks: Blocks::default(),
            segments: Segments::default(),
            pools: vec![
                Pool::new(SizeClass::Small, PoolId::DEFAULT),
                Pool::new(SizeClass::Large, PoolId::DEFAULT),
            ],
            vacant_pools: Vec::new(),
            private: BTreeMap::new(),
            captures: Vec::new(),
            foreign: BTreeMap::new(),
            deferred: Vec::new(),
            events: BTreeMap::new(),
            reached: BTreeMap::new(),
            last_event: 0,
            next_ordinal: 0,
            next_address: FIRST_ADDRESS,
            stats: Stats::default(),
            trace: Trace::new(setup.history),
        };
        allocator.set_options(setup.options);
        allocator
    }

    /// Puts other options in force, as `torch.cuda.memory._set_allocator_settings` does; blocks that
    /// exist keep their kind.
    pub fn set_options(&mut self, options: Options) {
        if options.per_process_memory_fraction.is_some() {
            self.limit = self.limit_of(options.per_process_memory_fraction);
        }
        self.options = options;
    }

    /// Options in force.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Limits what may be reserved to `int(fraction × total)` (`set_per_process_memory_fraction`);
    /// `None` lifts the limit. Fractions outside 0 to 1 are clamped.
    pub fn set_memory_fraction(&mut self, fraction: Option<f64>) {
        self.limit = self.limit_of(fraction);
    }

    fn limit_of(&self, fraction: Option<f64>) -> Option<u64> {
        fraction.map(|f| (f.clamp(0.0, 1.0) * self.device_total as f64) as u64)
    }

    /// Bytes that may be reserved, when a fraction is set.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Counters.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sets every peak to its current value.
    pub const fn reset_peaks(&mut self) {
        self.stats.reset_peaks();
    }

    /// Time of the entries that follow in the history, microseconds of the run.
    pub const fn set_time_us(&mut self, now_us: u64) {
        self.trace.now_us = now_us;
    }

    /// The history that is kept, oldest first.
    pub fn history(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.trace.entries().iter()
    }

    /// Takes the history out, oldest first; it goes on empty.
    pub fn take_history(&mut self) -> Vec<Event> {
        self.trace.take()
    }

    /// Whether garbage collection can act.
    pub(crate) const fn collects(&self) -> bool {
        self.limit.is_some() && self.options.garbage_collection_threshold > 0.0
    }

    fn live(&self, id: BlockId) -> Result<u32, Misuse> {
        match self.blocks.get(id.index) {
            Some(b) if b.generation == id.generation && b.state == State::Allocated => Ok(id.index),
            _ => Err(Misuse::NotAllocated),
        }
    }

    /// Puts a block into the free set of its pool.
    #[inline]
    fn insert_free(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        let pool = &mut self.pools[block.pool as usize];
        block.state = State::Free;
        block.searches = pool.searches;
        pool.free.insert(pool::FreeKey::of(block), index);
    }

    /// Takes a block out of the set that its state says.
    #[inline]
    fn take_out(&mut self, index: u32) {
        let block = &self.blocks[index];
        let pool = &mut self.pools[block.pool as usize];
        if block.state == State::Free {
            pool.free.remove(&pool::FreeKey::of(block));
        } else {
            pool.unmapped.remove(&(block.stream, block.address));
        }
    }

    /// Cuts `index` after `size` bytes; the rest becomes a block of its own, in no set, with the same
    /// state. Answers its index.
    fn cut(&mut self, index: u32, size: u64) -> u32 {
        let whole = self.blocks[index];
        let rest = self.blocks.add(Block {
            address: whole.address + size,
            size: whole.size - size,
            prev: index,
            requested: 0,
            ..whole
        });
        let low = &mut self.blocks[index];
        low.size = size;
        low.next = rest;
        if whole.next != block::NIL {
            self.blocks[whole.next].prev = rest;
        }
        rest
    }

    /// Joins a block, which is in no set, with neighbours in `state`, which leave theirs. Answers the
    /// index of the joined block (the lowest) and the bytes that came from neighbours.
    fn join(&mut self, index: u32, state: State) -> (u32, u64) {
        let mut merged = 0;
        let mut low = index;
        let block = self.blocks[index];
        if block.next != block::NIL && self.blocks[block.next].state == state {
            self.take_out(block.next);
            merged += self.absorb_next(index);
        }
        if block.prev != block::NIL && self.blocks[block.prev].state == state {
            self.take_out(block.prev);
            merged += self.blocks[block.prev].size;
            self.absorb_next(block.prev);
            low = block.prev;
        }
        (low, merged)
    }

    /// Makes the next block part of this one; answers the bytes gained.
    fn absorb_next(&mut self, index: u32) -> u64 {
        let next = self.blocks[index].next;
        let gone = self.blocks[next];
        let block = &mut self.blocks[index];
        block.size += gone.size;
        block.next = gone.next;
        if gone.next != block::NIL {
            self.blocks[gone.next].prev = index;
        }
        self.blocks.remove(next);
        gone.size
    }
}

#[cfg(test)]
mod tests;
