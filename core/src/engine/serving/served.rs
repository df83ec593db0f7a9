//! What became of a run, in numbers.

use super::rank_memory::OutOfMemoryAt;
use crate::{
    sched::{Decision, Fatal, Finish, Mode, Usage},
    units::{Bytes, Nanos},
};

/// How a run ended.
#[derive(Clone, PartialEq, Debug)]
pub enum ServeEnd {
    /// Every request was sent and answered.
    Finished,
    /// A pass found no memory.
    OutOfMemory(Box<PassFailure>),
    /// Requests wait, and nothing will ever make room for them.
    Hung,
    /// The limit of steps or of time was reached.
    Limit(Limit),
    /// The scheduler died of its own error.
    Fatal(Fatal),
    /// The device is gone.
    Lost(String),
    /// The user ended it.
    Interrupted,
}

impl ServeEnd {
    /// Name in the decision log.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::OutOfMemory(_) => "out_of_memory",
            Self::Hung => "hung",
            Self::Limit(Limit::Steps) => "max_steps",
            Self::Limit(Limit::Time) => "max_time",
            Self::Fatal(_) => "fatal",
            Self::Lost(_) => "lost",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Which limit ended a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Number of steps.
    Steps,
    /// Time of the run.
    Time,
}

/// A pass that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassFailure {
    /// The refused request.
    pub refused: OutOfMemoryAt,
    /// Kind of the pass.
    pub mode: Mode,
    /// New tokens of the pass.
    pub tokens: u64,
    /// Requests of the pass.
    pub requests: u64,
}

/// Counts and extremes of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Totals {
    /// Time of the end, since the server was ready.
    pub at: Nanos,
    /// Passes that were executed; also the number of the next one.
    pub steps: u64,
    /// Passes with prompt tokens.
    pub prefill_steps: u64,
    /// Passes of one token a request.
    pub decode_steps: u64,
    /// Requests that were answered.
    pub finished: u64,
    /// Requests that were given up.
    pub aborted: u64,
    /// Requests that were turned away.
    pub refused: u64,
    /// Retractions.
    pub retractions: u64,
    /// Slots taken back from the prefix cache.
    pub evicted_tokens: u64,
    /// Slots copied to the host tier.
    pub backed_up_tokens: u64,
    /// Slots loaded from the host tier.
    pub loaded_back_tokens: u64,
    /// Slots of the pool.
    pub pool_tokens: u64,
    /// Most slots in use.
    pub peak_used_tokens: u64,
    /// Slots of the window pool of a hybrid model; 0 without one.
    pub window_pool_tokens: u64,
    /// Most slots of it in use.
    pub peak_used_window_tokens: u64,
    /// Window slots taken back from the prefix cache.
    pub evicted_window_tokens: u64,
    /// Use at the end.
    pub usage: Usage,
    /// Least free memory of any rank after a pass; `None` before the first one.
    pub least_free: Option<Bytes>,
    /// Most that an allocator had live.
    pub peak_allocated: Bytes,
    /// Most that an allocator had reserved.
    pub peak_reserved: Bytes,
    /// Largest request to an allocator.
    pub largest_request: Bytes,
    /// Most new tokens of a pass.
    pub largest_chunk: u64,
}

impl Totals {
    pub(super) fn count(&mut self, decision: &Decision) {
        match decision {
            Decision::Finished { finish: Finish::Abort, .. } => self.aborted += 1,
            Decision::Finished { .. } => self.finished += 1,
            Decision::Refused { .. } => self.refused += 1,
            Decision::Retracted { .. } | Decision::Preempted { .. } => self.retractions += 1,
            Decision::Evicted { freed, window, .. } => {
                self.evicted_tokens += freed;
                self.evicted_window_tokens += window.map_or(0, |window| window.freed);
            }
            Decision::BackedUp { stored, .. } => self.backed_up_tokens += stored,
            Decision::LoadedBack { loaded, .. } => self.loaded_back_tokens += loaded,
            Decision::EvictedHost { .. }
            | Decision::Admitted { .. }
            | Decision::Deferred { .. }
            | Decision::Ratio { .. }
            | Decision::Lent { .. }
            | Decision::TakenBack { .. }
            | Decision::SlotsTaken { .. }
            | Decision::SlotsFreed { .. } => {}
        }
    }

    pub(super) fn see_free(&mut self, free: Bytes) {
        self.least_free = Some(self.least_free.map_or(free, |least| least.min(free)));
    }

    pub(super) fn see_request(&mut self, largest: Bytes) {
        self.largest_request = self.largest_request.max(largest);
    }

    pub(super) fn see(&mut self, usage: Usage) {
        self.usage = usage;
        self.peak_used_tokens = self.peak_used_tokens.max(usage.used());
        if let Some(window) = usage.window {
            self.window_pool_tokens = window.pool;
            self.peak_used_window_tokens = self.peak_used_window_tokens.max(window.used());
        }
    }
}

/// A run and its end.
#[derive(Clone, PartialEq, Debug)]
pub struct Served {
    /// How it ended.
    pub end: ServeEnd,
    /// Its numbers.
    pub totals: Totals,
}
