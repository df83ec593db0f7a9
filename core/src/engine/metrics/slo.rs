//! Limits that a request must keep to count as good.

use crate::units::Nanos;

/// Limits of a service level objective; a request that keeps all of those that are given is good.
///
/// Source: vLLM `vllm bench serve --goodput`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slo {
    /// Time to the first token.
    pub ttft: Option<Nanos>,
    /// Time per output token after the first.
    pub tpot: Option<Nanos>,
    /// Time from arrival to the last token.
    pub e2e: Option<Nanos>,
}

impl Slo {
    /// Whether no limit is given.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ttft.is_none() && self.tpot.is_none() && self.e2e.is_none()
    }

    /// Whether an answer of `outputs` tokens kept the limits; a limit itself is kept. An answer of one
    /// token has no time per token and keeps any limit of it.
    pub(super) fn keeps(&self, ttft: u64, e2e: u64, outputs: u64) -> bool {
        let below = |limit: Option<Nanos>, value: u64| limit.is_none_or(|limit| value <= limit.0);
        let decoding = u128::from(e2e.saturating_sub(ttft));
        let gaps = u128::from(outputs.saturating_sub(1));
        let tpot =
            self.tpot.is_none_or(|limit| decoding <= u128::from(limit.0) * gaps || gaps == 0);
        below(self.ttft, ttft) && below(self.e2e, e2e) && tpot
    }
}
