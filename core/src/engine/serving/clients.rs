//! Who sends requests, as the engine sees them.

use crate::{
    sched::{Finish, NewRequest, RequestId},
    units::Nanos,
};

/// How a request's tokens are chosen; decides what its sampling allocates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Sampling {
    /// Greedy or by probability.
    pub choice: SamplingChoice,
    /// Logprobs of the output are asked for.
    pub output_logprobs: bool,
    /// Presence or frequency penalties are asked for.
    pub penalties: bool,
}

impl Sampling {
    /// What a batch with both needs.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            choice: self.choice.max(other.choice),
            output_logprobs: self.output_logprobs || other.output_logprobs,
            penalties: self.penalties || other.penalties,
        }
    }
}

/// How the next token is chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum SamplingChoice {
    /// The most likely one (temperature 0).
    #[default]
    Greedy,
    /// By temperature alone.
    Temperature,
    /// By temperature, cut by top-k or top-p.
    TopKTopP,
    /// By temperature, cut by min-p.
    MinP,
}

/// A request on its way in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When it arrives.
    pub at: Nanos,
    /// What arrives.
    pub request: NewRequest,
    /// How its tokens are chosen.
    pub sampling: Sampling,
}

/// The clients of a server. Deterministic: what they send depends on what they were told, and on nothing
/// else.
pub trait Clients {
    /// Takes the next request that arrives at `now` or before, in order of arrival.
    fn take(&mut self, now: Nanos) -> Option<Arrival>;

    /// When the next request arrives, unless something finishes before; `None`: none will.
    fn next_at(&self) -> Option<Nanos>;

    /// A request is over, after so many output tokens; a closed loop may send its next one, and what waits
    /// for its answer may be sent.
    fn finished(&mut self, request: RequestId, finish: Finish, outputs: u64, now: Nanos);

    /// Whether every request was sent.
    fn is_done(&self) -> bool;
}
