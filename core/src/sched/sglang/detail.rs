//! What a turn looked at, for tests, logs and explanations: more than its decisions.

use crate::{kv::Runs, sched::RequestId};

/// The budget of a prefill batch at a moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BudgetView {
    /// Slots left after all promises (`rem_total_tokens`); negative when they exceed the pool.
    pub rem_total: f64,
    /// Slots left after what this batch takes (`cur_rem_tokens`).
    pub cur_rem: i64,
    /// Tokens left of `max_prefill_tokens`.
    pub rem_input: i64,
    /// Tokens left of the chunk; `None` where prompts are not cut.
    pub rem_chunk: Option<i64>,
}

/// What the budget says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The next one may be looked at.
    Continue,
    /// No slot is left.
    NoToken,
    /// Another limit is reached.
    Other,
}

impl Verdict {
    /// SGLang's name (`AddReqResult`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::NoToken => "NO_TOKEN",
            Self::Other => "OTHER",
        }
    }
}

/// Why a request was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consideration {
    /// Its prompt goes on with this many tokens.
    Chunk(u64),
    /// It is next in the queue: the prefix that was found, and the answer.
    Queued(u64, Verdict),
}

/// A request that was looked at, and the budget after it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Considered {
    /// Who.
    pub request: RequestId,
    /// Why.
    pub what: Consideration,
    /// Budget after.
    pub budget: BudgetView,
}

/// Where a request of a prefill batch was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Who.
    pub request: RequestId,
    /// Row of the request table.
    pub row: u64,
    /// Slot of the first new token.
    pub first_slot: u64,
    /// Slot of the last new token.
    pub last_slot: u64,
}

/// An attempt to make room by priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preemption {
    /// For whom.
    pub request: RequestId,
    /// Who gave way; empty where nobody could.
    pub victims: Vec<RequestId>,
}

/// What the latest turn looked at.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TurnDetail {
    /// Budget at the start of the prefill attempt; `None` where none was made.
    pub budget: Option<BudgetView>,
    /// Requests in the order of being looked at.
    pub considered: Vec<Considered>,
    /// Rows and slots of the prefill part of the batch.
    pub placed: Vec<Placed>,
    /// Slots of the decode part, in batch order.
    pub decode_slots: Runs,
    /// What the host tier held of the prefixes of requests that were looked at, tokens; those of which it
    /// held nothing are left out.
    pub host_hits: Vec<(RequestId, u64)>,
    /// Attempts to preempt.
    pub preemptions: Vec<Preemption>,
}

impl TurnDetail {
    /// Nothing was looked at; lists keep their room.
    pub(super) fn clear(&mut self) {
        self.budget = None;
        self.considered.clear();
        self.placed.clear();
        self.decode_slots = Runs::new();
        self.host_hits.clear();
        self.preemptions.clear();
    }
}
