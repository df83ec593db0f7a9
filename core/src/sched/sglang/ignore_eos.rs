//! Admission of requests that run to their limit, without a prefix cache: their ends are known, so the
//! pool is looked at for every future step.

use super::{
    SglangScheduler,
    budget::Budget,
    config::{signed, unsigned},
    detail::Verdict,
    prefill::Part,
    request::Idx,
};
use crate::sched::EosRule;

impl SglangScheduler {
    /// Admits a request if, as requests end one after the other, the rest always has slots.
    ///
    /// Source: SGLang `PrefillAdder.add_one_req_ignore_eos`.
    pub(super) fn add_one_ignore_eos(&mut self, at: Idx, budget: &mut Budget) -> Verdict {
        let extend = self.requests[at].extend;
        let pages = self.pages();
        let paged = signed(extend.next_multiple_of(pages.size) + pages.on_top);
        let cur_rem = self.cur_rem(budget);
        if paged as f64 > (cur_rem as f64).min(self.rem_total(budget)) {
            return Verdict::NoToken;
        }
        let states = self.states_with(at, budget);
        // Of two pools it would ask too little, and is left out.
        let fits = self.config.swa.is_some() || ends_fit(&states, cur_rem - paged);
        budget.states = Some(states);
        if !fits {
            return Verdict::NoToken;
        }
        let part = match budget.rem_chunk.filter(|chunk| signed(extend) > *chunk) {
            None => Part::Whole,
            Some(chunk) if chunk <= 0 => return Verdict::Other,
            Some(chunk) => Part::Cut(unsigned(chunk)),
        };
        self.admit(at, part, budget);
        self.verdict(budget)
    }

    /// (tokens to come, tokens held) of a request; `None` where nothing is to come.
    fn state_of(&self, at: Idx) -> Option<(f64, i64)> {
        let request = &self.requests[at];
        let ratio = if request.eos == EosRule::Ignored { 1.0 } else { self.ratio.now() };
        let left = request.limit as f64 * ratio - request.outputs as f64;
        (left > 0.0).then(|| (left, signed(request.len())))
    }

    /// The list of states with this request in it. Made once a batch and sorted; later requests are put in
    /// before the first with no less to come, or, as the engine has it, before the last.
    fn states_with(&self, at: Idx, budget: &mut Budget) -> Vec<(f64, i64)> {
        let Some(mut states) = budget.states.take() else {
            let all = std::iter::once(&at).chain(&self.running).chain(&budget.list);
            let mut states: Vec<_> = all.filter_map(|at| self.state_of(*at)).collect();
            states.sort_by(|a, b| a.0.total_cmp(&b.0));
            return states;
        };
        if let Some(state) = self.state_of(at) {
            let place = states.iter().position(|other| state.0 <= other.0);
            states.insert(place.unwrap_or(states.len().saturating_sub(1)), state);
        }
        states
    }
}

/// Whether slots last until each state ends, when `free` are free now and every request takes one a step.
fn ends_fit(states: &[(f64, i64)], free: i64) -> bool {
    let mut freed = 0;
    for (i, (left, held)) in states.iter().enumerate() {
        let batch = (states.len() - i) as f64;
        if (free + freed) as f64 - left * batch <= batch {
            return false;
        }
        freed += held;
    }
    true
}
