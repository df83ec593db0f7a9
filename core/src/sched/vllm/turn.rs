//! One call of the scheduler: the running requests, then the waiting ones, then what it comes to.

use super::{
    Idx, VllmScheduler,
    cache::NewBlocks,
    config::LoopKind,
    detail::{RowKind, Scheduled, TurnDetail},
};
use crate::sched::{Batch, Decision, Deferral, Mode, RequestId, Row, Turn};

/// A row of a batch whose result is outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub(super) at: Idx,
    pub(super) tokens: u64,
    /// Which output is sampled, if one is.
    pub(super) output: Option<u64>,
}

/// A batch that was launched.
#[derive(Clone, Default, Debug)]
pub(super) struct Launched {
    pub(super) rows: Vec<Outstanding>,
}

/// A row of the batch that is being made.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) at: Idx,
    pub(super) kind: RowKind,
    pub(super) tokens: u64,
    pub(super) blocks: Vec<NewBlocks>,
}

/// The batch that is being made.
#[derive(Debug)]
pub(super) struct Plan {
    /// Tokens left.
    pub(super) budget: u64,
    pub(super) rows: Vec<Draft>,
    /// Tokens of one prompt; 0 for no limit.
    pub(super) threshold: u64,
    /// Prompts wait for a later turn.
    pub(super) defers_prefill: bool,
    /// A prompt began or went on.
    pub(super) prefills: bool,
    /// Who could not join: the reason, blocks needed.
    pub(super) deferred: Option<(Idx, Deferral, u64)>,
}

impl Plan {
    /// Tokens of one request, cut to the limit for long prompts.
    pub(super) fn cut(&self, new: u64) -> u64 {
        if self.threshold > 0 { new.min(self.threshold) } else { new }
    }
}

impl VllmScheduler {
    /// Decides the batch of this turn, and whether a result is processed in it.
    ///
    /// Source: vLLM `EngineCore.step`, `step_with_batch_queue`.
    pub(super) fn next_turn(&mut self) -> Turn {
        self.detail = TurnDetail::default();
        self.result_is_due = true;
        if !self.must_schedule() {
            return Turn::Idle;
        }
        let batch = self.schedule();
        let empty = batch.rows.is_empty();
        if self.config.loop_kind == LoopKind::Asynchronous {
            let more = !empty || (self.rules.waits_while_work() && self.must_schedule());
            self.result_is_due = self.launched.len() >= super::BATCHES || !more;
        }
        if empty { Turn::Idle } else { Turn::Run(batch) }
    }

    /// Source: vLLM `Scheduler.schedule`.
    fn schedule(&mut self) -> Batch {
        self.detail.scheduled = true;
        self.detail.told = std::mem::take(&mut self.untold);
        self.cache.begin_turn();
        let mut plan = self.plan();
        self.schedule_running(&mut plan);
        if self.detail.preempted.is_empty() {
            self.schedule_waiting(&mut plan);
        }
        if !plan.rows.is_empty() {
            self.turns += 1;
        }
        if plan.prefills && self.config.prefill_schedule_interval > 1 {
            self.last_prefill = Some(self.turns);
        }
        self.commit(plan)
    }

    fn plan(&self) -> Plan {
        let budget = self.config.max_num_batched_tokens;
        let live = (self.running.len() + self.waiting.len()) as u64;
        let mut threshold = self.config.long_prefill_token_threshold;
        if self.rules.threshold_needs_others() {
            if live <= 1 {
                threshold = 0;
            }
            if threshold > 0 && self.config.adaptive_threshold {
                threshold = threshold.max(budget / live);
            }
        }
        Plan {
            budget,
            rows: Vec::new(),
            threshold,
            defers_prefill: self.defers_prefill(),
            prefills: false,
            deferred: None,
        }
    }

    /// Whether prompts wait because one went on a short time ago and others decode.
    ///
    /// Source: vLLM 0.33.0 `Scheduler`, `prefill_schedule_interval`.
    fn defers_prefill(&self) -> bool {
        let interval = self.config.prefill_schedule_interval;
        let recent = self.last_prefill.is_some_and(|last| self.turns + 1 - last < interval);
        interval > 1
            && self.rules.paces_prefills()
            && !self.capacity_bound
            && recent
            && self.running.iter().any(|at| !self.requests[*at].prefilling)
    }

    /// Counts the tokens of the rows as computed, and hands the batch out.
    ///
    /// Source: vLLM `Scheduler._update_after_schedule`.
    fn commit(&mut self, plan: Plan) -> Batch {
        let left_out = self.left_out(&plan);
        let mut batch = Batch { mode: Mode::Decode, rows: Vec::with_capacity(plan.rows.len()) };
        let mut launched = Launched::default();
        let mut decodes = 0;
        for draft in plan.rows {
            let request = &mut self.requests[draft.at];
            let (id, prefix, extend) = (request.id, request.sequence.computed, draft.tokens);
            let decoded = draft.kind == RowKind::Running && !request.prefilling;
            decodes += usize::from(decoded);
            let output = request.send(extend, self.config.loop_kind);
            let more_follows = output.is_none();
            if !decoded {
                let chunked = more_follows;
                self.log.push(Decision::Admitted { request: id, prefix, extend, chunked });
            }
            batch.rows.push(Row { request: id, extend, prefix, more_follows });
            launched.rows.push(Outstanding { at: draft.at, tokens: extend, output });
            let (kind, computed, blocks) = (draft.kind, prefix, draft.blocks);
            self.detail.rows.push(Scheduled {
                request: id,
                kind,
                computed,
                tokens: extend,
                blocks,
            });
        }
        if decodes < batch.rows.len() {
            batch.mode = if decodes == 0 { Mode::Prefill } else { Mode::Mixed };
        }
        self.launched.push_back(launched);
        if self.log.iter().any(|decision| !decision.is_of_slots()) {
            self.tell_evicted();
        }
        for at in left_out {
            let (request, reason) = (self.requests[at].id, Deferral::Budget);
            self.log.push(Decision::Deferred { request, reason, needed: 1, available: 0 });
        }
        if let Some((at, reason, needed)) = plan.deferred {
            self.tell_deferred(self.requests[at].id, reason, needed);
        }
        batch
    }

    /// Notes what was evicted since it was last told. Blocks that decode takes are told with the next
    /// decision, so that they make no decision of their own.
    pub(super) fn tell_evicted(&mut self) {
        let (taken, evicted) = self.cache.take_counts();
        if evicted > 0 {
            let (asked, freed) = (self.tokens_of_blocks(taken), self.tokens_of_blocks(evicted));
            self.log.push(Decision::Evicted { asked, freed, window: None });
        }
    }

    /// Notes who could not join, when it is another request or another reason than before.
    fn tell_deferred(&mut self, request: RequestId, reason: Deferral, needed: u64) {
        if self.deferred.replace((request, reason)) == Some((request, reason)) {
            return;
        }
        let needed = self.tokens_of_blocks(needed);
        let free = self.tokens_of_blocks(self.cache.pool.free());
        let available = i64::try_from(free).unwrap_or(i64::MAX);
        self.log.push(Decision::Deferred { request, reason, needed, available });
    }
}

impl super::request::Request {
    /// Sends tokens off; answers which output they will bring, if they reach the end.
    fn send(&mut self, tokens: u64, loop_kind: LoopKind) -> Option<u64> {
        let of = &mut self.sequence;
        of.computed += tokens;
        of.in_flight += tokens;
        self.prefilling = of.computed < of.known + self.placeholders;
        if self.prefilling {
            return None;
        }
        let output = of.computed - of.prompt;
        if loop_kind == LoopKind::Asynchronous {
            self.placeholders += 1;
        }
        Some(output)
    }
}
