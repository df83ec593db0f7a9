//! The sets of free blocks: one pair of pools for everything, one more for each graph pool.

use std::collections::BTreeMap;

use super::{StreamId, block::Block, free_set::FreeSet, size::SizeClass};

/// A pool of CUDA graphs or a `MemPool`; `(0, 0)` is the default pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// Everything that is not allocated inside a capture.
    pub const DEFAULT: Self = Self(0, 0);
}

/// Order of the free set: the smallest block of the stream that is large enough comes first, the
/// lowest address among equals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FreeKey {
    pub(super) stream: StreamId,
    pub(super) size: u64,
    pub(super) address: u64,
}

impl FreeKey {
    #[inline]
    pub(super) const fn of(block: &Block) -> Self {
        Self { stream: block.stream, size: block.size, address: block.address }
    }

    /// The first key that can serve `size` bytes.
    #[inline]
    pub(super) const fn least(stream: StreamId, size: u64) -> Self {
        Self { stream, size, address: 0 }
    }
}

/// One pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) class: SizeClass,
    pub(super) owner: PoolId,
    pub(super) free: FreeSet,
    pub(super) unmapped: BTreeMap<(StreamId, u64), u32>,
    /// Searches so far, counted while garbage collection can act.
    pub(super) searches: u64,
    /// Segments and growing ranges that belong to it.
    pub(super) segments: u64,
}

impl Pool {
    pub(super) fn new(class: SizeClass, owner: PoolId) -> Self {
        Self {
            class,
            owner,
            free: FreeSet::default(),
            unmapped: BTreeMap::new(),
            searches: 0,
            segments: 0,
        }
    }
}

/// A pair of pools that captures share.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrivatePool {
    /// Graphs and handles that use it; at 0 its free segments can go back.
    pub(super) uses: u64,
    pub(super) small: u32,
    pub(super) large: u32,
    /// Whether an out-of-memory request may take its free blocks.
    pub(super) lends: bool,
}

/// Whose allocations a capture takes into its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CaptureScope {
    /// Every stream (the capturing thread allocates on several).
    AnyStream,
    /// One stream.
    Stream(StreamId),
}
