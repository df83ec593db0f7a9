//! What a server did while it served: the frequent lines of a log, counted rather than kept.

use std::collections::BTreeMap;

use super::Rank;

/// Smallest, largest and last value of a figure, and how often it was printed.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    /// Times printed.
    pub count: u64,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
    /// Last.
    pub last: f64,
    /// Line of the largest.
    pub most_line: u64,
}

impl Spread {
    /// Takes in a value; one that is no number is left out.
    pub fn add(&mut self, value: f64, line: u64) {
        if !value.is_finite() {
            return;
        }
        if self.count == 0 || value < self.least {
            self.least = value;
        }
        if self.count == 0 || value > self.most {
            self.most = value;
            self.most_line = line;
        }
        self.last = value;
        self.count += 1;
    }
}

/// The scheduler's lines of one rank in one start.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Activity {
    /// `Prefill batch` lines: `#new-token`.
    pub prefill_tokens: Spread,
    /// `#new-seq` of the same.
    pub prefill_requests: Spread,
    /// `#cached-token` of the same.
    pub cached_tokens: Spread,
    /// Sum of `#new-token`.
    pub prefill_tokens_sum: u64,
    /// Sum of `#cached-token`.
    pub cached_tokens_sum: u64,
    /// `Decode batch` lines (SGLang) or periodic statistics (vLLM): running requests.
    pub running: Spread,
    /// Waiting requests.
    pub queued: Spread,
    /// Pool usage, 0 to 1 (the full-attention pool of hybrids).
    pub usage: Spread,
    /// Usage of a window or state pool, 0 to 1.
    pub second_usage: Spread,
    /// Tokens held (`#token`).
    pub held_tokens: Spread,
    /// Generation throughput, tokens per second.
    pub throughput: Spread,
    /// Requests in transfer of a disaggregated server.
    pub transferring: Spread,
    /// Retraction lines.
    pub retractions: u64,
    /// Requests retracted.
    pub retracted_requests: u64,
    /// HTTP requests answered 200 on a generating route (`/generate`, `/v1/…completions`, `/v1/messages`, …).
    pub answered: u64,
    /// Health checks and other probes answered.
    pub probes: u64,
    /// Line of the first scheduler line, and of the last.
    pub lines: Option<(u64, u64)>,
}

/// By start of the server, then by rank.
pub type Activities = BTreeMap<(u32, Rank), Activity>;
