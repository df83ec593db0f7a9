//! Results of a batch: tokens are noted, finished requests give their slots back.

use super::{
    Launched, SglangScheduler,
    memory::{Keep, Stored},
    request::Idx,
};
use crate::sched::{Decision, EosRule, Fatal, Finish, Mode};

impl SglangScheduler {
    /// Processes one token of each member, in batch order.
    ///
    /// Source: SGLang `process_batch_result_prefill`, `process_batch_result_decode`.
    /// # Errors
    ///
    /// As [`Self::cache_unfinished`].
    pub(super) fn process(&mut self, batch: &Launched) -> Result<(), Fatal> {
        let decode = batch.mode == Mode::Decode;
        if decode {
            self.slots.begin_group();
        }
        for (place, at) in batch.members.iter().enumerate() {
            let request = &mut self.requests[*at];
            request.in_flight = request.in_flight.saturating_sub(1);
            if request.finished.is_some() || request.retracted {
                continue;
            }
            if !decode && request.chunks > 0 {
                request.chunks -= 1;
                continue;
            }
            let finish = self.take_token(*at);
            if let Some(finish) = finish {
                self.release(*at, Keep::Cached);
                self.end(*at, finish);
            } else if place < batch.decode_from {
                self.cache_unfinished(*at, Stored::Whole)?;
            }
        }
        if decode {
            self.slots.end_group();
        }
        Ok(())
    }

    /// Notes the sampled token; says whether it is the last.
    ///
    /// Source: SGLang `Req.check_finished`.
    fn take_token(&mut self, at: Idx) -> Option<Finish> {
        let request = &mut self.requests[at];
        request.outputs += 1;
        let ended = match request.made.take() {
            Some(made) => {
                request.ids.push_value(u64::from(made.token));
                made.ends
            }
            None => request.outputs == request.output_len && request.eos == EosRule::Ends,
        };
        let full = request.left() <= 0;
        match () {
            () if request.aborting => Some(Finish::Abort),
            () if ended && (!full || self.rules.stop_before_length()) => Some(Finish::Stop),
            () if full => Some(Finish::Length),
            () => None,
        }
    }

    /// Notes that a request is over.
    pub(super) fn end(&mut self, at: Idx, finish: Finish) {
        let request = &mut self.requests[at];
        request.finished = Some(finish);
        let (id, outputs) = (request.id, request.outputs);
        self.log.push(Decision::Finished { request: id, outputs, finish });
        self.by_id.remove(&id);
        self.requests.bury(at);
    }
}
