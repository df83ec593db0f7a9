//! Capture of CUDA graphs: what a private pool of the caching allocator takes for them, and how the
//! sum that is known of them divides.

use crate::{
    memory::caching_allocator::{
        CachingAllocator, CaptureScope, Misuse, PoolId, SegmentAddress, SegmentSource, Setup,
        SourceError, StreamId, TapeStopped,
    },
    tape::Tape,
    units::Bytes,
};

/// The graphs that one rank captures, with the segments that their private pool takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Capture {
    /// Captured batches, largest first, as the engine captures them.
    pub batches: Vec<u64>,
    /// Segments of the pool in the order of taking.
    pub pool_segments: Vec<Bytes>,
}

impl Capture {
    /// Captures `batches` (largest first) one after the other into one private pool, each by playing
    /// its tape: later graphs reuse what the largest took.
    ///
    /// Source: SGLang `CudaGraphRunner.capture` (largest first, one pool); torch
    /// `beginAllocateToPool`.
    ///
    /// # Errors
    ///
    /// [`CaptureFailed`]: only for a tape that no memory could hold.
    pub fn play(batches: Vec<u64>, tapes: &[Tape], total: Bytes) -> Result<Self, CaptureFailed> {
        let mut allocator = CachingAllocator::new(Setup::new(total.0));
        let mut taken = Taken::default();
        let pool = PoolId(1, 0);
        for tape in tapes {
            allocator.begin_capture(pool, CaptureScope::AnyStream)?;
            let left = allocator.play(&mut taken, tape, StreamId(0))?;
            for (_, block) in left {
                allocator.free(block)?;
            }
            allocator.end_capture(pool)?;
        }
        Ok(Self { batches, pool_segments: taken.sizes })
    }

    /// All segments of the pool.
    #[must_use]
    pub fn pool(&self) -> Bytes {
        self.pool_segments.iter().copied().sum()
    }

    /// Divides what is known of the graphs: segments of the pool first (the last one cut where they
    /// are more than is known), then the driver's own memory for the graphs.
    #[must_use]
    pub fn divide(&self, known: Bytes) -> Shares {
        let mut left = known;
        let mut pool = Vec::new();
        for segment in &self.pool_segments {
            let part = left.min(*segment);
            if part > Bytes::ZERO {
                pool.push(part);
            }
            left = left.saturating_sub(part);
        }
        Shares { pool, driver: left }
    }
}

/// How the memory of the graphs divides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// Segments of the private pool.
    pub pool: Vec<Bytes>,
    /// What the driver takes for the graphs themselves.
    pub driver: Bytes,
}

impl Shares {
    /// The driver's share of each graph: equal parts, the first takes the rest of the division.
    pub(super) fn by_graph(&self, batches: &[u64]) -> Vec<(u64, Bytes)> {
        let Some(count) = u64::try_from(batches.len()).ok().filter(|n| *n > 0) else {
            return Vec::new();
        };
        let (each, rest) = (self.driver.0 / count, self.driver.0 % count);
        let mut shares: Vec<_> = batches.iter().map(|batch| (*batch, Bytes(each))).collect();
        if let Some((_, first)) = shares.first_mut() {
            *first += Bytes(rest);
        }
        shares.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        shares
    }
}

/// A capture that could not be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureFailed {
    /// A request of a tape was refused.
    #[error(transparent)]
    Tape(#[from] Box<TapeStopped>),
    /// A block or a capture that the allocator does not know.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// A source without an end that keeps the sizes that were asked for.
#[derive(Default)]
struct Taken {
    sizes: Vec<Bytes>,
}

impl SegmentSource for Taken {
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        self.sizes.push(Bytes(size));
        Ok(SegmentAddress(self.sizes.len() as u64))
    }

    fn release(&mut self, _segment: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        Ok(u64::MAX)
    }

    fn reserve(&mut self, _size: u64) -> Result<SegmentAddress, SourceError> {
        Err(SourceError::OutOfMemory)
    }

    fn map(&mut self, _range: SegmentAddress, _offset: u64, _size: u64) -> Result<(), SourceError> {
        Err(SourceError::OutOfMemory)
    }

    fn unmap(
        &mut self,
        _range: SegmentAddress,
        _offset: u64,
        _size: u64,
    ) -> Result<(), SourceError> {
        Ok(())
    }

    fn unreserve(&mut self, _range: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        Ok(())
    }
}
