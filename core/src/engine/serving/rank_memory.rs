//! One rank's run-time memory: torch's caching allocator over the segments of a backend.

use crate::{
    backend::{Backend, BackendError, Place, RangeId, Rank, SegmentId},
    memory::{
        caching_allocator::{
            CachingAllocator, MallocError, OutOfMemory, SegmentAddress, SegmentSource, Setup,
            SourceError, StreamId, TapeStopped,
        },
        ledger::Account,
    },
    tape::{Name, Tape},
    units::Bytes,
};
use std::rc::Rc;

/// What the allocator took from the device or gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentChange {
    /// Taken: a segment, or memory mapped into a growing range.
    Taken(Bytes),
    /// Given back.
    Given(Bytes),
}

/// A pass that ran out of memory on one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemoryAt {
    /// Which rank.
    pub rank: Rank,
    /// The buffer that was asked for.
    pub buffer: Name,
    /// Torch's account of the failure.
    pub error: OutOfMemory,
}

/// Why a pass stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PassStopped {
    OutOfMemory(Box<OutOfMemoryAt>),
    Lost(String),
}

/// The allocator of one rank, and what it does to the device.
pub(super) struct RankMemory {
    rank: Rank,
    allocator: CachingAllocator,
    /// What the device answered in the latest pass. Allocators that were alike before it and got the same
    /// answers are alike behind it.
    answers: Vec<u64>,
}

impl RankMemory {
    pub(super) fn new(rank: Rank, setup: Setup) -> Self {
        Self { rank, allocator: CachingAllocator::new(setup), answers: Vec::new() }
    }

    /// What the device answered in the latest pass; empty: it was not asked anything.
    pub(super) fn answers(&self) -> &[u64] {
        &self.answers
    }

    /// Most that was live since the last call, and what is reserved now.
    pub(super) fn take_peak(&mut self) -> (Bytes, Bytes) {
        let stats = self.allocator.stats();
        let peak = (Bytes(stats.allocated.peak), Bytes(stats.reserved.current));
        self.allocator.reset_peaks();
        peak
    }

    /// Whether a pass that took nothing from the device and gave nothing back leaves the allocator as it was:
    /// blocks that were split are joined again. Garbage collection counts searches, and is another matter.
    pub(super) fn restores(&self) -> bool {
        !self.allocator.collects()
    }

    /// Plays the tapes of a pass one after the other. What one leaves lives until the last has been
    /// played, and is freed then.
    pub(super) fn play(
        &mut self,
        backend: &mut dyn Backend,
        tapes: &[Rc<Tape>],
        changes: &mut Vec<SegmentChange>,
    ) -> Result<(), PassStopped> {
        self.answers.clear();
        let answers = &mut self.answers;
        let mut source = RankSource { backend, rank: self.rank, changes, answers };
        let mut results = Vec::new();
        for tape in tapes {
            match self.allocator.play(&mut source, tape, StreamId(0)) {
                Ok(left) => results.extend(left),
                Err(stopped) => return Err(self.stopped(*stopped)),
            }
        }
        for (_, block) in results {
            // Handed out by the loop above.
            let freed = self.allocator.free(block);
            debug_assert_eq!(freed, Ok(()));
        }
        Ok(())
    }

    fn stopped(&self, stopped: TapeStopped) -> PassStopped {
        match stopped.error {
            MallocError::OutOfMemory(error) => PassStopped::OutOfMemory(Box::new(OutOfMemoryAt {
                rank: self.rank,
                buffer: stopped.name,
                error: *error,
            })),
            other => PassStopped::Lost(other.to_string()),
        }
    }
}

/// A rank's device as a source of segments; an address is the backend's own number.
struct RankSource<'a> {
    backend: &'a mut dyn Backend,
    rank: Rank,
    changes: &'a mut Vec<SegmentChange>,
    answers: &'a mut Vec<u64>,
}

impl RankSource<'_> {
    /// Notes whether the device did what was asked.
    fn noted<T>(&mut self, answer: Result<T, BackendError>) -> Result<T, SourceError> {
        self.answers.push(u64::from(answer.is_ok()));
        answer.map_err(source_error)
    }
}

fn source_error(error: BackendError) -> SourceError {
    match error {
        BackendError::OutOfMemory { .. } | BackendError::TooLarge { .. } => {
            SourceError::OutOfMemory
        }
        other => SourceError::Lost(other.to_string()),
    }
}

impl SegmentSource for RankSource<'_> {
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        let account = Account::Activations;
        let segment = self.backend.allocate(self.rank, account, Place::Device, Bytes(size));
        let segment = self.noted(segment)?;
        self.changes.push(SegmentChange::Taken(Bytes(size)));
        Ok(SegmentAddress(segment.0))
    }

    fn release(&mut self, segment: SegmentAddress, size: u64) -> Result<(), SourceError> {
        let released = self.backend.free(SegmentId(segment.0));
        self.noted(released)?;
        self.changes.push(SegmentChange::Given(Bytes(size)));
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        let reading = self.backend.memory(self.rank);
        let free = self.noted(reading)?.free.0;
        self.answers.push(free);
        Ok(free)
    }

    fn reserve(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        let range = self.backend.reserve(self.rank, Account::Activations, Bytes(size));
        Ok(SegmentAddress(self.noted(range)?.0))
    }

    fn map(&mut self, range: SegmentAddress, offset: u64, size: u64) -> Result<(), SourceError> {
        let mapped = self.backend.map(RangeId(range.0), Bytes(offset), Bytes(size));
        self.noted(mapped)?;
        self.changes.push(SegmentChange::Taken(Bytes(size)));
        Ok(())
    }

    fn unmap(&mut self, range: SegmentAddress, offset: u64, size: u64) -> Result<(), SourceError> {
        let unmapped = self.backend.unmap(RangeId(range.0), Bytes(offset), Bytes(size));
        self.noted(unmapped)?;
        self.changes.push(SegmentChange::Given(Bytes(size)));
        Ok(())
    }

    fn unreserve(&mut self, range: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        let given = self.backend.unreserve(RangeId(range.0));
        self.noted(given)
    }
}
