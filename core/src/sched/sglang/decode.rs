//! Decode steps, and who gives way when slots run out.

use std::cmp::Reverse;

use super::{
    Launched, SglangScheduler,
    config::{LoopKind, signed},
    intake::Entry,
    memory::Keep,
    ratio::RETRACT_STEPS,
    request::Idx,
};
use crate::sched::{Decision, Fatal, Finish, Mode};

impl SglangScheduler {
    /// The next decode batch; `None` where nobody is left in it.
    ///
    /// Source: SGLang `Scheduler.update_running_batch`.
    pub(super) fn try_decode(&mut self) -> Result<Option<Launched>, Fatal> {
        self.filter_running();
        if self.running.is_empty() {
            self.batch_is_full = false;
            return Ok(None);
        }
        let mut members = self.running.clone();
        let ending = self.leave_out_ending(&mut members);
        if members.is_empty() {
            return Ok(None);
        }
        if self.decode_fits(&members) {
            self.ratio.decay();
        } else if ending {
            // The token in flight will free slots: nobody is retracted for one step.
            return Ok(None);
        } else {
            self.retract()?;
            members.clone_from(&self.running);
            if members.is_empty() {
                return Ok(None);
            }
        }
        self.decode_slots(&members)?;
        let decode_from = 0;
        let (mode, chunked) = (Mode::Decode, None);
        Ok(Some(Launched { mode, members, decode_from, chunked, prefill_only: false }))
    }

    /// Takes out the members that the token in flight ends by length. Says whether there were any.
    fn leave_out_ending(&self, members: &mut Vec<Idx>) -> bool {
        if self.config.loop_kind == LoopKind::Normal || !self.rules.leaves_out_ending() {
            return false;
        }
        let before = members.len();
        members.retain(|at| {
            let request = &self.requests[*at];
            request.in_flight == 0 || request.left() > 1
        });
        members.len() < before
    }

    /// Whether the next slots of `members` fit, after evicting for them.
    ///
    /// Source: SGLang `ScheduleBatch.check_decode_mem`, `new_page_count_next_decode`.
    pub(super) fn decode_fits(&mut self, members: &[Idx]) -> bool {
        let page = self.config.page_size;
        let need = if page == 1 { members.len() as u64 } else { self.pages_next(members) * page };
        self.evict_if_short(need);
        self.slots.available_in_each().least() >= need
    }

    /// How many of `members` take a page with their next token.
    fn pages_next(&self, members: &[Idx]) -> u64 {
        let page = self.config.page_size;
        let lag = u64::from(self.config.loop_kind == LoopKind::Overlap);
        let committed = self.rules.need_by_committed();
        let takes_page = |at: &&Idx| {
            let request = &self.requests[**at];
            let filled = if committed { request.slots.len() } else { request.len() + lag - 1 };
            filled.is_multiple_of(page)
        };
        members.iter().filter(takes_page).count() as u64
    }

    /// Takes slots back from running requests until the others can go on: fewest outputs first, then the
    /// longest prompt, then the latest. The kept ones stay in the order of that sort.
    ///
    /// Source: SGLang `ScheduleBatch.retract_decode`.
    fn retract(&mut self) -> Result<(), Fatal> {
        let mut kept = std::mem::take(&mut self.running);
        let count = kept.len();
        kept.sort_by_key(|at| {
            let request = &self.requests[*at];
            (Reverse(request.outputs), request.prompt_len)
        });
        let mut victims = Vec::new();
        while kept.len() > 1 && (victims.is_empty() || !self.decode_fits(&kept)) {
            let Some(at) = kept.pop() else { break };
            victims.push(at);
            let (request, outputs) = (self.requests[at].id, self.requests[at].outputs);
            let slots = self.release(at, Keep::Nothing);
            self.log.push(Decision::Retracted { request, outputs, slots });
            self.evict_if_short(kept.len() as u64 * RETRACT_STEPS);
            self.reset(at);
        }
        if kept.len() <= 1 && !self.decode_fits(&kept) {
            self.give_up_last(&mut kept, &mut victims)?;
        }
        let sum = |of: &dyn Fn(Idx) -> i64| kept.iter().map(|at| of(*at)).sum::<i64>();
        let outputs = sum(&|at| signed(self.requests[at].outputs));
        let limits = sum(&|at| self.requests[at].limit);
        self.ratio.estimate(outputs, signed(kept.len() as u64), limits);
        self.log.push(Decision::Ratio { new_token_ratio: self.ratio.now() });
        if kept.len() < count {
            self.batch_is_full = false;
        }
        self.running = kept;
        for at in victims {
            self.enqueue(at, Entry::Again);
        }
        Ok(())
    }

    /// The last request does not fit alone: it is aborted, or the scheduler dies. While pages are lent it waits
    /// for them.
    fn give_up_last(&mut self, kept: &mut Vec<Idx>, victims: &mut Vec<Idx>) -> Result<(), Fatal> {
        if self.lent.pages() > 0 {
            for at in kept.drain(..) {
                self.retract_one(at);
                victims.push(at);
            }
            return Ok(());
        }
        if !self.rules.aborts_the_last() {
            let message = "Retraction: out of memory even after retracting all other requests in \
                           the decode batch."
                .to_owned();
            return Err(Fatal { code: "retract_out_of_slots", message });
        }
        for at in kept.drain(..) {
            self.release(at, Keep::Nothing);
            self.end(at, Finish::Abort);
        }
        Ok(())
    }
}
