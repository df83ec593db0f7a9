//! Admission of waiting requests.

use super::{
    Idx, Status, VllmScheduler,
    cache::{Ask, Hit},
    config::{AdmissionGate, ChunkedPrefill},
    detail::RowKind,
    turn::{Draft, Plan},
};
use crate::sched::Deferral;

/// What became of the head of the queue.
enum Head {
    /// It runs.
    Admitted,
    /// It is passed over in this turn.
    SetAside,
    /// Nobody is admitted any more.
    Stop,
}

impl VllmScheduler {
    /// Admits waiting requests in their order, until one cannot be.
    ///
    /// Source: vLLM `Scheduler.schedule`, waiting requests.
    pub(super) fn schedule_waiting(&mut self, plan: &mut Plan) {
        let mut aside = Vec::new();
        while let Some(at) = self.waiting.front().copied() {
            if plan.budget == 0 {
                self.note_deferred(plan, at, Deferral::Budget, 0);
                break;
            }
            if self.running.len() as u64 >= self.config.most_running() {
                self.note_deferred(plan, at, Deferral::RunningFull, 0);
                break;
            }
            match self.try_head(at, plan) {
                Head::Admitted => {}
                Head::SetAside => {
                    self.waiting.pop_front();
                    aside.push(at);
                }
                Head::Stop => break,
            }
        }
        if !plan.defers_prefill {
            self.capacity_bound = !self.waiting.is_empty();
        }
        // In front of the others again: in their order, or in 0.11 the last of them first.
        if self.rules.whole_prompt_stops() {
            aside.reverse();
        }
        for at in aside {
            self.enqueue_first(at);
        }
    }

    fn try_head(&mut self, at: Idx, plan: &mut Plan) -> Head {
        if self.requests[at].stale > 0 {
            return Head::SetAside;
        }
        let hit = self.cache.find(&mut self.requests[at].sequence);
        let known = self.requests[at].sequence.known;
        self.detail.lookups.push((self.requests[at].id, hit.tokens));
        let prefills = hit.tokens + 1 < known;
        if plan.defers_prefill && prefills {
            return Head::Stop;
        }
        let new = plan.cut(known - hit.tokens);
        if self.config.chunked_prefill == ChunkedPrefill::Off && new > plan.budget {
            self.note_deferred(plan, at, Deferral::Budget, 0);
            return if self.rules.whole_prompt_stops() { Head::Stop } else { Head::SetAside };
        }
        let new = self.split(at, new.min(plan.budget), hit.tokens);
        if new == 0 {
            return Head::Stop;
        }
        let ask = Ask {
            new,
            hit: Some(&hit),
            whole: self.rules.has_gate() && self.config.gate == AdmissionGate::WholeSequence,
            spare: self.watermark(),
        };
        if let Err(short) = self.cache.allocate(&mut self.requests[at].sequence, &ask) {
            self.note_deferred(plan, at, Deferral::NoToken, short.needed);
            return Head::Stop;
        }
        plan.prefills |= prefills;
        self.admit(at, &hit, new, plan);
        Head::Admitted
    }

    fn admit(&mut self, at: Idx, hit: &Hit, tokens: u64, plan: &mut Plan) {
        self.waiting.pop_front();
        self.running.push(at);
        let request = &mut self.requests[at];
        let kind = match request.status {
            Status::Preempted => RowKind::Resumed,
            _ => RowKind::New,
        };
        request.status = Status::Running;
        request.sequence.computed = hit.tokens;
        plan.budget -= tokens;
        let blocks = std::mem::take(&mut self.cache.given);
        plan.rows.push(Draft { at, kind, tokens, blocks });
        let id = request.id;
        self.tell_slots(id);
        self.deferred = self.deferred.filter(|(other, _)| *other != id);
    }

    /// Blocks that stay free when a request joins others.
    fn watermark(&self) -> u64 {
        if !self.rules.has_watermark() || self.running.is_empty() {
            return 0;
        }
        (self.config.watermark * self.config.num_gpu_blocks as f64) as u64
    }

    fn note_deferred(&self, plan: &mut Plan, at: Idx, reason: Deferral, needed: u64) {
        plan.deferred.get_or_insert((at, reason, needed));
    }
}
