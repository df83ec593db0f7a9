//! Tokens for the requests that run, and blocks taken back from some of them.

use super::{
    Idx, Status, VllmScheduler,
    cache::Ask,
    config::QueuePolicy,
    detail::RowKind,
    turn::{Draft, Plan},
};
use crate::sched::Decision;

impl VllmScheduler {
    /// Serves the running requests in their order while the budget lasts.
    ///
    /// Source: vLLM `Scheduler.schedule`, running requests.
    pub(super) fn schedule_running(&mut self, plan: &mut Plan) {
        let goes_on = self.rules.follows_victims() && self.config.policy == QueuePolicy::Priority;
        let mut place = 0_usize;
        while plan.budget > 0
            && let Some(at) = self.running.get(place).copied()
        {
            let new = self.next_tokens(at, plan);
            if new == 0 {
                place += 1;
                continue;
            }
            if self.make_room(at, new, &mut place, plan) {
                self.add_running(at, new, plan);
                place += 1;
            } else if !goes_on {
                return;
            }
        }
    }

    /// Tokens that a running request may compute in this turn.
    fn next_tokens(&self, at: Idx, plan: &Plan) -> u64 {
        if plan.defers_prefill && self.requests[at].prefilling {
            return 0;
        }
        self.split(at, plan.cut(self.wanted(at)).min(plan.budget), 0)
    }

    /// Tokens that it has to compute; none where its last output is in flight.
    fn wanted(&self, at: Idx) -> u64 {
        let request = &self.requests[at];
        let (known, computed) = (request.sequence.known, request.sequence.computed);
        let sent = request.placeholders;
        let ends = sent > 0 && computed + 2 >= request.most().saturating_add(sent);
        let longest = match self.rules.passes_over_ending() {
            true if ends => return 0,
            true => self.config.max_model_len,
            false => request.most().min(self.config.max_model_len),
        };
        (known + sent).saturating_sub(computed).min(longest.saturating_sub(computed + 1))
    }

    /// Running requests that decode, have a token to compute, and no row in this turn.
    pub(super) fn left_out(&self, plan: &Plan) -> Vec<Idx> {
        if plan.rows.len() == self.running.len() {
            return Vec::new();
        }
        // Rows stand in the order of the running list.
        let mut rows = plan.rows.iter().map(|row| row.at).peekable();
        let waits = |at: &Idx| !self.requests[*at].prefilling && self.wanted(*at) > 0;
        self.running
            .iter()
            .copied()
            .filter(|at| rows.next_if_eq(at).is_none() && waits(at))
            .collect()
    }

    /// Takes blocks for a running request, from others if it must; `place` follows where it stands. Answers
    /// whether it has them, or was preempted itself.
    fn make_room(&mut self, at: Idx, new: u64, place: &mut usize, plan: &mut Plan) -> bool {
        let ask = Ask { new, hit: None, whole: false, spare: 0 };
        while self.cache.allocate(&mut self.requests[at].sequence, &ask).is_err() {
            let Some((victim, moved)) = self.victim(*place, plan) else { return false };
            if moved {
                *place = place.saturating_sub(1);
            }
            self.preempt(victim, at);
            if victim == at {
                return false;
            }
        }
        true
    }

    /// Takes the request that gives way out of the running list. Says whether the place in the list follows.
    fn victim(&mut self, place: usize, plan: &mut Plan) -> Option<(Idx, bool)> {
        if self.config.policy == QueuePolicy::Fcfs {
            return Some((self.running.pop()?, false));
        }
        let order = |at: &usize| self.requests[self.running[*at]].order();
        let at = (0..self.running.len()).max_by_key(order)?;
        let victim = self.running.remove(at);
        let row = plan.rows.iter().position(|row| row.at == victim);
        if let Some(row) = row {
            plan.budget += plan.rows.remove(row).tokens;
        }
        let moved = if self.rules.follows_victims() { at < place } else { row.is_some() };
        Some((victim, moved))
    }

    /// Takes all blocks back from a request, which waits again.
    ///
    /// Source: vLLM `Scheduler._preempt_request`.
    fn preempt(&mut self, at: Idx, by: Idx) {
        let by = self.requests[by].id;
        let request = &mut self.requests[at];
        // One that is in flight arrives yet.
        let (id, outputs) = (request.id, request.outputs() + request.placeholders);
        let lost = request.sequence.computed;
        self.cache.free(&mut request.sequence);
        request.status = Status::Preempted;
        request.sequence.computed = 0;
        if self.rules.stales_preempted() {
            request.stale = request.sequence.in_flight;
            request.placeholders = 0;
        }
        self.enqueue_first(at);
        self.detail.preempted.push(id);
        self.tell_slots(id);
        self.log.push(Decision::Preempted { request: id, by, outputs, slots: lost });
    }

    fn add_running(&mut self, at: Idx, tokens: u64, plan: &mut Plan) {
        plan.prefills |= self.requests[at].prefilling;
        plan.budget -= tokens;
        let blocks = std::mem::take(&mut self.cache.given);
        plan.rows.push(Draft { at, kind: RowKind::Running, tokens, blocks });
        self.tell_slots(self.requests[at].id);
    }
}
