//! The budget of one prefill batch.

use super::{
    SglangScheduler,
    config::{MixedChunk, signed, unsigned},
    detail::{BudgetView, Consideration, Considered, Verdict},
    request::{CLIP, Idx},
};
use crate::sched::EosRule;

/// What a prefill batch may still take, and what is in it so far.
///
/// Source: SGLang `PrefillAdder`, `PrefillBudget` (0.5.23).
#[derive(Debug)]
pub(super) struct Budget {
    /// Slots promised: what running requests are expected to take, and this batch with its reserves.
    pub(super) promised: f64,
    /// Slots of this batch.
    pub(super) taken: i64,
    pub(super) rem_input: i64,
    pub(super) rem_chunk: Option<i64>,
    /// Admitted, in batch order.
    pub(super) list: Vec<Idx>,
    /// How many of them came from the queue.
    pub(super) from_queue: usize,
    /// The admitted request whose prompt is cut.
    pub(super) cut: Option<Idx>,
    /// Running requests that gave way.
    pub(super) preempted: Vec<Idx>,
    /// Requests by what is left to them (see `ignore_eos`).
    pub(super) states: Option<Vec<(f64, i64)>>,
}

impl Budget {
    /// Takes `extend` tokens and sets `reserve` aside for outputs.
    pub(super) fn charge(&mut self, extend: u64, reserve: i64, pages: Pages) {
        let extend = signed(extend.next_multiple_of(pages.size));
        let on_top = signed(pages.on_top);
        self.promised += (extend + on_top + reserve) as f64;
        self.taken += extend + on_top;
        self.rem_input -= extend;
        if let Some(chunk) = &mut self.rem_chunk {
            *chunk -= extend;
        }
    }
}

/// How a charge is rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub(super) size: u64,
    /// Tokens that each request is charged besides.
    pub(super) on_top: u64,
}

impl SglangScheduler {
    /// The budget at the start of a prefill attempt.
    pub(super) fn open_budget(&self) -> Budget {
        let mixed = match self.config.mixed_chunk {
            MixedChunk::On if self.config.chunked_prefill_size.is_some() => {
                self.running.len() as u64
            }
            _ => 0,
        };
        // Summed first, in running order, as the engine does.
        let expected: f64 = self.running.iter().map(|at| self.expected(*at)).sum();
        let mixed = signed(mixed);
        Budget {
            promised: mixed as f64 + expected,
            taken: mixed,
            rem_input: signed(self.config.max_prefill_tokens) - mixed,
            rem_chunk: self.config.chunked_prefill_size.map(|chunk| signed(chunk) - mixed),
            list: Vec::new(),
            from_queue: 0,
            cut: None,
            preempted: Vec::new(),
            states: None,
        }
    }

    /// New tokens that a running request is expected to take yet.
    pub(super) fn expected(&self, at: Idx) -> f64 {
        let request = &self.requests[at];
        let whole = request.eos == EosRule::Ignored && self.rules.full_estimate_without_eos();
        let ratio = if whole { 1.0 } else { self.ratio.now() };
        request.left().min(CLIP) as f64 * ratio
    }

    pub(super) fn pages(&self) -> Pages {
        let size = self.config.page_size;
        Pages { size, on_top: if self.rules.charges_extra_page() { size } else { 0 } }
    }

    /// `rem_total_tokens`.
    pub(super) fn rem_total(&self, budget: &Budget) -> f64 {
        self.reachable() as f64 - budget.promised
    }

    /// `cur_rem_tokens`.
    pub(super) fn cur_rem(&self, budget: &Budget) -> i64 {
        signed(self.reachable()) - budget.taken
    }

    /// `budget_state`.
    pub(super) fn verdict(&self, budget: &Budget) -> Verdict {
        if self.rem_total(budget) <= 0.0 || self.cur_rem(budget) <= 0 {
            Verdict::NoToken
        } else if budget.rem_input <= 0 || budget.rem_chunk.is_some_and(|chunk| chunk <= 0) {
            Verdict::Other
        } else {
            Verdict::Continue
        }
    }

    /// Slots that a request is tested for: its prompt part and its outputs to come.
    pub(super) fn wanted(&self, at: Idx) -> i64 {
        let request = &self.requests[at];
        let outputs = request.left().clamp(0, CLIP);
        signed(request.extend) + outputs + signed(self.pages().on_top)
    }

    pub(super) fn view(&self, budget: &Budget) -> BudgetView {
        BudgetView {
            rem_total: self.rem_total(budget),
            cur_rem: self.cur_rem(budget),
            rem_input: budget.rem_input,
            rem_chunk: budget.rem_chunk,
        }
    }

    pub(super) fn note(&mut self, at: Idx, what: Consideration, budget: &Budget) {
        let (request, budget) = (self.requests[at].id, self.view(budget));
        self.detail.considered.push(Considered { request, what, budget });
    }

    /// Tokens of a prompt that a chunk may hold, in whole pages; 0 where none fits.
    pub(super) fn chunk_len(&self, prefix: u64, rem_chunk: i64) -> u64 {
        let len = self.whole_pages(unsigned(rem_chunk));
        if self.rules.aligns_chunk_end() {
            self.whole_pages(prefix + len).saturating_sub(prefix)
        } else {
            len
        }
    }
}
