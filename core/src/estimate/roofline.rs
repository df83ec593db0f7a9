//! How long a step takes: the larger of what its arithmetic and its memory traffic need, what the ranks
//! say to each other, and a constant. Integers throughout, so that a run has the same times everywhere.

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

/// Weights of routed experts, of which a step reads those that a token visits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpertTraffic {
    /// Bytes of all routed experts on the rank, all layers.
    pub bytes: u64,
    /// Experts of a layer.
    pub experts: u64,
    /// Experts that a token visits.
    pub top_k: u64,
}

impl ExpertTraffic {
    /// Bytes that a step of `tokens` reads: the expected share of distinct experts,
    /// 1 − (1 − `top_k` / `experts`)^`tokens`, rounded down to a byte. Tokens choose independently and
    /// evenly (assumed; real routers are less even, so that fewer experts are read).
    #[must_use]
    pub fn read(&self, tokens: u64) -> u64 {
        if self.bytes == 0 {
            return 0;
        }
        let share = ONE - power(self.missed(), tokens);
        narrow((u128::from(self.bytes) * share) >> 32)
    }

    /// Chance that a token does not visit an expert, in 2^-32.
    fn missed(&self) -> u128 {
        let unvisited = self.experts.saturating_sub(self.top_k);
        (u128::from(unvisited) << 32) / u128::from(self.experts.max(1))
    }
}

const ONE: u128 = 1 << 32;

/// `base`^`exponent` of a number of at most 1, in 2^-32, rounded down at every product.
fn power(mut base: u128, mut exponent: u64) -> u128 {
    let mut result = ONE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = (result * base) >> 32;
        }
        base = (base * base) >> 32;
        exponent >>= 1;
    }
    result
}

/// Layers that look at a limited number of past tokens: a sliding window, a chunk, a sparse choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowTraffic {
    /// Most past tokens that a new one looks at.
    pub window: u64,
    /// Bytes of KV of one token in these layers.
    pub kv_bytes_per_token: u64,
    /// Floating-point operations of one pair of tokens in these layers.
    pub flops_per_pair: u64,
}

/// What the time of a step depends on, one rank. Made by [`Self::of`]; the default takes no time at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeModel {
    /// Weights that every step reads, bytes; routed experts are apart.
    pub weight_bytes: u64,
    /// Routed experts; zero bytes without any.
    pub experts: ExpertTraffic,
    /// Bytes of KV of one token in layers that look at all of them.
    pub kv_bytes_per_token: u64,
    /// Layers that do not.
    pub window: WindowTraffic,
    /// State of linear layers that a request reads and writes, both counted.
    pub state_bytes_per_request: u64,
    /// Floating-point operations of one token outside attention scores and logits.
    pub flops_per_token: u64,
    /// Those of them that routed experts take.
    pub expert_flops_per_token: u64,
    /// Floating-point operations of one pair of tokens in attention, layers that look at all tokens.
    pub flops_per_pair: u64,
    /// Floating-point operations of one row of logits.
    pub flops_per_row: u64,
    /// Memory bandwidth that is reached, bytes per second; 0 counts as 1.
    pub bytes_per_second: u64,
    /// Arithmetic that is reached, operations per second; 0 counts as 1.
    pub flops_per_second: u64,
    /// Bytes that a rank sends for one token, all layers; 0 on one rank.
    pub link_bytes_per_token: u64,
    /// Rate at which it sends, bytes per second; 0 counts as 1.
    pub link_bytes_per_second: u64,
    /// Launches, latency of collectives and the scheduler: a constant of every step.
    pub overhead: Nanos,
    /// Rates of each kind of kernel, where a profile says them; else traffic and arithmetic of the whole
    /// step overlap.
    pub kernels: Option<KernelRates>,
}

/// Rates that kinds of kernels reach. Kernels run one after the other: the arithmetic of a matrix product
/// hides the weights that it reads, and not the KV that attention reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelRates {
    /// Weights are read at, bytes per second; 0 counts as 1, here and below.
    pub weight_bytes_per_second: u64,
    /// KV and states are read at, bytes per second.
    pub kv_bytes_per_second: u64,
    /// Matrix products, operations per second.
    pub matmul_flops_per_second: u64,
    /// Matrix products of routed experts.
    pub expert_flops_per_second: u64,
    /// Attention scores.
    pub attention_flops_per_second: u64,
    /// Each request of a step.
    pub request: Nanos,
}

impl TimeModel {
    /// Time of a step, rounded up to a nanosecond in each part; saturates. Traffic and arithmetic overlap,
    /// collectives and the constant do not.
    #[must_use]
    pub fn step(&self, shape: &StepShape) -> Nanos {
        self.step_beside(shape, 0)
    }

    /// The same where `others` tokens of other data-parallel ranks visit this rank's experts. Without
    /// [`KernelRates`] they are not counted.
    #[must_use]
    pub fn step_beside(&self, shape: &StepShape, others: u64) -> Nanos {
        if let Some(rates) = &self.kernels {
            return self.by_kernel(rates, shape, others);
        }
        let work = nanos(self.flops(shape), self.flops_per_second);
        let traffic = nanos(self.bytes(shape), self.bytes_per_second);
        let link = product(shape.tokens, self.link_bytes_per_token);
        let link = nanos(link, self.link_bytes_per_second);
        Nanos(work.max(traffic).saturating_add(link).saturating_add(self.overhead.0))
    }

    /// Time of a step whose kernels follow one another.
    fn by_kernel(&self, rates: &KernelRates, shape: &StepShape, others: u64) -> Nanos {
        let visits = shape.tokens.saturating_add(others);
        let dense = self.flops_per_token.saturating_sub(self.expert_flops_per_token);
        let products =
            sum([product(shape.tokens, dense), product(shape.logits_rows, self.flops_per_row)]);
        let experts = product(visits, self.expert_flops_per_token);
        let weights = |bytes| nanos(bytes, rates.weight_bytes_per_second);
        let parts = [
            weights(u128::from(self.weight_bytes))
                .max(nanos(products, rates.matmul_flops_per_second)),
            // The products of an expert have few rows: their arithmetic does not hide the weights.
            weights(u128::from(self.experts.read(visits))),
            nanos(experts, rates.expert_flops_per_second),
            nanos(self.kv_bytes(shape), rates.kv_bytes_per_second),
            nanos(self.score_flops(shape), rates.attention_flops_per_second),
            nanos(product(shape.tokens, self.link_bytes_per_token), self.link_bytes_per_second),
            narrow(product(shape.requests, rates.request.0)),
            self.overhead.0,
        ];
        Nanos(parts.into_iter().fold(0, u64::saturating_add))
    }

    /// Floating-point operations of a step.
    fn flops(&self, shape: &StepShape) -> u128 {
        sum([
            product(shape.tokens, self.flops_per_token),
            self.score_flops(shape),
            product(shape.logits_rows, self.flops_per_row),
        ])
    }

    /// Those of attention scores.
    fn score_flops(&self, shape: &StepShape) -> u128 {
        let near = shape.attention_pairs.min(shape.tokens.saturating_mul(self.window.window));
        sum([
            product(shape.attention_pairs, self.flops_per_pair),
            product(near, self.window.flops_per_pair),
        ])
    }

    /// Bytes that a step moves between memory and cores.
    fn bytes(&self, shape: &StepShape) -> u128 {
        sum([
            u128::from(self.weight_bytes),
            u128::from(self.experts.read(shape.tokens)),
            self.kv_bytes(shape),
        ])
    }

    /// Those of KV and states.
    fn kv_bytes(&self, shape: &StepShape) -> u128 {
        // Each request has a window behind its first new token, and the new tokens.
        let near = shape.requests.saturating_mul(self.window.window).saturating_add(shape.tokens);
        let near = shape.context_tokens.min(near);
        sum([
            product(shape.context_tokens, self.kv_bytes_per_token),
            product(near, self.window.kv_bytes_per_token),
            product(shape.requests, self.state_bytes_per_request),
        ])
    }
}

fn product(count: u64, each: u64) -> u128 {
    u128::from(count) * u128::from(each)
}

fn sum<const N: usize>(parts: [u128; N]) -> u128 {
    parts.into_iter().fold(0, u128::saturating_add)
}

/// Time of `amount` at `rate` a second, rounded up; saturates.
fn nanos(amount: u128, rate: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    let (scaled, rate) = (amount.saturating_mul(1_000_000_000), u128::from(rate.max(1)));
    // One division; a remainder would be another.
    let whole = scaled / rate;
    narrow(whole + u128::from(whole * rate < scaled))
}

fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> TimeModel {
        TimeModel {
            weight_bytes: 1_000_000_000,
            kv_bytes_per_token: 100_000,
            flops_per_token: 2_000_000_000,
            flops_per_pair: 1_000,
            flops_per_row: 1_000_000,
            bytes_per_second: 1_000_000_000_000,
            flops_per_second: 100_000_000_000_000,
            overhead: Nanos(50_000),
            ..TimeModel::default()
        }
    }

    #[test]
    fn the_slower_of_arithmetic_and_traffic_counts() {
        let decode =
            StepShape { tokens: 1, requests: 1, context_tokens: 1000, ..Default::default() };
        // 1.1 GB at 1 TB/s.
        assert_eq!(model().step(&decode), Nanos(1_100_000 + 50_000));
        let prefill = StepShape { tokens: 8192, requests: 1, ..Default::default() };
        // 16.384 TFLOP at 100 TFLOP/s.
        assert_eq!(model().step(&prefill), Nanos(163_840_000 + 50_000));
        let huge = StepShape { tokens: u64::MAX, ..Default::default() };
        assert_eq!(model().step(&huge), Nanos(u64::MAX));
    }

    #[test]
    fn collectives_come_on_top() {
        let linked = TimeModel {
            link_bytes_per_token: 1_000_000,
            link_bytes_per_second: 50_000_000_000,
            ..model()
        };
        let step = StepShape { tokens: 8192, requests: 1, ..Default::default() };
        assert_eq!(linked.step(&step), Nanos(163_840_000 + 163_840_000 + 50_000));
    }

    /// The arithmetic of a prefill hides the weights, and not the KV of the requests beside it.
    #[test]
    fn kernels_follow_one_another() {
        let kernels = KernelRates {
            weight_bytes_per_second: 1_000_000_000_000,
            kv_bytes_per_second: 500_000_000_000,
            matmul_flops_per_second: 100_000_000_000_000,
            expert_flops_per_second: 1,
            attention_flops_per_second: 1_000_000_000_000,
            request: Nanos(7),
        };
        let model = TimeModel { kernels: Some(kernels), ..model() };
        let step = StepShape {
            tokens: 8192,
            requests: 10,
            context_tokens: 100_000,
            attention_pairs: 5_000_000,
            logits_rows: 0,
        };
        // 163.84 ms of products, 10 GB of KV, 5 GFLOP of scores, 10 requests.
        assert_eq!(model.step(&step), Nanos(163_840_000 + 20_000_000 + 5_000_000 + 70 + 50_000));
        let decode = StepShape { tokens: 1, requests: 1, ..Default::default() };
        assert_eq!(model.step(&decode), Nanos(1_000_000 + 7 + 50_000));
    }

    #[test]
    fn experts_are_read_as_tokens_visit_them() {
        let experts = ExpertTraffic { bytes: 384_000_000, experts: 384, top_k: 8 };
        // One token: 8 of 384. Two: 8 + 8 · 376/384 = 15.833 of 384.
        assert!(experts.read(1).abs_diff(8_000_000) <= 1);
        assert!(experts.read(2).abs_diff(15_833_333) <= 1);
        // 384 × (1 − (1 − 1/48)^32) = 188.25.
        assert!(experts.read(32).abs_diff(188_250_000) < 20_000, "{}", experts.read(32));
        assert_eq!(experts.read(0), 0);
        assert_eq!(experts.read(8192), 384_000_000);
        let all = ExpertTraffic { bytes: 7, experts: 4, top_k: 4 };
        assert_eq!(all.read(1), 7);
        assert_eq!(ExpertTraffic::default().read(9), 0);
    }

    #[test]
    fn windows_cap_what_a_token_looks_at() {
        let window =
            WindowTraffic { window: 1000, kv_bytes_per_token: 100_000, flops_per_pair: 10_000_000 };
        let windowed = TimeModel { kv_bytes_per_token: 0, flops_per_pair: 0, window, ..model() };
        let long = |tokens, context| StepShape {
            tokens,
            requests: 1,
            context_tokens: context,
            attention_pairs: tokens * context,
            ..Default::default()
        };
        // 1 GB of weights and 1,001 tokens of 100 kB.
        assert_eq!(windowed.step(&long(1, 900_000)), Nanos(1_100_100 + 50_000));
        assert_eq!(windowed.step(&long(1, 500)), Nanos(1_050_000 + 50_000));
        // 8,192 × (2 GFLOP + 1,000 pairs of 10 MFLOP).
        assert_eq!(windowed.step(&long(8192, 900_000)), Nanos(983_040_000 + 50_000));
    }

    proptest! {
        #[test]
        fn more_work_never_takes_less_time(
            shape in prop::array::uniform5(0..1_000_000_u64),
            more in prop::array::uniform5(0..1_000_000_u64),
            experts in (0..u64::MAX, 1..1024_u64, 0..1024_u64),
            window in (0..100_000_u64, 0..1_000_000_u64),
        ) {
            let (bytes, count, top_k) = experts;
            let model = TimeModel {
                experts: ExpertTraffic { bytes, experts: count, top_k },
                window: WindowTraffic {
                    window: window.0,
                    kv_bytes_per_token: window.1,
                    flops_per_pair: window.1,
                },
                state_bytes_per_request: 1000,
                link_bytes_per_token: 10,
                link_bytes_per_second: 1000,
                ..model()
            };
            let of = |n: [u64; 5]| StepShape {
                tokens: n[0],
                requests: n[1],
                context_tokens: n[2],
                attention_pairs: n[3],
                logits_rows: n[4],
            };
            let sum = std::array::from_fn(|i| shape[i] + more[i]);
            prop_assert!(model.step(&of(shape)) <= model.step(&of(sum)));
            let kernels = KernelRates {
                weight_bytes_per_second: 1_000_000_000,
                kv_bytes_per_second: 900_000_000,
                matmul_flops_per_second: 5_000_000_000,
                expert_flops_per_second: 3_000_000_000,
                attention_flops_per_second: 2_000_000_000,
                request: Nanos(1000),
            };
            let kernels = TimeModel { kernels: Some(kernels), expert_flops_per_token: 7, ..model };
            prop_assert!(kernels.step(&of(shape)) <= kernels.step(&of(sum)));
            prop_assert!(
                kernels.step_beside(&of(shape), more[0]) <= kernels.step_beside(&of(sum), sum[0])
            );
            prop_assert!(model.experts.read(shape[0]) <= bytes);
        }
    }
}
