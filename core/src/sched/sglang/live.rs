//! What a real model needs to know of a batch, and what it brings.

use super::{SglangScheduler, config::unsigned};
use crate::{
    kv::Runs,
    sched::{Made, RequestId},
};

impl SglangScheduler {
    /// Token ids of a request, prompt and outputs, in order; `None` when nobody has that number.
    #[must_use]
    pub fn ids(&self, request: RequestId) -> Option<&Runs> {
        self.by_id.get(&request).map(|at| &self.requests[*at].ids)
    }

    /// Slots of a request's tokens in order, those of the pass that was decided last included.
    #[must_use]
    pub fn slots(&self, request: RequestId) -> Option<&Runs> {
        self.by_id.get(&request).map(|at| &self.requests[*at].slots)
    }

    /// Tokens of the longest prompt that is computed.
    #[must_use]
    pub fn longest_prompt(&self) -> u64 {
        unsigned(self.config.max_req_input_len() - 1)
    }

    /// What a real model made in the pass whose results are due; told before
    /// [`complete`](crate::sched::Scheduler::complete). Without it the request's `output_len` speaks.
    pub fn bring(&mut self, made: Made) {
        if let Some(at) = self.by_id.get(&made.request).copied() {
            self.requests[at].made = Some(made);
        }
    }
}
