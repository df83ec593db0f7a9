//! How long a step takes: the larger of what its arithmetic and its memory traffic need, and a constant.
//! Integers throughout, so that a run has the same times everywhere.

use crate::units::Nanos;

/// The work of one step on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepShape {
    /// New tokens that pass through the layers.
    pub tokens: u64,
    /// Requests of the step.
    pub requests: u64,
    /// KV tokens that are read: for each request its length, its new tokens included.
    pub context_tokens: u64,
    /// Sum over requests of new tokens × their mean length: the pairs that attention scores.
    pub attention_pairs: u64,
    /// Rows of logits.
    pub logits_rows: u64,
}

/// What the time of a step depends on, one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeModel {
    /// Weights that every step reads, bytes (experts that no token visits excluded elsewhere).
    pub weight_bytes: u64,
    /// Bytes of KV of one token.
    pub kv_bytes_per_token: u64,
    /// Floating-point operations of one token outside attention scores and logits.
    pub flops_per_token: u64,
    /// Floating-point operations of one pair of tokens in attention, all layers.
    pub flops_per_pair: u64,
    /// Floating-point operations of one row of logits.
    pub flops_per_row: u64,
    /// Memory bandwidth that is reached, bytes per second.
    pub bytes_per_second: u64,
    /// Arithmetic that is reached, operations per second.
    pub flops_per_second: u64,
    /// Launches, collectives and the scheduler: a constant of every step.
    pub overhead: Nanos,
}

impl TimeModel {
    /// Time of a step, rounded up to a nanosecond in each part.
    #[must_use]
    pub fn step(&self, shape: &StepShape) -> Nanos {
        let times = |count: u64, each: u64| u128::from(count) * u128::from(each);
        let flops = times(shape.tokens, self.flops_per_token)
            + times(shape.attention_pairs, self.flops_per_pair)
            + times(shape.logits_rows, self.flops_per_row);
        let bytes =
            u128::from(self.weight_bytes) + times(shape.context_tokens, self.kv_bytes_per_token);
        let nanos =
            |amount: u128, rate: u64| (amount * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
        let longest = nanos(flops, self.flops_per_second).max(nanos(bytes, self.bytes_per_second));
        let longest = u64::try_from(longest).unwrap_or(u64::MAX);
        Nanos(longest.saturating_add(self.overhead.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_arithmetic_and_traffic_counts() {
        let model = TimeModel {
            weight_bytes: 1_000_000_000,
            kv_bytes_per_token: 100_000,
            flops_per_token: 2_000_000_000,
            flops_per_pair: 1_000,
            flops_per_row: 1_000_000,
            bytes_per_second: 1_000_000_000_000,
            flops_per_second: 100_000_000_000_000,
            overhead: Nanos(50_000),
        };
        let decode =
            StepShape { tokens: 1, requests: 1, context_tokens: 1000, ..Default::default() };
        // 1.1 GB at 1 TB/s.
        assert_eq!(model.step(&decode), Nanos(1_100_000 + 50_000));
        let prefill = StepShape { tokens: 8192, requests: 1, ..Default::default() };
        // 16.384 TFLOP at 100 TFLOP/s.
        assert_eq!(model.step(&prefill), Nanos(163_840_000 + 50_000));
        let huge = StepShape { tokens: u64::MAX, ..Default::default() };
        assert_eq!(model.step(&huge), Nanos(u64::MAX));
    }
}
