//! A pass as memory and time see it: sums over a batch.

use super::clients::Sampling;
use crate::{
    estimate::roofline::{StepShape, TimeModel},
    sched::{Batch, Mode, RequestId},
    tape::Tape,
    units::Nanos,
};
use std::{collections::BTreeMap, rc::Rc};

/// One forward pass, without who is in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pass {
    /// Kind.
    pub mode: Mode,
    /// New tokens.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
    /// Tokens before them whose KV is read.
    pub prefix_tokens: u64,
    /// Longest sequence, its new tokens included.
    pub longest: u64,
    /// Requests whose next token is sampled.
    pub sampled: u64,
    /// Prompt rows whose logprobs are asked for.
    pub logprob_rows: u64,
    /// The most demanding sampling of its requests.
    pub sampling: Sampling,
}

/// What a request asks of its passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Demand {
    pub(super) sampling: Sampling,
    /// First prompt token whose logprob is asked for, and the end of the prompt.
    pub(super) logprobs: Option<(u64, u64)>,
}

impl Demand {
    /// Rows of `prefix..prefix + extend` whose logprobs are asked for.
    fn logprob_rows(&self, prefix: u64, extend: u64) -> u64 {
        let Some((start, end)) = self.logprobs else { return 0 };
        let (first, last) = (prefix.max(start), (prefix + extend).min(end));
        last.saturating_sub(first)
    }
}

impl Pass {
    /// The sums of a batch, and its work for the time model. `demands` are those of requests that have any.
    pub(super) fn of(batch: &Batch, demands: &BTreeMap<RequestId, Demand>) -> (Self, StepShape) {
        let (mut tokens, mut prefix_tokens, mut longest) = (0, 0, 0);
        let (mut sampled, mut attention_pairs) = (0, 0);
        for row in &batch.rows {
            tokens += row.extend;
            prefix_tokens += row.prefix;
            longest = longest.max(row.prefix + row.extend);
            sampled += u64::from(!row.more_follows);
            // Each new token sees all before it and itself.
            attention_pairs += row.extend * row.prefix + row.extend * (row.extend + 1) / 2;
        }
        let (mut logprob_rows, mut sampling) = (0, Sampling::default());
        if !demands.is_empty() {
            for row in &batch.rows {
                let demand = demands.get(&row.request).copied().unwrap_or_default();
                logprob_rows += demand.logprob_rows(row.prefix, row.extend);
                sampling = sampling.most(demand.sampling);
            }
        }
        let (mode, requests) = (batch.mode, batch.rows.len() as u64);
        let context_tokens = prefix_tokens + tokens;
        let logits_rows = sampled;
        let shape = StepShape { tokens, requests, context_tokens, attention_pairs, logits_rows };
        let pass = Self {
            mode,
            tokens,
            requests,
            prefix_tokens,
            longest,
            sampled,
            logprob_rows,
            sampling,
        };
        (pass, shape)
    }
}

/// What the passes of one engine allocate, on one rank.
pub trait PassTapes {
    /// The tapes of a pass in the order in which they are played. What one leaves is live while the next
    /// runs.
    fn tapes(&mut self, pass: &Pass) -> Vec<Rc<Tape>>;

    /// The pass without what its tapes do not depend on: passes with the same key have the same tapes.
    fn key(&self, pass: &Pass) -> Pass {
        *pass
    }

    /// Decode passes of the same requests after this one, each with one token more of every request, whose
    /// buffers are the same once each is rounded up to 512 bytes; they never shrink. It may say fewer than
    /// there are.
    fn repeats(&self, _pass: &Pass) -> u64 {
        0
    }
}

/// How long the passes of one engine take.
pub trait PassTime {
    /// Time of a pass of this shape.
    fn time(&self, shape: &StepShape) -> Nanos;
}

impl PassTime for TimeModel {
    fn time(&self, shape: &StepShape) -> Nanos {
        self.step(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::serving::SamplingChoice, sched::Row};

    #[test]
    fn a_batch_adds_up() {
        let row = |id, extend, prefix, more_follows| Row {
            request: RequestId(id),
            extend,
            prefix,
            more_follows,
        };
        let rows = vec![row(0, 100, 0, false), row(1, 50, 200, true)];
        let batch = Batch { mode: Mode::Prefill, rows };
        let demands = [
            Demand { logprobs: Some((90, 100)), ..Demand::default() },
            Demand {
                sampling: Sampling { choice: SamplingChoice::MinP, ..Sampling::default() },
                logprobs: Some((0, 1000)),
            },
        ];
        let demands = [0, 1].map(RequestId).into_iter().zip(demands).collect();
        let (pass, shape) = Pass::of(&batch, &demands);
        assert_eq!((pass.tokens, pass.requests, pass.prefix_tokens), (150, 2, 200));
        assert_eq!((pass.longest, pass.sampled, pass.logprob_rows), (250, 1, 60));
        assert_eq!(pass.sampling.choice, SamplingChoice::MinP);
        assert_eq!(shape.attention_pairs, 100 * 101 / 2 + 50 * 200 + 50 * 51 / 2);
        assert_eq!((shape.context_tokens, shape.logits_rows), (350, 1));
    }
}
