//! Pages of a running server → samples → a summary. Pure: who fetches the pages and reads the device is
//! the caller.
//!
//! A *rank* is what labels a series (`tp_rank`, `dp_rank`, `engine`, …). Figures of one rank are never put
//! beside those of another: a counter rises or falls within its rank alone.

mod advice;
mod page;
pub mod prometheus;
mod rank;
pub mod recording;
mod series;
mod server;
mod summary;

pub use advice::{Advice, Remedy, Verdict, advise};
pub use page::{Page, read_page};
pub use rank::RankId;
pub use recording::{Device, DeviceFree, End, Ending, Header, Line, MemoryPlace, Missed, Sample};
pub use server::{ServerFacts, ServerKind, models, server_info, server_load, version};
pub use summary::{
    DeviceSummary, FULL, Heaviest, Low, PrefillBy, RankSummary, Reading, Summary, Undercut,
};

use serde::{Deserialize, Serialize};

/// What one rank says at one moment. A figure that the server does not give is absent; totals count from
/// the start of the server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankFigures {
    /// Requests that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_requests: Option<u64>,
    /// Requests that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_requests: Option<u64>,
    /// Tokens of the pool that requests hold; of vLLM usage × capacity, rounded to the nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_held_tokens: Option<u64>,
    /// Size of the pool: SGLang's `max_total_num_tokens`, vLLM's blocks × block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_capacity_tokens: Option<u64>,
    /// Share of the pool that is held, 0 to 1. Of hybrids the fullest of their pools, as SGLang gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_usage: Option<f64>,
    /// Requests whose slots were taken back: SGLang's retractions, vLLM's preemptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retractions_total: Option<u64>,
    /// Requests of the last retraction (SGLang's older gauge, which falls back to 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retracting_requests: Option<u64>,
    /// Prompt tokens that prefill passes computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_total: Option<u64>,
    /// Prompt tokens of requests, cached ones too. SGLang counts them when a request ends, vLLM at its first
    /// output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_total: Option<u64>,
    /// Tokens that were generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_total: Option<u64>,
    /// The server's own figure of its output, tokens a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_per_s: Option<f64>,
    /// Share of prompt tokens found in the prefix cache, 0 to 1, as SGLang gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_hit_rate: Option<f64>,
    /// Prompt tokens looked up in the prefix cache (vLLM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_query_tokens_total: Option<u64>,
    /// Of them, those that were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_hit_tokens_total: Option<u64>,
}

/// A share or rate to six decimals, so that it is the same once written and read. `None` for what is no
/// figure of a server: below 0, above 10^9, not a number.
pub(crate) fn plain(value: f64) -> Option<f64> {
    (0.0..=1e9).contains(&value).then(|| (value * 1e6).round() / 1e6)
}

impl RankFigures {
    /// Fills what follows from the other figures: the capacity that the server told elsewhere, tokens held
    /// from the usage, the usage from tokens held.
    pub(crate) fn complete(&mut self, capacity: Option<u64>) {
        // A rank that says nothing of its pool has none of its own.
        if self.pool_usage.is_none() && self.pool_held_tokens.is_none() {
            return;
        }
        self.pool_capacity_tokens = self.pool_capacity_tokens.or(capacity).filter(|n| *n > 0);
        let Some(capacity) = self.pool_capacity_tokens else { return };
        match (self.pool_held_tokens, self.pool_usage) {
            (None, Some(usage)) => {
                let held = (usage.clamp(0.0, 1.0) * capacity as f64).round();
                self.pool_held_tokens = Some(held as u64);
            }
            (Some(held), None) => self.pool_usage = plain(held as f64 / capacity as f64),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
