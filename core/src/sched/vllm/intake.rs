//! Requests come in, and are given up.

use super::{
    Idx, Status, VllmScheduler,
    config::{MAX_TOKENS, QueuePolicy},
    request::Request,
};
use crate::sched::{Decision, Finish, NewRequest, RequestId};

/// The engine's words for a prompt that leaves no room for an output; `None` for one that does.
///
/// Source: vLLM `InputProcessor`, prompt validation.
#[must_use]
pub fn too_long(prompt: u64, max_model_len: u64) -> Option<String> {
    let (requested, counted) = match prompt.cmp(&max_model_len) {
        std::cmp::Ordering::Less => return None,
        std::cmp::Ordering::Equal => (
            " plus the number of requested output tokens (at least 1)",
            " (prompt + requested output tokens)",
        ),
        std::cmp::Ordering::Greater => ("", ""),
    };
    Some(format!(
        "The decoder prompt (length {prompt}){requested} is longer than the maximum model length of \
         {max_model_len}. Make sure that `max_model_len` is no smaller than the number of text \
         tokens{counted}."
    ))
}

impl VllmScheduler {
    /// Checks and queues a request.
    ///
    /// Source: vLLM `Scheduler.add_request`.
    pub(super) fn receive(&mut self, new: NewRequest) {
        if let Some(code) = self.unfit(&new) {
            self.log.push(Decision::Refused { request: new.id, code });
            return;
        }
        let room = self.config.max_model_len - new.prompt.len();
        let sequence = self.cache.sequence(&new.prompt, new.namespace);
        let request = Request {
            id: new.id,
            number: self.arrived,
            status: Status::Waiting,
            priority: new.priority.unwrap_or(0),
            limit: new.max_new_tokens.unwrap_or(room),
            output_len: new.output_len,
            eos: new.eos,
            sequence,
            placeholders: 0,
            stale: 0,
            prefilling: true,
        };
        self.arrived += 1;
        let at = self.requests.add(request);
        self.by_id.insert(new.id, at);
        self.enqueue_last(at);
    }

    /// What the front end lets nobody send.
    fn unfit(&self, new: &NewRequest) -> Option<&'static str> {
        match () {
            () if new.prompt.is_empty() => Some("empty_prompt"),
            () if new.prompt.len() >= self.config.max_model_len.min(MAX_TOKENS) => {
                Some("prompt_too_long")
            }
            () => self.by_id.contains_key(&new.id).then_some("duplicate_id"),
        }
    }

    /// Puts a request behind those that go before it.
    fn enqueue_last(&mut self, at: Idx) {
        let place = match self.config.policy {
            QueuePolicy::Fcfs => self.waiting.len(),
            QueuePolicy::Priority => self.place_by_order(at),
        };
        self.waiting.insert(place, at);
    }

    /// Puts a request that waited before to the front, as far as the policy lets it.
    pub(super) fn enqueue_first(&mut self, at: Idx) {
        let place = match self.config.policy {
            QueuePolicy::Fcfs => 0,
            QueuePolicy::Priority => self.place_by_order(at),
        };
        self.waiting.insert(place, at);
    }

    fn place_by_order(&self, at: Idx) -> usize {
        let order = self.requests[at].order();
        self.waiting.partition_point(|other| self.requests[*other].order() < order)
    }

    /// Gives a request up: its blocks are free at once, and its outstanding result counts for nothing.
    ///
    /// Source: vLLM `Scheduler.finish_requests`.
    pub(super) fn give_up(&mut self, id: RequestId) {
        let Some(at) = self.by_id.get(&id).copied() else { return };
        self.running.retain(|other| *other != at);
        self.waiting.retain(|other| *other != at);
        self.end(at, Finish::Abort);
    }

    /// Ends a request, whose place in the queues the caller sees to.
    pub(super) fn end(&mut self, at: Idx, finish: Finish) {
        let request = &mut self.requests[at];
        let (id, outputs) = (request.id, request.outputs());
        self.cache.free(&mut request.sequence);
        self.cache.forget(&mut request.sequence);
        self.requests.close(at);
        self.by_id.remove(&id);
        self.untold.push(id);
        self.tell_slots(id);
        self.tell_evicted();
        self.log.push(Decision::Finished { request: id, outputs, finish });
    }
}
