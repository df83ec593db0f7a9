//! Requests come in, and are given up.

use super::{
    SglangScheduler,
    config::{MAX_POOL, PriorityOrder, TooLong, signed, unsigned},
    request::{Idx, Input, Request},
    swa::WindowState,
};
use crate::{
    kv::{HostHit, NodeId, Runs},
    sched::{Decision, Finish, Mode, NewRequest, RequestId},
};

/// Limit of new tokens of a request that names none.
const NO_LIMIT: i64 = 1 << 30;

impl SglangScheduler {
    /// Checks, shortens and queues a request.
    ///
    /// Source: SGLang `Scheduler.handle_generate_request`, `init_req_max_new_tokens`.
    pub(super) fn receive(&mut self, new: NewRequest) {
        if let Some(code) = self.unfit(&new) {
            self.log.push(Decision::Refused { request: new.id, code });
            return;
        }
        let request = self.shaped(new);
        let id = request.id;
        let at = self.requests.add(request);
        self.by_id.insert(id, at);
        self.enqueue(at, Entry::New);
    }

    /// What the front end lets nobody send.
    fn unfit(&self, new: &NewRequest) -> Option<&'static str> {
        if new.prompt.is_empty() {
            return Some("empty_prompt");
        }
        if new.prompt.len() > MAX_POOL {
            return Some("prompt_too_long");
        }
        self.by_id.contains_key(&new.id).then_some("duplicate_id")
    }

    /// The request with its limits. The limit of new tokens is set before the prompt's length is checked,
    /// so that a prompt which is too long gets a small one or, to 0.5.8, a negative one.
    fn shaped(&self, new: NewRequest) -> Request {
        let longest = self.config.max_req_len();
        let len = signed(new.prompt.len());
        let asked = new.max_new_tokens.map_or(NO_LIMIT, signed);
        let mut limit = asked.min(longest.saturating_sub(len).saturating_sub(1));
        if self.rules.limit_fits_pool() {
            let page = signed(self.config.page_size);
            let pool = signed(self.config.least_slots());
            // A prompt longer than the pool counts as the pool: the limit is 0 either way.
            let prompt = len.min(pool).unsigned_abs().next_multiple_of(self.config.page_size);
            limit = limit.max(0).min(pool - signed(prompt) - page - 1).max(0);
        }
        let (mut ids, mut input, mut logprob_start) = (new.prompt, Input::Given, new.logprob_start);
        let too_long = len >= self.config.max_req_input_len();
        let cut = self.config.max_req_input_len().max(1);
        if too_long && self.config.too_long == TooLong::Truncate {
            ids.truncate(unsigned(cut));
        }
        let spoiled = too_long && self.config.too_long == TooLong::Abort
            || logprob_start.is_some_and(|start| start > ids.len());
        if spoiled {
            (ids, input, logprob_start) = (Runs::of(0, 1), Input::Replaced, None);
        }
        Request {
            id: new.id,
            input,
            prompt_len: ids.len(),
            ids,
            outputs: 0,
            limit,
            output_len: new.output_len,
            eos: new.eos,
            logprob_start,
            priority: new.priority,
            namespace: new.namespace,
            finished: None,
            aborting: spoiled,
            slots: Runs::new(),
            fill: 0,
            extend: 0,
            prefix: 0,
            node: NodeId::ROOT,
            host: HostHit::NONE,
            inserted: 0,
            protected: 0,
            window: WindowState::default(),
            chunks: 0,
            retracted: false,
            row: None,
            entry: 0,
            in_flight: 0,
            made: None,
        }
    }

    /// Puts a request at the end of the queue, unless the queue is at its limit: then it, or with
    /// priorities the worst of all, is turned away.
    ///
    /// Source: SGLang `Scheduler._add_request_to_queue`, `_abort_on_queued_limit`.
    pub(super) fn enqueue(&mut self, at: Idx, entry: Entry) {
        if let Some(options) = self.config.priority {
            let worst = match options.order {
                PriorityOrder::LargerFirst => i64::MIN,
                PriorityOrder::SmallerFirst => i64::MAX,
            };
            self.requests[at].priority.get_or_insert(worst);
        }
        let limit = self.config.max_queued_requests;
        if limit.is_some_and(|limit| self.waiting.len() as u64 + 1 > limit) {
            match self.worse_than(at) {
                Some(place) => {
                    if let Some(victim) = self.waiting.remove(place) {
                        self.finish_waiting(victim);
                    }
                }
                None if entry == Entry::New => {
                    let (request, code) = (self.requests[at].id, "queue_full");
                    self.log.push(Decision::Refused { request, code });
                    self.by_id.remove(&request);
                    self.requests.bury(at);
                    return;
                }
                None => {
                    self.finish_waiting(at);
                    return;
                }
            }
        }
        self.entries += 1;
        self.requests[at].entry = self.entries;
        self.waiting.push_back(at);
    }

    /// The waiting request of the worst priority, the latest among equals, if the newcomer's is better.
    fn worse_than(&self, newcomer: Idx) -> Option<usize> {
        self.config.priority?;
        let rank = |at: Idx| self.rank(at);
        let worst = (0..self.waiting.len()).max_by_key(|place| {
            (rank(self.waiting[*place]), self.requests[self.waiting[*place]].entry)
        })?;
        (rank(newcomer) < rank(self.waiting[worst])).then_some(worst)
    }

    /// Place by priority alone: smaller goes first.
    pub(super) fn rank(&self, at: Idx) -> i128 {
        let priority = i128::from(self.requests[at].priority.unwrap_or(0));
        match self.config.priority.map(|options| options.order) {
            Some(PriorityOrder::SmallerFirst) => priority,
            _ => -priority,
        }
    }

    /// Ends a request that holds no memory.
    fn finish_waiting(&mut self, at: Idx) {
        let request = &mut self.requests[at];
        request.finished = Some(Finish::Abort);
        let (id, outputs) = (request.id, request.outputs);
        self.log.push(Decision::Finished { request: id, outputs, finish: Finish::Abort });
        self.by_id.remove(&id);
        self.requests.bury(at);
    }

    /// Gives a request up: a waiting one at once, a running one with its next result.
    ///
    /// Source: SGLang `Scheduler.abort_request`.
    pub(super) fn give_up(&mut self, id: RequestId) {
        let Some(at) = self.by_id.get(&id).copied() else { return };
        if let Some(place) = self.waiting.iter().position(|other| *other == at) {
            self.waiting.remove(place);
            self.finish_waiting(at);
            return;
        }
        let in_last = self.last.as_ref().filter(|last| last.mode != Mode::Decode);
        let held = self.running.contains(&at)
            || in_last.is_some_and(|last| last.members.contains(&at))
            || (self.rules.abort_stops_chunks() && self.chunked == Some(at));
        if held {
            self.requests[at].aborting = true;
        }
    }
}

/// Why a request is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// It has just arrived.
    New,
    /// It gave its slots back.
    Again,
}
