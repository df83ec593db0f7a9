//! What can be asked of an engine at any time.

use plimsoll_core::{sched::Usage, units::Bytes};

/// A row of the memory plan, or what its account really holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryRow {
    /// The device: `cuda:0`; `None` for the host.
    pub device: Option<String>,
    /// Account: `weights`, `kv_pool`, `arena`, …
    pub name: String,
    /// Bytes.
    pub bytes: Bytes,
}

/// What does not change while it serves.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EngineInfo {
    /// Name under which the model is served.
    pub model: String,
    /// Where it was read from.
    pub path: String,
    /// Seconds since 1970 at the start.
    pub created: u64,
    /// Longest sequence, prompt and answer.
    pub context_length: u64,
    /// Token slots of the pool (`max_total_num_tokens`).
    pub max_total_num_tokens: u64,
    /// Token slots of a page.
    pub page_size: u64,
    /// Requests that may run at once.
    pub max_running_requests: u64,
    /// Requests that may wait; `None`: any number.
    pub max_queued_requests: Option<u64>,
    /// Tokens of a prefill chunk.
    pub chunked_prefill_size: u64,
    /// Where it computes: `host`, `cuda:0`, `cuda:0,1`.
    pub device: String,
    /// Kinds of weights, for example `q4_1, float32 arithmetic`.
    pub precision: String,
    /// The memory plan; the rows of a device, or of the host, add up to its limit.
    pub memory: Vec<MemoryRow>,
}

/// Where in its life it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// Weights are being read.
    #[default]
    Loading,
    /// The largest prefill and the largest decode are being run.
    Proving,
    /// They have passed: it serves.
    Ready,
    /// It answers what it has and takes nothing new.
    Draining,
    /// It has answered everything.
    Stopped,
    /// It died; why.
    Failed(String),
}

/// Sums since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests taken in.
    pub requests: u64,
    /// Requests answered to their end.
    pub finished: u64,
    /// Requests given up by client or engine.
    pub aborted: u64,
    /// Requests turned away.
    pub refused: u64,
    /// Times that a running request gave its slots back.
    pub retracted: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of prompts that the prefix cache had.
    pub cached_tokens: u64,
    /// Tokens made.
    pub generation_tokens: u64,
    /// Prefill passes.
    pub prefill_steps: u64,
    /// Decode passes.
    pub decode_steps: u64,
    /// Nanoseconds in passes.
    pub step_ns: u64,
    /// Nanoseconds of the loop between them, while there was work.
    pub loop_ns: u64,
}

/// How it is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Status {
    /// Phase.
    pub phase: Phase,
    /// Use of pool and queues after the latest turn.
    pub usage: Usage,
    /// What the loaded model's own accounts hold; empty before.
    pub held: Vec<MemoryRow>,
    /// Token slots that are lent to the rest of the machine.
    pub lent_tokens: u64,
    /// Tokens a second of the latest stretch of decoding; 0 when it stands.
    pub gen_throughput: f64,
    /// Sums.
    pub totals: Totals,
}
