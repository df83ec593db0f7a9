//! The metrics of a run, computed at its end.

use super::{METRICS, MetricSpec, Summary};

/// Metrics, all integers; the documentation of [`METRICS`] says what each is. A share or a time of nothing
/// is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetricsReport {
    /// Requests that reached the server.
    pub arrived: u64,
    /// Requests that were answered.
    pub finished: u64,
    /// Requests that were given up.
    pub aborted: u64,
    /// Requests that were turned away.
    pub refused: u64,
    /// From the first arrival to the last token, nanoseconds.
    pub load_time: u64,
    /// Time in which passes ran, nanoseconds.
    pub busy_time: u64,
    /// Prompt tokens of requests that got a first token.
    pub input_tokens: u64,
    /// Tokens that requests got.
    pub output_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens computed once more.
    pub recomputed_tokens: u64,
    /// Part of the admitted prompts that was cached, millionths.
    pub hit_rate_ppm: Option<u64>,
    /// Requests that kept the SLO; `None` without one.
    pub good: Option<u64>,
    /// Mean use of the pool, millionths.
    pub pool_usage_mean_ppm: u64,
    /// Peak use of the pool, millionths.
    pub pool_usage_peak_ppm: u64,
    /// Mean of the running requests, thousandths.
    pub running_mean_milli: u64,
    /// Most running requests.
    pub running_max: u64,
    /// Retractions, those for a better priority included.
    pub retractions: u64,
    /// Retractions for a better priority.
    pub preemptions: u64,
    /// Pieces of prompts behind which more followed.
    pub chunks: u64,
    /// Deferrals: no token, budget, running full.
    pub deferrals: [u64; 3],
    /// Arrival to first token, of answered requests.
    pub ttft: Option<Summary>,
    /// Time per output token after the first, of answered requests with two or more.
    pub tpot: Option<Summary>,
    /// Gaps between two tokens, of all requests.
    pub itl: Option<Summary>,
    /// Arrival to last token, of answered requests.
    pub e2e: Option<Summary>,
    /// Arrival to first admission, of all that were admitted.
    pub queue_time: Option<Summary>,
}

impl MetricsReport {
    /// Thousandths a second of the load's time; `None` where no time went by.
    #[must_use]
    pub fn rate_milli_per_s(&self, count: u64) -> Option<u64> {
        let whole = u128::from(self.load_time);
        (whole > 0).then(|| super::summary::rounded(u128::from(count) * 1_000_000_000_000, whole))
    }

    /// Part of the requests that arrived that kept the SLO, millionths.
    #[must_use]
    pub fn slo_share_ppm(&self) -> Option<u64> {
        let good = self.good.filter(|_| self.arrived > 0)?;
        Some(super::summary::rounded(u128::from(good) * 1_000_000, u128::from(self.arrived)))
    }

    /// Every metric with its value.
    #[must_use]
    pub fn values(&self) -> Vec<(&'static MetricSpec, Option<u64>)> {
        let rate = |count| self.rate_milli_per_s(count);
        let single = [
            Some(self.arrived),
            Some(self.finished),
            Some(self.aborted),
            Some(self.refused),
            Some(self.load_time),
            Some(self.busy_time),
            Some(self.input_tokens),
            Some(self.output_tokens),
            Some(self.cached_tokens),
            Some(self.recomputed_tokens),
            rate(self.finished),
            rate(self.input_tokens),
            rate(self.output_tokens),
            rate(self.input_tokens.saturating_add(self.output_tokens)),
            self.hit_rate_ppm,
            self.good.and_then(rate),
            self.slo_share_ppm(),
            Some(self.pool_usage_mean_ppm),
            Some(self.pool_usage_peak_ppm),
            Some(self.running_mean_milli),
            Some(self.running_max),
            Some(self.retractions),
            Some(self.preemptions),
            Some(self.chunks),
            Some(self.deferrals.iter().sum()),
        ];
        let times = [self.ttft, self.tpot, self.itl, self.e2e, self.queue_time];
        let times = times.into_iter().flat_map(|summary| {
            let value = |of: fn(Summary) -> u64| summary.map(of);
            [
                value(|s| s.mean),
                value(|s| s.p50),
                value(|s| s.p90),
                value(|s| s.p95),
                value(|s| s.p99),
                value(|s| s.max),
            ]
        });
        let values = single.into_iter().chain(self.deferrals.map(Some)).chain(times);
        METRICS.iter().zip(values).collect()
    }
}
