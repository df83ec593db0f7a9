//! What a scheduler is started with.

use crate::{
    kv::{EvictionPolicy, HostTierOptions},
    policy::sglang::version::Version,
    sched::OutputIds,
};

/// Largest pool, tokens: sums of a batch stay far from overflow.
pub(super) const MAX_POOL: u64 = 1 << 48;
/// Largest page, tokens.
const MAX_PAGE: u64 = 1 << 16;

/// Order of the waiting queue (`--schedule-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Longest cached prefix first. A queue of more than 128 is served as it stands.
    Lpm,
    /// Depth first through the prefix cache, heavier branches first.
    DfsWeight,
    /// Longest output limit first.
    Lof,
}

/// The scheduler's loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoopKind {
    /// A batch's results are processed before the next batch is decided (`--disable-overlap-schedule`).
    Normal,
    /// They are processed after the next batch was launched.
    #[default]
    Overlap,
}

/// Whether running requests decode inside a prefill batch (`--enable-mixed-chunk`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MixedChunk {
    /// They wait.
    #[default]
    Off,
    /// They take part.
    On,
}

/// The prefix cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixCache {
    /// Radix tree with this order of eviction.
    Radix(EvictionPolicy),
    /// Radix tree with this order of eviction, in slots and in a host tier
    /// (`--enable-hierarchical-cache`).
    Hierarchical(EvictionPolicy, HostTierOptions),
    /// None (`--disable-radix-cache`).
    Off,
}

impl PrefixCache {
    /// Order of eviction; `None` where nothing is cached.
    #[must_use]
    pub const fn eviction(self) -> Option<EvictionPolicy> {
        match self {
            Self::Radix(eviction) | Self::Hierarchical(eviction, _) => Some(eviction),
            Self::Off => None,
        }
    }
}

/// What is done with a prompt that does not fit the pool or the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TooLong {
    /// One token of it is computed, then it ends as aborted.
    #[default]
    Abort,
    /// It is cut (`--allow-auto-truncate`).
    Truncate,
}

/// Which key a finished request leaves in the prefix cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishKey {
    /// What the request's last prefill covered: outputs are not cached.
    Filled,
    /// Prompt and outputs whose KV exists.
    Committed,
}

/// The second pool of a hybrid model, whose other layers see a sliding window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwaOptions {
    /// Token slots of the window pool (`swa_max_total_num_tokens`); rounded down to whole pages.
    pub pool_tokens: u64,
    /// Tokens before the current one that a window layer sees (`sliding_window_size`).
    pub window: u64,
}

/// Which priorities go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PriorityOrder {
    /// Larger values.
    #[default]
    LargerFirst,
    /// Smaller values (`--schedule-low-priority-values-first`).
    SmallerFirst,
}

/// Scheduling by priority (`--enable-priority-scheduling`), which includes preemption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PriorityOptions {
    /// Which values go first.
    pub order: PriorityOrder,
    /// A running request is preempted by one whose priority is better by more than this.
    pub threshold: i64,
}

impl Default for PriorityOptions {
    fn default() -> Self {
        Self { order: PriorityOrder::default(), threshold: 10 }
    }
}

/// Everything that the scheduler's decisions depend on, besides the requests.
///
/// Sizes are what the engine ends up with, after its own defaults and limits (`policy::sglang`).
#[derive(Clone, PartialEq, Debug)]
pub struct SglangConfig {
    /// Release whose rules hold.
    pub version: Version,
    /// Token slots of the pool (`max_total_num_tokens`); rounded down to whole pages.
    pub pool_tokens: u64,
    /// Tokens of a page.
    pub page_size: u64,
    /// Tokens of a prefill chunk; `None`: prompts are not cut.
    pub chunked_prefill_size: Option<u64>,
    /// Tokens of a prefill batch.
    pub max_prefill_tokens: u64,
    /// Requests that may run at once; the rows limit it too.
    pub max_running_requests: u64,
    /// Rows of the request table.
    pub request_rows: u64,
    /// Tokens of a request, prompt and output (`context_length`).
    pub context_len: u64,
    /// Order of the waiting queue.
    pub policy: QueuePolicy,
    /// `schedule_conservativeness`.
    pub conservativeness: f64,
    /// Decoding inside prefill batches.
    pub mixed_chunk: MixedChunk,
    /// Loop.
    pub loop_kind: LoopKind,
    /// Prefix cache.
    pub prefix_cache: PrefixCache,
    /// Window pool of a hybrid model. Its prefix cache evicts what was used least recently, whatever the
    /// strategy, and keeps outputs.
    pub swa: Option<SwaOptions>,
    /// Prompts that are too long.
    pub too_long: TooLong,
    /// Requests of a prefill batch (`--prefill-max-requests`).
    pub prefill_max_requests: Option<u64>,
    /// Requests that may wait (`--max-queued-requests`).
    pub max_queued_requests: Option<u64>,
    /// Scheduling by priority.
    pub priority: Option<PriorityOptions>,
    /// What finished requests leave in the cache; `None`: as the release does.
    pub finish_key: Option<FinishKey>,
    /// Token ids of outputs.
    pub output_ids: OutputIds,
}

impl SglangConfig {
    /// A server with SGLang's own defaults, one token a page and as many rows as requests may run.
    #[must_use]
    pub fn new(version: Version, pool_tokens: u64, context_len: u64) -> Self {
        let running = (pool_tokens / 2).clamp(1, 4096);
        Self {
            version,
            pool_tokens,
            page_size: 1,
            chunked_prefill_size: Some(8192),
            max_prefill_tokens: 16_384,
            max_running_requests: running,
            request_rows: running,
            context_len,
            policy: QueuePolicy::default(),
            conservativeness: 1.0,
            mixed_chunk: MixedChunk::default(),
            loop_kind: LoopKind::default(),
            prefix_cache: PrefixCache::Radix(EvictionPolicy::default()),
            swa: None,
            too_long: TooLong::default(),
            prefill_max_requests: None,
            max_queued_requests: None,
            priority: None,
            finish_key: None,
            output_ids: OutputIds::default(),
        }
    }

    /// Slots of whole pages.
    pub(super) fn slots(&self) -> u64 {
        self.pool_tokens / self.page_size.max(1) * self.page_size.max(1)
    }

    /// Slots of whole pages of the window pool.
    pub(super) fn window_slots(&self) -> Option<u64> {
        let page = self.page_size.max(1);
        self.swa.map(|swa| swa.pool_tokens / page * page)
    }

    /// Tokens that a window layer sees.
    pub(super) fn window_len(&self) -> Option<u64> {
        self.swa.map(|swa| swa.window)
    }

    /// Slots of the smaller pool.
    pub(super) fn least_slots(&self) -> u64 {
        self.window_slots().map_or(self.slots(), |window| window.min(self.slots()))
    }

    /// Tokens that one request may have, prompt and output.
    ///
    /// Source: SGLang `TpModelWorker.__init__`, `max_req_len`.
    pub(super) fn max_req_len(&self) -> i64 {
        signed(self.context_len.min(self.least_slots())) - 1
    }

    /// Prompts of this length and more are too long.
    ///
    /// Source: SGLang `TpModelWorker.__init__`, `max_req_input_len`.
    pub(super) fn max_req_input_len(&self) -> i64 {
        self.max_req_len() - 5
    }

    /// Checks what the scheduler divides by or relies on.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let page = self.page_size;
        if page == 0 {
            return Err(ConfigError::NoPage);
        }
        if self.slots() == 0 {
            return Err(ConfigError::NoPool { pool: self.pool_tokens, page });
        }
        if self.pool_tokens > MAX_POOL || page > MAX_PAGE {
            return Err(ConfigError::TooLarge { pool: self.pool_tokens, page });
        }
        if let Some(swa) = self.swa {
            let (pool, window) = (swa.pool_tokens, swa.window);
            if self.window_slots() == Some(0)
                || pool > MAX_POOL
                || !(1..=MAX_POOL).contains(&window)
            {
                return Err(ConfigError::Window { pool, window, page });
            }
        }
        if let Some(chunk) = self.chunked_prefill_size
            && (chunk == 0 || chunk % page != 0)
        {
            return Err(ConfigError::Chunk { chunk, page });
        }
        if !self.conservativeness.is_finite() || self.conservativeness < 0.0 {
            return Err(ConfigError::Conservativeness(self.conservativeness));
        }
        if let PrefixCache::Hierarchical(_, host) = self.prefix_cache
            && host.tokens > MAX_POOL
        {
            return Err(ConfigError::HostTooLarge { tokens: host.tokens });
        }
        if self.max_running_requests.min(self.request_rows) == 0 {
            return Err(ConfigError::NoRequests);
        }
        let by_priority = matches!(self.policy, QueuePolicy::Fcfs | QueuePolicy::Lof);
        if self.priority.is_some() && !by_priority {
            return Err(ConfigError::PriorityPolicy);
        }
        Ok(())
    }
}

/// Settings that no scheduler can be made from.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A page of no tokens.
    #[error("the page size must be at least 1 token")]
    NoPage,
    /// No whole page fits.
    #[error("a pool of {pool} tokens holds no page of {page}")]
    NoPool {
        /// Tokens of the pool.
        pool: u64,
        /// Tokens of a page.
        page: u64,
    },
    /// Beyond any machine, and beyond what sums are kept for.
    #[error(
        "a pool of {pool} tokens in pages of {page} is more than 2^48 tokens in pages of 65536"
    )]
    TooLarge {
        /// Tokens of the pool.
        pool: u64,
        /// Tokens of a page.
        page: u64,
    },
    /// A hybrid whose window pool or window is nothing, or beyond any machine.
    #[error(
        "a window pool of {pool} tokens in pages of {page} and a window of {window}: each must be at \
         least a page or 1 token, and at most 2^48 tokens"
    )]
    Window {
        /// Tokens of the window pool.
        pool: u64,
        /// Tokens that a window layer sees.
        window: u64,
        /// Tokens of a page.
        page: u64,
    },
    /// As [`Self::TooLarge`].
    #[error("a host tier of {tokens} tokens is more than 2^48")]
    HostTooLarge {
        /// Tokens of the host tier.
        tokens: u64,
    },
    /// SGLang refuses this too.
    #[error("a chunk of {chunk} tokens is not a positive multiple of the page size {page}")]
    Chunk {
        /// Tokens of a chunk.
        chunk: u64,
        /// Tokens of a page.
        page: u64,
    },
    /// Not a factor.
    #[error("schedule conservativeness {0} is not a finite number of at least 0")]
    Conservativeness(f64),
    /// Nothing could ever run.
    #[error("no request may run: max_running_requests or the request table is 0")]
    NoRequests,
    /// SGLang refuses this too.
    #[error("scheduling by priority needs the policy fcfs or lof")]
    PriorityPolicy,
}

/// A count in the scheduler's signed arithmetic.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count that cannot be negative.
pub(super) fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
