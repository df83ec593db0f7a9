//! What the allocator did, in order, as `torch.cuda.memory._record_memory_history` keeps it.

use std::collections::VecDeque;

use super::StreamId;

/// Kind of a trace entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// A request was served; size as requested.
    Alloc,
    /// The program gave a block back; size as requested.
    FreeRequested,
    /// The block can be used again; size as requested.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was given back to the device.
    SegmentFree,
    /// Part of a growing range was backed with memory.
    SegmentMap,
    /// Part of a growing range lost its memory.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed; the address is what the device had free, the size the rounded request.
    Oom,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 9] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
    ];

    /// As a snapshot spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
        }
    }
}

/// One thing the allocator did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What.
    pub action: Action,
    /// Where; for [`Action::Oom`] the bytes that the device had free.
    pub address: u64,
    /// Bytes; see [`Action`].
    pub size: u64,
    /// Stream of the request.
    pub stream: StreamId,
    /// Time as last set by [`super::CachingAllocator::set_time_us`].
    pub time_us: u64,
}

/// How much of the history is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum History {
    /// Nothing: the fastest.
    #[default]
    Off,
    /// The last entries; older ones are dropped.
    Last(usize),
    /// Everything.
    All,
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    keep: usize,
    pub(super) now_us: u64,
    ring: VecDeque<Event>,
}

impl Trace {
    pub(super) const fn new(history: History) -> Self {
        let keep = match history {
            History::Off => 0,
            History::Last(n) => n,
            History::All => usize::MAX,
        };
        Self { keep, now_us: 0, ring: VecDeque::new() }
    }

    pub(super) const fn is_off(&self) -> bool {
        self.keep == 0
    }

    #[inline]
    pub(super) fn push(&mut self, action: Action, address: u64, size: u64, stream: StreamId) {
        if self.keep == 0 {
            return;
        }
        if self.ring.len() >= self.keep {
            self.ring.pop_front();
        }
        self.ring.push_back(Event { action, address, size, stream, time_us: self.now_us });
    }

    pub(super) const fn entries(&self) -> &VecDeque<Event> {
        &self.ring
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ring).into()
    }
}
