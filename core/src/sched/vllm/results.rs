//! Results of a batch: outputs are noted, finished requests give their blocks back.

use super::{
    Status, VllmScheduler,
    config::LoopKind,
    turn::{Launched, Outstanding},
};
use crate::sched::{EosRule, Finish};

impl VllmScheduler {
    /// Processes the oldest batch, if it is due in this turn.
    pub(super) fn process_due(&mut self) {
        if self.result_is_due
            && let Some(batch) = self.launched.pop_front()
        {
            self.process(&batch);
        }
        self.result_is_due = false;
    }

    /// Processes the rows of a batch in their order.
    ///
    /// Source: vLLM `Scheduler.update_from_output`, `AsyncScheduler._update_request_with_output`.
    pub(super) fn process(&mut self, batch: &Launched) {
        let mut ended = false;
        for row in &batch.rows {
            if !self.requests.is_open(row.at) {
                continue;
            }
            if let Some(finish) = self.process_row(row) {
                self.end(row.at, finish);
                ended = true;
            }
        }
        if ended {
            let requests = &self.requests;
            self.running.retain(|at| requests.is_open(*at));
            self.waiting.retain(|at| requests.is_open(*at));
        }
    }

    fn process_row(&mut self, row: &Outstanding) -> Option<Finish> {
        let request = &mut self.requests[row.at];
        request.sequence.in_flight = request.sequence.in_flight.saturating_sub(row.tokens);
        let stale = request.stale > 0;
        request.stale = request.stale.saturating_sub(row.tokens);
        let output = row.output?;
        let token = self.config.output_ids.token(request.id, output, request.output_len);
        request.sequence.push(&mut self.cache.pool.prefixes, token);
        let stops = output + 1 == request.output_len && request.eos == EosRule::Ends;
        let full = request.sequence.known >= self.config.max_model_len
            || request.outputs() >= request.limit;
        if self.config.loop_kind == LoopKind::Asynchronous && !stale && request.placeholders > 0 {
            request.placeholders -= 1;
            if request.status == Status::Running {
                self.register_known(row);
            }
        }
        match () {
            () if stops => Some(Finish::Stop),
            () if full => Some(Finish::Length),
            () => None,
        }
    }

    /// Registers blocks whose last token is known only now.
    fn register_known(&mut self, row: &Outstanding) {
        let request = &mut self.requests[row.at];
        let unknown = match self.rules.keeps_blocks_in_flight() {
            true => request.sequence.in_flight,
            false => request.placeholders,
        };
        let tokens = request.sequence.computed.saturating_sub(unknown);
        self.cache.register(&mut request.sequence, tokens);
    }
}
