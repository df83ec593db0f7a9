//! Building a prefill batch: the request whose prompt goes on, then the queue.

use super::{
    Launched, SglangScheduler,
    budget::Budget,
    config::{MixedChunk, PrefixCache, signed, unsigned},
    detail::{Consideration, Placed, Verdict},
    intake::Entry,
    memory::out_of_slots,
    request::Idx,
};
use crate::{
    kv::{Extend, HostHit, NodeId, Runs},
    pyfloat::trunc_i64,
    sched::{Decision, Deferral, EosRule, Fatal, Mode},
};

/// How much of a prompt a batch takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// All that is left.
    Whole,
    /// This many tokens; more follow.
    Cut(u64),
}

impl SglangScheduler {
    /// A prefill batch, if there is one to make. It goes before any decoding.
    ///
    /// Source: SGLang `Scheduler.get_new_batch_prefill`.
    pub(super) fn try_prefill(&mut self) -> Result<Option<Launched>, Fatal> {
        if self.config.priority.is_some()
            || (self.rules.idle_batch_is_never_full() && self.running.is_empty())
        {
            self.batch_is_full = false;
        }
        let waits = !self.batch_is_full && !self.waiting.is_empty();
        if !waits && self.chunked.is_none() {
            return Ok(None);
        }
        let no_room = self.allocatable(&[]) == 0 && self.config.priority.is_none();
        let goes_on = self.chunked.is_some() && self.rules.chunk_passes_limit();
        if no_room && !goes_on {
            self.batch_is_full = true;
            self.defer(self.waiting.front().copied(), Deferral::RunningFull, (0, 0));
            return Ok(None);
        }
        self.acknowledge_transfers();
        self.order_queue();
        let mut budget = self.open_budget();
        self.detail.budget = Some(self.view(&budget));
        self.continue_chunk(&mut budget)?;
        self.take_from_queue(&mut budget);
        if budget.list.is_empty() {
            self.lost.append(&mut budget.preempted);
            return Ok(None);
        }
        self.commit(budget).map(Some)
    }

    /// Requests that may join the running ones.
    ///
    /// Source: SGLang `Scheduler.get_num_allocatable_reqs`; bounded by the rows from 0.5.23.
    fn allocatable(&self, admitted: &[Idx]) -> u64 {
        let by_limit = self.max_running().saturating_sub(self.running.len() as u64);
        if !self.rules.rows_limit_batch() {
            return by_limit;
        }
        let held = admitted.iter().filter(|at| self.requests[**at].row.is_some()).count() as u64;
        by_limit.min(self.rows.available() + held)
    }

    fn max_running(&self) -> u64 {
        self.config.max_running_requests.min(self.rows.total())
    }

    /// The next chunk of the prompt that is under way. It must go on, whatever memory says.
    ///
    /// Source: SGLang `PrefillAdder.add_chunked_req`.
    fn continue_chunk(&mut self, budget: &mut Budget) -> Result<(), Fatal> {
        let Some(at) = self.chunked else { return Ok(()) };
        let rem_total = trunc_i64(self.rem_total(budget));
        let chunk = budget.rem_chunk.unwrap_or(i64::MAX);
        let room = match chunk.min(rem_total) {
            room if room <= 0 => chunk,
            room => room,
        };
        if room <= 0 {
            let message = format!("The running requests leave {room} tokens of a chunk.");
            return Err(Fatal { code: "no_chunk_left", message });
        }
        let request = &mut self.requests[at];
        let whole = request.len() - request.prefix;
        request.extend = whole.min(unsigned(room));
        request.fill = request.prefix + request.extend;
        let cut = request.extend < whole;
        let (extend, reserve) = (request.extend, if cut { 0 } else { request.reserve() });
        budget.list.push(at);
        budget.charge(extend, reserve, self.pages());
        if !cut {
            self.chunked = None;
        }
        self.note(at, Consideration::Chunk(extend), budget);
        let (request, prefix) = (self.requests[at].id, self.requests[at].prefix);
        self.log.push(Decision::Admitted { request, prefix, extend, chunked: cut });
        Ok(())
    }

    /// Takes requests in queue order until one cannot join. No smaller one is taken instead.
    fn take_from_queue(&mut self, budget: &mut Budget) {
        while let Some(at) = self.waiting.get(budget.from_queue).copied() {
            if self.rules.asks_before_matching() && self.verdict(budget) == Verdict::Other {
                self.defer(Some(at), Deferral::Budget, (0, 0));
                return;
            }
            if budget.list.len() as u64 >= self.allocatable(&budget.list) {
                self.batch_is_full = true;
            }
            if self.batch_is_full && !(self.config.priority.is_some() && self.preempt(at, budget)) {
                self.defer(Some(at), Deferral::RunningFull, (0, 0));
                return;
            }
            self.match_queued(at);
            let prefix = self.requests[at].prefix;
            let sums = (self.wanted(at), trunc_i64(self.rem_total(budget)));
            let before = budget.list.len();
            let verdict = self.add_one(at, budget);
            self.note(at, Consideration::Queued(prefix, verdict), budget);
            let admitted = budget.list.len() > before;
            budget.from_queue += usize::from(admitted);
            if verdict == Verdict::Continue {
                continue;
            }
            if verdict == Verdict::NoToken {
                let any = !budget.list.is_empty() || !self.running.is_empty();
                self.batch_is_full = any || !self.empty_batch_stays_open();
            }
            if !admitted {
                let no_token = verdict == Verdict::NoToken;
                let reason = if no_token { Deferral::NoToken } else { Deferral::Budget };
                self.defer(Some(at), reason, sums);
            }
            return;
        }
    }

    /// Notes who could not join, when it is another request or another reason than before.
    fn defer(&mut self, at: Option<Idx>, reason: Deferral, (needed, available): (i64, i64)) {
        let Some(request) = at.map(|at| self.requests[at].id) else { return };
        if self.deferred == Some((request, reason)) {
            return;
        }
        self.deferred = Some((request, reason));
        let needed = unsigned(needed);
        self.log.push(Decision::Deferred { request, reason, needed, available });
    }

    /// Looks the prefix of a queued request up: all but its last token, so that one is left to compute.
    fn match_queued(&mut self, at: Idx) {
        let request = &self.requests[at];
        let mut len = request.len().saturating_sub(1);
        if let Some(start) = request.logprob_start {
            len = len.min(start);
        }
        let (node, prefix, host) = match &mut self.tree {
            Some(tree) => {
                let found = tree.match_prefix(request.namespace, request.ids.cursor().limit(len));
                (found.node, found.len, found.host)
            }
            None => (NodeId::ROOT, 0, HostHit::NONE),
        };
        let request = &mut self.requests[at];
        request.node = node;
        request.host = host;
        request.prefix = prefix;
        request.protected = prefix;
        request.fill = request.len();
        request.extend = request.fill - prefix;
    }

    /// Admits a queued request, whole or its first chunk, or says why not.
    ///
    /// Source: SGLang `PrefillAdder.add_one_req`.
    fn add_one(&mut self, at: Idx, budget: &mut Budget) -> Verdict {
        let most = self.config.prefill_max_requests;
        if most.is_some_and(|most| budget.list.len() as u64 >= most) {
            return Verdict::Other;
        }
        let ignores = self.requests[at].eos == EosRule::Ignored;
        if ignores && self.config.prefix_cache == PrefixCache::Off {
            return self.add_one_ignore_eos(at, budget);
        }
        let (id, host) = (self.requests[at].id, self.requests[at].host);
        if host.len > 0 {
            self.detail.host_hits.push((id, host.len));
        }
        let wanted = self.wanted(at) as f64;
        if !self.rules.asks_before_matching() {
            if wanted >= self.rem_total(budget) {
                return Verdict::NoToken;
            }
            let computed = self.requests[at].extend.saturating_sub(host.len);
            if self.over_input(computed, budget) {
                return Verdict::Other;
            }
        }
        // Under the lock the prefix no longer counts as evictable.
        let node = self.requests[at].node;
        let held = self.lock(node);
        let part = if wanted >= self.rem_total(budget) {
            Err(Verdict::NoToken)
        } else {
            self.load_back(at);
            self.part_of(at, budget)
        };
        let verdict = match part {
            Ok(part) => {
                self.admit(at, part, budget);
                let node = self.requests[at].node;
                self.requests[at].window.mark = self.lock(node);
                Ok(())
            }
            Err(verdict) => Err(verdict),
        };
        self.unlock(node, held);
        verdict.err().unwrap_or_else(|| self.verdict(budget))
    }

    fn paged(&self, tokens: u64) -> i64 {
        signed(tokens.next_multiple_of(self.config.page_size))
    }

    /// Whether so many tokens more are too many for a batch that has some.
    fn over_input(&self, tokens: u64, budget: &Budget) -> bool {
        self.paged(tokens) >= budget.rem_input && !budget.list.is_empty()
    }

    fn part_of(&self, at: Idx, budget: &Budget) -> Result<Part, Verdict> {
        let extend = self.requests[at].extend;
        let asks = budget.rem_chunk.is_none() || !self.rules.asks_before_matching();
        if asks && self.over_input(extend, budget) {
            return Err(Verdict::Other);
        }
        let paged = self.paged(extend);
        let Some(chunk) = budget.rem_chunk.filter(|chunk| paged > *chunk) else {
            return Ok(Part::Whole);
        };
        match self.chunk_len(self.requests[at].prefix, chunk) {
            0 => Err(Verdict::Other),
            len => Ok(Part::Cut(len)),
        }
    }

    /// Puts a queued request into the batch and charges it.
    pub(super) fn admit(&mut self, at: Idx, part: Part, budget: &mut Budget) {
        let slots = match &self.tree {
            Some(tree) => tree.slots_to(self.requests[at].node),
            None => Runs::new(),
        };
        let request = &mut self.requests[at];
        request.slots = slots;
        let reserve = match part {
            Part::Whole => request.reserve(),
            Part::Cut(len) => {
                request.extend = len;
                request.fill = request.prefix + len;
                budget.cut = Some(at);
                0
            }
        };
        let (id, prefix, extend) = (request.id, request.prefix, request.extend);
        budget.list.push(at);
        budget.charge(extend, reserve, self.pages());
        let chunked = part != Part::Whole;
        self.log.push(Decision::Admitted { request: id, prefix, extend, chunked });
        if self.deferred.is_some_and(|(request, _)| request == id) {
            self.deferred = None;
        }
    }

    /// Takes rows and slots, and lets running requests join.
    ///
    /// Source: SGLang `ScheduleBatch.prepare_for_extend`.
    fn commit(&mut self, budget: Budget) -> Result<Launched, Fatal> {
        self.waiting.drain(..budget.from_queue);
        for at in &budget.preempted {
            self.enqueue(*at, Entry::Again);
        }
        if budget.cut.is_some() {
            self.chunked = budget.cut;
        }
        if let Some(at) = self.chunked {
            self.requests[at].chunks += 1;
        }
        self.start_loads();
        self.take_rows(&budget.list)?;
        self.take_slots(&budget.list)?;
        let prefill_only = budget.list.iter().all(|at| self.requests[*at].limit == 0);
        let decode_from = budget.list.len();
        let mut batch = Launched {
            mode: Mode::Prefill,
            members: budget.list,
            decode_from,
            chunked: self.chunked,
            prefill_only,
        };
        self.mix(&mut batch)?;
        Ok(batch)
    }

    fn take_rows(&mut self, list: &[Idx]) -> Result<(), Fatal> {
        let without = list.iter().filter(|at| self.requests[**at].row.is_none());
        let without: Vec<Idx> = without.copied().collect();
        let Some(rows) = self.rows.take(without.len() as u64) else {
            let message = format!(
                "alloc_req_slots runs out of memory: {} rows are free, {} are needed.",
                self.rows.available(),
                without.len()
            );
            return Err(Fatal { code: "no_request_row", message });
        };
        for (at, row) in without.into_iter().zip(rows) {
            self.requests[at].row = Some(row);
        }
        Ok(())
    }

    fn take_slots(&mut self, list: &[Idx]) -> Result<(), Fatal> {
        self.leave_window_in_prefill(list);
        let tokens: u64 = list.iter().map(|at| self.requests[*at].extend).sum();
        let page = self.config.page_size;
        let pages = if page == 1 { 0 } else { list.len() as u64 * page };
        self.evict_if_short(tokens + pages);
        let part = |at: &Idx| {
            let request = &self.requests[*at];
            let (have, want) = (request.prefix, request.fill);
            Extend { have, want, last: request.slots.last() }
        };
        let parts: Vec<Extend> = list.iter().map(part).collect();
        let Some(slots) = self.slots.extend(&parts) else {
            return Err(out_of_slots("prefill_out_of_slots", tokens, self.reachable()));
        };
        for (at, slots) in list.iter().zip(slots) {
            let request = &mut self.requests[*at];
            request.retracted = false;
            request.slots.extend(&slots);
            self.detail.placed.push(Placed {
                request: request.id,
                row: request.row.unwrap_or(0),
                first_slot: slots.first().unwrap_or(0),
                last_slot: slots.last().unwrap_or(0),
            });
        }
        self.tell_slots(list);
        Ok(())
    }

    /// Lets the running requests decode in this batch (`--enable-mixed-chunk`).
    ///
    /// Source: SGLang `ScheduleBatch.mix_with_running`.
    fn mix(&mut self, batch: &mut Launched) -> Result<(), Fatal> {
        let chunks = self.config.chunked_prefill_size.is_some();
        let mixes = chunks && self.config.mixed_chunk == MixedChunk::On;
        let mut all = batch.members.iter().chain(&self.running);
        let wants_logprobs = all.any(|at| self.requests[*at].logprob_start.is_some());
        if !mixes || self.running.is_empty() || wants_logprobs {
            return Ok(());
        }
        self.running.retain(|at| self.requests[*at].finished.is_none());
        let running = std::mem::take(&mut self.running);
        if running.is_empty() {
            return Ok(());
        }
        if self.rules.mixes_with_check() && !self.decode_fits(&running) {
            self.running = running;
            return Ok(());
        }
        self.decode_slots(&running)?;
        for at in &running {
            let request = &mut self.requests[*at];
            request.fill = request.len();
            request.extend = 1;
        }
        batch.mode = Mode::Mixed;
        batch.prefill_only = false;
        batch.members.extend(running);
        Ok(())
    }
}
