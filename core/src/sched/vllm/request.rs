//! Requests inside the scheduler.

use super::cache::Sequence;
use crate::sched::{EosRule, RequestId};

/// A request's place in the [`Slab`]; another request that has the place later has another number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Idx {
    at: usize,
    number: u64,
}

/// Where a request stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    /// It was never admitted.
    Waiting,
    /// It runs.
    Running,
    /// It ran, gave its blocks back and waits again.
    Preempted,
    /// It ended, or was given up.
    Over,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    /// How many arrived before.
    pub(super) number: u64,
    pub(super) status: Status,
    /// Smaller goes first.
    pub(super) priority: i64,
    /// Limit of new tokens (`max_tokens`).
    pub(super) limit: u64,
    pub(super) output_len: u64,
    pub(super) eos: EosRule,
    pub(super) sequence: Sequence,
    /// Outputs that were scheduled and are not known (`num_output_placeholders`).
    pub(super) placeholders: u64,
    /// Tokens in flight that were scheduled before a preemption.
    pub(super) stale: u64,
    /// Whether its latest tokens do not reach its end yet, so that none is sampled.
    pub(super) prefilling: bool,
}

impl Request {
    /// Outputs that the scheduler knows of.
    pub(super) const fn outputs(&self) -> u64 {
        self.sequence.known - self.sequence.prompt
    }

    /// Prompt and the most that it may make.
    pub(super) const fn most(&self) -> u64 {
        self.sequence.prompt.saturating_add(self.limit)
    }

    /// Order by priority: smaller first, then first come.
    pub(super) const fn order(&self) -> (i64, u64) {
        (self.priority, self.number)
    }
}

/// All requests that are open, and places of some that are over.
#[derive(Clone, Default, Debug)]
pub(super) struct Slab {
    entries: Vec<Request>,
    unused: Vec<usize>,
}

impl std::ops::Index<Idx> for Slab {
    type Output = Request;

    fn index(&self, at: Idx) -> &Request {
        &self.entries[at.at]
    }
}

impl std::ops::IndexMut<Idx> for Slab {
    fn index_mut(&mut self, at: Idx) -> &mut Request {
        &mut self.entries[at.at]
    }
}

impl Slab {
    pub(super) fn add(&mut self, request: Request) -> Idx {
        let number = request.number;
        match self.unused.pop() {
            Some(at) => {
                self.entries[at] = request;
                Idx { at, number }
            }
            None => {
                self.entries.push(request);
                Idx { at: self.entries.len() - 1, number }
            }
        }
    }

    /// Whether the request is open.
    pub(super) fn is_open(&self, at: Idx) -> bool {
        self[at].number == at.number && self[at].status != Status::Over
    }

    /// Closes a request; its place is used again.
    pub(super) fn close(&mut self, at: Idx) {
        self[at].status = Status::Over;
        self.unused.push(at.at);
    }
}
