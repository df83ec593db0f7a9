//! What a turn looked at, for tests, logs and explanations: more than its decisions.

use super::cache::NewBlocks;
use crate::sched::RequestId;

/// Why a request has a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowKind {
    /// It ran before.
    Running,
    /// It was admitted for the first time.
    New,
    /// It was admitted again after a preemption.
    Resumed,
}

/// A request's tokens of a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scheduled {
    /// Who.
    pub request: RequestId,
    /// Why.
    pub kind: RowKind,
    /// Tokens that were computed before, or found.
    pub computed: u64,
    /// New tokens.
    pub tokens: u64,
    /// New blocks by group; of an admitted request its tables tell more.
    pub blocks: Vec<NewBlocks>,
}

/// What the latest turn looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TurnDetail {
    /// Whether anything was decided: without work, nothing is.
    pub scheduled: bool,
    /// Rows in their order.
    pub rows: Vec<Scheduled>,
    /// Looks into the prefix cache and the tokens found.
    pub lookups: Vec<(RequestId, u64)>,
    /// Preempted requests.
    pub preempted: Vec<RequestId>,
    /// Requests whose end the workers are told of.
    pub told: Vec<RequestId>,
}
