//! Lines of servers whose rules are not modelled: recognised, their figures kept.

use crate::log::Amount;

/// llama.cpp's server and library.
#[derive(Clone, PartialEq, Debug)]
pub enum LlamaCpp {
    /// `allocating … MiB on device …: cudaMalloc failed: out of memory`, `failed to allocate … buffer of size …`.
    BufferRefused {
        /// `model`, `KV` or `compute`, where the line tells.
        what: Option<Box<str>>,
        /// Bytes asked for.
        requested: Option<Amount>,
        /// Device.
        device: Option<u32>,
    },
    /// `compute buffer allocation failed, retrying without pipeline parallelism`: not fatal.
    RetryWithoutPipeline,
    /// `KV self size = …` / `kv cache size`.
    KvSize {
        /// In all.
        bytes: Amount,
    },
    /// `… compute buffer size = …`, `model buffer size`, `output buffer size`.
    Buffer {
        /// `compute`, `model`, `output`, `KV`.
        what: Box<str>,
        /// Size.
        bytes: Amount,
    },
    /// `cache state: … prompts, … MiB (limits: … MiB …)` of the prompt cache in host memory.
    PromptCache {
        /// Held.
        held: Option<Amount>,
        /// Limit.
        limit: Option<Amount>,
    },
    /// `saving prompt with length …, total state size = …`.
    PromptSave {
        /// Tokens.
        tokens: Option<u64>,
        /// Size of the state.
        bytes: Option<Amount>,
    },
    /// `created context checkpoint … of …`.
    Checkpoint,
    /// `new slot, n_ctx = …` / `n_slots = …, n_ctx_slot = …`.
    Slots {
        /// Slots, where counted.
        slots: Option<u32>,
        /// Tokens of a slot.
        n_ctx_slot: Option<u64>,
    },
    /// `Context size has been exceeded`, `exceeds the available context size`.
    ContextExceeded,
    /// `pipeline parallelism enabled (n_copies=…)`.
    PipelineCopies {
        /// Copies.
        copies: Option<u32>,
    },
    /// `failed to fit params …` of the automatic fit: not fatal by itself.
    FitFailed,
    /// `error loading model`, `failed to create context`, `unable to load model`: it ends.
    LoadFailed {
        /// `model` or `context`, where the line tells.
        what: Option<Box<str>>,
    },
    /// `server is listening`, `all slots are idle`: it serves.
    Ready,
}

/// ollama.
#[derive(Clone, PartialEq, Debug)]
pub enum Ollama {
    /// Memory of a device as its scheduler sees it.
    Device {
        /// Free.
        free: Option<Amount>,
        /// Total.
        total: Option<Amount>,
    },
    /// `offload to … layers.offload=… memory.required.full=…`.
    Offload {
        /// Needed in full.
        required: Option<Amount>,
        /// Layers on devices and in all.
        layers: Option<(u32, u32)>,
    },
    /// `model requires more system memory (…) than is available (…)`.
    SystemMemory {
        /// Needed.
        required: Option<Amount>,
        /// There is.
        available: Option<Amount>,
    },
    /// `llama runner process has terminated`, `model runner has unexpectedly stopped`.
    RunnerEnded,
}

/// TensorRT-LLM.
#[derive(Clone, PartialEq, Debug)]
pub enum TensorRtLlm {
    /// `Memory usage when calculating max tokens in paged kv cache: total: …, available: …`.
    KvBudget {
        /// Total.
        total: Option<Amount>,
        /// Available.
        available: Option<Amount>,
        /// The fraction of it that the cache may take, where printed.
        fraction: Option<f64>,
    },
    /// `Allocated … for max tokens in paged KV cache (…)` / `Allocate … bytes for k/v cache`.
    KvAllocated {
        /// Bytes.
        bytes: Amount,
        /// Tokens, where on the same line.
        tokens: Option<u64>,
    },
    /// `Using … tokens in paged KV cache`.
    KvTokens {
        /// Tokens.
        tokens: u64,
    },
    /// `[MemUsageChange] … now: CPU …, GPU … (MiB)`.
    EngineMemory {
        /// Device memory of the engine and contexts.
        gpu: Option<Amount>,
    },
    /// `Allocated … for execution context memory`, `… GPU memory for runtime buffers`, `… for decoder`.
    Buffers {
        /// `execution context`, `runtime buffers`, `decoder`.
        what: Box<str>,
        /// Size.
        bytes: Amount,
    },
    /// `CUDA runtime error in …: out of memory (….h:112)`, `OutOfMemory (Requested size was … bytes.)`.
    OutOfMemory {
        /// The source file that asked, without folders.
        place: Option<Box<str>>,
        /// Bytes asked for.
        requested: Option<Amount>,
    },
    /// `Impossible to fit in any sequence in kvCache`.
    PoolTooSmall,
}

/// Text Generation Inference.
#[derive(Clone, PartialEq, Debug)]
pub enum Tgi {
    /// `Not enough memory to handle … prefill tokens.`
    PrefillTokens {
        /// Prefill tokens.
        prefill: Option<u64>,
        /// Total tokens, where named.
        total: Option<u64>,
    },
    /// `Setting max batch total tokens to …`.
    TotalTokens {
        /// Tokens.
        tokens: u64,
    },
    /// `Shard … crashed` / `Shard process was signaled to shutdown with signal 9`.
    ShardEnded,
}

/// LMDeploy.
#[derive(Clone, PartialEq, Debug)]
pub enum Lmdeploy {
    /// `[BlockManager] … block_size = …, max_block_count = …`.
    Blocks {
        /// Blocks.
        blocks: Option<u64>,
        /// Bytes of a block.
        block_bytes: Option<Amount>,
    },
    /// `No enough blocks`, `[SequenceManager] insufficient`: pool too small.
    NoBlocks,
    /// `[TM][ERROR] CUDA runtime error: out of memory`, `No enough gpu memory for runtime.`
    OutOfMemory,
    /// `` `session_len` truncated to … due to limited KV cache memory ``.
    SessionTruncated {
        /// Tokens that fit.
        tokens: Option<u64>,
    },
}
