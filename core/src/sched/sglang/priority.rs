//! Preemption: running requests of low priority give way.

use super::{
    SglangScheduler, budget::Budget, config::signed, detail::Preemption, memory::Keep,
    ratio::RETRACT_STEPS, request::Idx,
};
use crate::sched::Decision;

impl SglangScheduler {
    /// Frees what `newcomer` needs by preempting running requests whose priority is worse by more than the
    /// threshold, worst and newest first. Nobody gives way where that is not enough.
    ///
    /// Source: SGLang `PrefillAdder.preempt_to_schedule`.
    pub(super) fn preempt(&mut self, newcomer: Idx, budget: &mut Budget) -> bool {
        let victims = self.victims_for(newcomer, budget).unwrap_or_default();
        let ids = victims.iter().map(|at| self.requests[*at].id).collect();
        let request = self.requests[newcomer].id;
        self.detail.preemptions.push(Preemption { request, victims: ids });
        if victims.is_empty() {
            return false;
        }
        let (size, mut released) = (self.running.len() as u64, 0);
        for at in std::mem::take(&mut self.running) {
            if !victims.contains(&at) {
                self.running.push(at);
                continue;
            }
            budget.promised -= self.expected(at);
            released += 1;
            let (id, outputs) = (self.requests[at].id, self.requests[at].outputs);
            let slots = self.release(at, Keep::Nothing);
            self.log.push(Decision::Preempted { request: id, by: request, outputs, slots });
            self.evict_if_short((size - released) * RETRACT_STEPS);
            self.reset(at);
        }
        budget.preempted.extend(victims);
        true
    }

    fn victims_for(&self, newcomer: Idx, budget: &Budget) -> Option<Vec<Idx>> {
        let threshold = i128::from(self.config.priority?.threshold);
        let mut candidates = self.running.clone();
        // 0.5.8 looks at finished ones too, and frees their slots a second time; that is not followed.
        candidates.retain(|at| self.requests[*at].finished.is_none());
        candidates.sort_by_key(|at| std::cmp::Reverse((self.rank(*at), self.requests[*at].entry)));
        let request = &self.requests[newcomer];
        let wanted = signed(request.extend) + request.reserve();
        let mut need = wanted as f64 - self.rem_total(budget);
        let mut victims = Vec::new();
        for at in candidates {
            if self.rank(at) - self.rank(newcomer) <= threshold {
                break;
            }
            victims.push(at);
            need -= self.expected(at);
            if need <= 0.0 {
                return Some(victims);
            }
        }
        None
    }
}
