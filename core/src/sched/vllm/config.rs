//! What a vLLM scheduler is started with.

use crate::{policy::sglang::version::Version, sched::OutputIds};

use super::rules::Rules;

/// Most blocks of a pool: beyond any machine.
pub(super) const MAX_BLOCKS: u64 = 1 << 31;
/// Most tokens of a block, of a sequence and of a batch: sums stay far from overflow.
pub(super) const MAX_TOKENS: u64 = 1 << 40;

/// Order of the waiting queue (`--scheduling-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Smaller priorities first, then first come.
    Priority,
}

/// When results are processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoopKind {
    /// Before the next batch is decided.
    #[default]
    Synchronous,
    /// After it was launched (`--async-scheduling`).
    Asynchronous,
}

/// Whether blocks of earlier requests are found again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PrefixCaching {
    /// They are.
    #[default]
    On,
    /// They are not (`--no-enable-prefix-caching`).
    Off,
}

/// Whether a prompt may be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChunkedPrefill {
    /// It is cut where the batch is full.
    #[default]
    On,
    /// It waits for a batch that holds it whole.
    Off,
}

/// Whether a request is admitted only where all of it fits, not just its first chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionGate {
    /// All known tokens must fit (`scheduler_reserve_full_isl`).
    WholeSequence,
    /// The tokens of this turn must.
    NextChunk,
}

/// How states of recurrent layers are kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StateMode {
    /// One block for the whole life of a request.
    None,
    /// One block for each stretch of tokens.
    All,
    /// The latest state, and those where prompts are cut.
    Align {
        /// Where a state inside a chunk can be kept: at multiples of so many tokens after its start.
        checkpoints: Option<u64>,
    },
}

/// What the layers of a group keep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GroupKind {
    /// All tokens.
    Full,
    /// The last tokens.
    Window {
        /// How many, the newest included.
        window: u64,
    },
    /// The tokens of the chunk that is being written.
    Chunked {
        /// Tokens of a chunk.
        chunk: u64,
    },
    /// Recurrent states.
    Mamba(StateMode),
}

/// Layers that share a block table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupSpec {
    /// What they keep.
    pub kind: GroupKind,
    /// Tokens of a block.
    pub block_size: u64,
}

/// Everything that the scheduler's decisions depend on, besides the requests.
///
/// Sizes are what the engine ends up with, after its own defaults and limits (`policy::vllm`).
#[derive(Clone, PartialEq, Debug)]
pub struct VllmConfig {
    /// Release whose rules hold.
    pub version: Version,
    /// Blocks of the pool (`num_gpu_blocks`), the null block included.
    pub num_gpu_blocks: u64,
    /// Tokens of a block (`--block-size`, or what a hybrid model makes of it).
    pub block_size: u64,
    /// KV groups in the engine's order.
    pub groups: Vec<GroupSpec>,
    /// Tokens of a turn.
    pub max_num_batched_tokens: u64,
    /// Requests that may run.
    pub max_num_seqs: u64,
    /// Tokens of a request, prompt and output.
    pub max_model_len: u64,
    /// Prefix caching.
    pub prefix_caching: PrefixCaching,
    /// Chunked prefill.
    pub chunked_prefill: ChunkedPrefill,
    /// Tokens of one prompt in a turn (`--long-prefill-token-threshold`); 0 for no limit.
    pub long_prefill_token_threshold: u64,
    /// Whether that limit rises to an even share of the turn (0.33).
    pub adaptive_threshold: bool,
    /// Order of the waiting queue.
    pub policy: QueuePolicy,
    /// Loop.
    pub loop_kind: LoopKind,
    /// Admission.
    pub gate: AdmissionGate,
    /// Share of the pool that must stay free when a request is admitted beside others (0.33).
    pub watermark: f64,
    /// Distance at which blocks of windows and states stay findable, tokens; 0: only where prompts end;
    /// `None`: all (0.33).
    pub retention_interval: Option<u64>,
    /// Requests that may run, where it differs (`--max-num-active-seqs`, 0.33).
    pub max_num_active_seqs: Option<u64>,
    /// Turns from one prefill to the next (0.33); 1 for every turn.
    pub prefill_schedule_interval: u64,
    /// Token ids of outputs.
    pub output_ids: OutputIds,
}

impl VllmConfig {
    /// A server with vLLM's own defaults and one group of full attention.
    #[must_use]
    pub fn new(version: Version, num_gpu_blocks: u64, max_model_len: u64) -> Self {
        let rules = Rules::of(version);
        Self {
            version,
            num_gpu_blocks,
            block_size: 16,
            groups: vec![GroupSpec { kind: GroupKind::Full, block_size: 16 }],
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            max_model_len,
            prefix_caching: PrefixCaching::default(),
            chunked_prefill: ChunkedPrefill::default(),
            long_prefill_token_threshold: 0,
            adaptive_threshold: false,
            policy: QueuePolicy::default(),
            loop_kind: rules.loop_kind(),
            gate: rules.gate(),
            watermark: 0.0,
            retention_interval: Some(0),
            max_num_active_seqs: None,
            prefill_schedule_interval: 1,
            output_ids: OutputIds::default(),
        }
    }

    /// Requests that may run at once.
    #[must_use]
    pub fn most_running(&self) -> u64 {
        self.max_num_active_seqs.unwrap_or(self.max_num_seqs)
    }

    /// Checks what the scheduler divides by or relies on.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let sizes = self.groups.iter().map(|group| group.block_size);
        for tokens in
            sizes.chain([self.block_size, self.max_num_batched_tokens, self.max_model_len])
        {
            if tokens == 0 || tokens > MAX_TOKENS {
                return Err(ConfigError::Tokens(tokens));
            }
        }
        if self.num_gpu_blocks < 2 || self.num_gpu_blocks > MAX_BLOCKS {
            return Err(ConfigError::Blocks(self.num_gpu_blocks));
        }
        if self.groups.is_empty() || self.groups.len() > 256 {
            return Err(ConfigError::Groups(self.groups.len()));
        }
        if self.most_running() == 0 {
            return Err(ConfigError::NoRequests);
        }
        if !(0.0..=1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        let chunks = self.groups.iter().map(|group| match group.kind {
            GroupKind::Chunked { chunk } => chunk,
            GroupKind::Window { window } => window,
            GroupKind::Mamba(StateMode::Align { checkpoints: Some(every) }) => every,
            _ => 1,
        });
        for tokens in chunks {
            if tokens == 0 || tokens > MAX_TOKENS {
                return Err(ConfigError::Tokens(tokens));
            }
        }
        self.check_kinds()
    }

    /// 0.11 finds prefixes of one kind of group, or of full attention and one other.
    ///
    /// Source: vLLM 0.11.2 `HybridKVCacheCoordinator.verify_and_split_kv_cache_groups`.
    fn check_kinds(&self) -> Result<(), ConfigError> {
        let caching = self.prefix_caching == PrefixCaching::On;
        if !caching || self.groups.len() < 2 || Rules::of(self.version).joins_many_kinds() {
            return Ok(());
        }
        let mut kinds = self.groups.clone();
        kinds.sort_unstable();
        kinds.dedup();
        let full = kinds.iter().filter(|group| group.kind == GroupKind::Full).count();
        if kinds.len() == 2 && full == 1 { Ok(()) } else { Err(ConfigError::Kinds) }
    }
}

/// Settings that no scheduler can be made from.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A block, window, batch or sequence of no tokens, or beyond any machine.
    #[error("blocks, windows, batches and sequences have 1 to 2^40 tokens, not {0}")]
    Tokens(u64),
    /// No block beside the null block, or beyond any machine.
    #[error("a pool has 2 to 2^31 blocks, the null block included, not {0}")]
    Blocks(u64),
    /// No group, or beyond any model.
    #[error("a server has 1 to 256 KV groups, not {0}")]
    Groups(usize),
    /// Nothing could ever run.
    #[error("no request may run: max_num_seqs is 0")]
    NoRequests,
    /// Not a share.
    #[error("a watermark of {0} is not between 0 and 1")]
    Watermark(f64),
    /// vLLM stops too.
    #[error(
        "prefix caching over groups that are not full attention and one other kind is not possible in \
         this release"
    )]
    Kinds,
}
