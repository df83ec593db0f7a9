//! Quiet stretches: decode turns that bring each running request one token and decide nothing. They are told
//! beforehand, so that nothing else need be done for them.

use super::{BATCHES, Idx, RowKind, VllmScheduler, config::LoopKind};
use crate::sched::{Deferral, LogDetail, results_before_end};

impl VllmScheduler {
    /// Turns from here on that launch the batch of the turn before once more and decide nothing, as long as
    /// nothing arrives.
    pub(super) fn quiet(&self) -> u64 {
        if !self.repeats_the_last_batch() {
            return 0;
        }
        let to_an_end = self.running.iter().map(|at| self.tokens_before_end(*at)).min();
        self.turns_with_room(to_an_end.unwrap_or(0))
    }

    /// Whether the next turn is a decode pass of the same requests, if blocks and limits allow it.
    fn repeats_the_last_batch(&self) -> bool {
        let outstanding = match self.config.loop_kind {
            LoopKind::Synchronous => 0,
            LoopKind::Asynchronous => BATCHES - 1,
        };
        let rows = &self.detail.rows;
        // Slots by number are told one turn after the other; windows give blocks back on the way.
        self.slot_detail == LogDetail::Decisions
            && self.cache.keeps_all()
            && self.launched.len() == outstanding
            && self.nobody_joins()
            && !rows.is_empty()
            && rows.len() == self.running.len()
            && rows.iter().zip(&self.running).all(|(row, at)| {
                let request = &self.requests[*at];
                let decodes = row.kind == RowKind::Running && row.tokens == 1;
                decodes && !request.prefilling && request.id == row.request
            })
    }

    /// Nobody waits, or as many run as may and the first that waits was told so.
    fn nobody_joins(&self) -> bool {
        let Some(head) = self.waiting.front() else { return true };
        let told = Some((self.requests[*head].id, Deferral::RunningFull));
        self.running.len() as u64 >= self.config.most_running() && self.deferred == told
    }

    /// Results that a request takes before one ends it. In the asynchronous loop a request is left out when
    /// its last token is in flight, which is one turn before that result.
    fn tokens_before_end(&self, at: Idx) -> u64 {
        let request = &self.requests[at];
        let (prompt, outputs) = (request.sequence.prompt, request.outputs());
        let limit = request.limit.min(self.config.max_model_len - prompt);
        results_before_end(outputs, limit, request.output_len, request.eos)
    }

    /// Turns, of `wanted`, for which blocks are free.
    fn turns_with_room(&self, wanted: u64) -> u64 {
        let free = self.cache.pool.free();
        let taken = |turns: u64| -> u64 {
            let of = |at: &Idx| self.cache.blocks_beyond(&self.requests[*at].sequence, turns);
            self.running.iter().map(of).sum()
        };
        if taken(wanted) <= free {
            return wanted;
        }
        let (mut fits, mut fails) = (0, wanted);
        while fails - fits > 1 {
            let middle = fits.midpoint(fails);
            if taken(middle) <= free { fits = middle } else { fails = middle }
        }
        fits
    }

    /// Takes `turns` quiet turns with their results.
    pub(super) fn take_quiet(&mut self, turns: u64) {
        for _ in 0..turns {
            let _ = self.next_turn();
            self.process_due();
        }
        debug_assert!(self.log.is_empty(), "{turns} turns decide something");
    }
}
