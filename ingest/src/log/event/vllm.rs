//! Lines that only vLLM writes. Templates: vLLM 0.6 to 0.33, `worker`, `gpu_worker`, `gpu_model_runner`,
//! `kv_cache_utils`, `core`, `loggers`.

use crate::log::Amount;

/// A line of vLLM with its figures.
#[derive(Clone, PartialEq, Debug)]
pub enum Vllm {
    /// `non-default args: {…}` / `Initializing a V1 LLM engine (v…) with config: …`: the arguments as printed.
    Args(Vec<(Box<str>, Box<str>)>),
    /// `Model loading took …` / `Loading model weights took …`.
    LoadEnd {
        /// Weights and what loading left behind.
        weights: Amount,
    },
    /// `Free memory on device (a/b GiB) on startup. Desired GPU memory utilization is (u, w GiB)`; refusal or,
    /// in newer releases, a sentence of a healthy start.
    FreeAtStart {
        /// Free.
        free: Amount,
        /// Total.
        total: Amount,
        /// The fraction in force.
        utilization: Option<f64>,
        /// What it asks for.
        wanted: Option<Amount>,
        /// Whether the line says that this is too little (`is less than desired`).
        refused: Refused,
    },
    /// V0: `the current vLLM instance can use total_gpu_memory (…) x gpu_memory_utilization (…) = …`.
    Budget {
        /// Total of the device.
        total: Amount,
        /// The fraction.
        utilization: f64,
        /// Their product.
        budget: Amount,
    },
    /// V0: `model weights take …; non_torch_memory takes …; PyTorch activation peak memory takes …; the rest … is …`.
    Profile {
        /// Weights.
        weights: Option<Amount>,
        /// Outside PyTorch.
        non_torch: Option<Amount>,
        /// Peak of the profile run.
        activation_peak: Option<Amount>,
        /// Left for the KV cache.
        kv: Option<Amount>,
        /// `peak_torch_memory` of the oldest form (weights and activations together).
        peak_torch: Option<Amount>,
        /// `initial_memory_usage` of the oldest form: what was in use before the profile run, weights included.
        initial: Option<Amount>,
        /// `total_gpu_memory` of the oldest form.
        total: Option<Amount>,
        /// `gpu_memory_utilization` of the oldest form.
        utilization: Option<f64>,
    },
    /// `Actual usage is … for weight, … for peak activation, … for non-torch memory, and … for CUDAGraph memory.`
    /// with the suggestions behind it.
    Usage {
        /// Weights, or weights and non-torch together (`consumed memory`).
        consumed: Option<Amount>,
        /// Peak activation.
        activation_peak: Option<Amount>,
        /// Outside PyTorch, where apart.
        non_torch: Option<Amount>,
        /// Graphs.
        graphs: Option<Amount>,
        /// `--kv-cache-memory=N to fit into requested memory`.
        fit: Option<Amount>,
        /// `--kv-cache-memory=N to fully utilize gpu memory`.
        full: Option<Amount>,
        /// `Current kv cache memory in use is …`.
        in_use: Option<Amount>,
        /// Free memory before loading, of the sentence before it.
        free: Option<Amount>,
        /// Total of the device.
        total: Option<Amount>,
        /// The fraction in force.
        utilization: Option<f64>,
        /// What the fraction asks for.
        wanted: Option<Amount>,
    },
    /// `Available KV cache memory: …`; below zero when nothing fits.
    AvailableKv {
        /// For this rank.
        amount: Amount,
    },
    /// `GPU KV cache size: … tokens`.
    KvTokens {
        /// Tokens.
        tokens: u64,
        /// `max_model_len` and the requests of that length that fit, where on the same line (0.28 and later).
        per_request: Option<(u64, f64)>,
    },
    /// `# GPU blocks: …, # CPU blocks: …`.
    Blocks {
        /// On the device.
        gpu: u64,
        /// On the host.
        cpu: Option<u64>,
    },
    /// `Maximum concurrency for … tokens per request: …x`.
    Concurrency {
        /// `max_model_len`.
        tokens: u64,
        /// Requests of that length that fit.
        times: f64,
    },
    /// `Profiling CUDA graph memory` / `Estimated CUDA graph memory: …`.
    GraphEstimate {
        /// In all.
        amount: Amount,
    },
    /// `CUDA graph memory profiling is enabled … The current --gpu-memory-utilization=… is equivalent to …` of a
    /// healthy start ("increase … to"): a note, no advice.
    UtilizationNote {
        /// In force.
        current: Option<f64>,
        /// Without graph profiling.
        without: Option<f64>,
        /// To keep the same pool.
        increase_to: Option<f64>,
    },
    /// `Capturing cudagraphs …` / `Capturing CUDA graph shapes …`; progress bars too.
    Capturing {
        /// `FULL` or `PIECEWISE`, where printed.
        mode: Option<Box<str>>,
        /// Done and all, where printed.
        progress: Option<(u64, u64)>,
    },
    /// `Graph capturing finished in … secs, took … GiB`.
    CaptureEnd {
        /// What it took; below zero in some releases (unknown then).
        took: Option<Amount>,
    },
    /// `CUDA graph pool memory: … (actual), … (estimated), …`.
    GraphPool {
        /// Measured.
        actual: Amount,
        /// Estimated before sizing.
        estimated: Amount,
    },
    /// `Encoder CUDA graph capture complete.`
    EncoderGraphs,
    /// `No available memory for the cache blocks. Try increasing …`.
    NoBlocks,
    /// `To serve at least one request with the model's max seq len (…), … is needed … available …`.
    OneRequestTooLong {
        /// `max_model_len`.
        max_model_len: Option<u64>,
        /// KV bytes that one such request needs.
        needed: Option<Amount>,
        /// KV bytes there are.
        available: Option<Amount>,
        /// `the estimated maximum model length is …`.
        estimated: Option<u64>,
    },
    /// V0: `The model's max seq len (…) is larger than the maximum number of tokens that can be stored in KV cache (…)`.
    LongerThanPool {
        /// `max_model_len`.
        max_model_len: u64,
        /// Tokens of the pool.
        tokens: u64,
    },
    /// `Error in memory profiling. Initial free memory …, current free memory …`.
    FreeGrewWhileProfiling {
        /// Before.
        initial: Option<Amount>,
        /// After.
        current: Option<Amount>,
    },
    /// `CUDA out of memory occurred when warming up sampler with … dummy requests.`
    SamplerWarmup {
        /// Requests.
        requests: Option<u64>,
    },
    /// The profile run cannot hold the worst multimodal input; or an encoder budget line.
    EncoderBudget {
        /// Tokens of the worst case.
        worst: Option<u64>,
        /// Tokens profiled.
        profiled: Option<u64>,
    },
    /// V0: `Sequence group … is preempted by PreemptionMode.… total_num_cumulative_preemption=…`.
    Preempted {
        /// `RECOMPUTE` or `SWAP`.
        mode: Option<Box<str>>,
        /// Counter.
        total: Option<u64>,
    },
    /// `Aborted due to the lack of CPU swap space`.
    NoSwapSpace,
    /// `Too large swap space. …` (error) / `Possibly too large swap space. …` (warning).
    SwapSpace {
        /// Asked for.
        asked: Option<Amount>,
        /// Memory of the host.
        host: Option<Amount>,
        /// Whether it is the error.
        refused: Refused,
    },
    /// A phase that was reached.
    Phase(Reached),
    /// `Registering … cuda graph addresses`.
    GraphAddresses {
        /// How many.
        count: u64,
    },
    /// `Setting attention block size to …`, `Add … padding layers`: a hybrid model.
    HybridLayout {
        /// Block size in tokens where printed.
        block: Option<u64>,
    },
    /// `Application startup complete.` / `Starting vLLM API server`.
    Ready,
    /// `Chunked prefill is enabled with max_num_batched_tokens=…`.
    BatchedTokens {
        /// `max_num_batched_tokens`.
        tokens: u64,
    },
    /// `Initial free memory …, reserved … memory for KV Cache as specified by kv_cache_memory_bytes`: not measured.
    KvGiven {
        /// Free before.
        free: Option<Amount>,
        /// The pool, as asked for.
        reserved: Option<Amount>,
    },
    /// `Overriding num_gpu_blocks=… with num_gpu_blocks_override=…`.
    BlocksOverride {
        /// Blocks that fit.
        computed: u64,
        /// Blocks taken.
        taken: u64,
    },
    /// `Cannot auto-fit max_model_len`: not one token fits.
    AutoFitFailed,
    /// `User-specified max_model_len (…) is greater than the derived max_model_len`.
    ModelLenTooLarge {
        /// Asked for.
        asked: Option<u64>,
    },
    /// `This model's maximum context length is … tokens. However, you requested …`: one request refused.
    PromptTooLong {
        /// `max_model_len`.
        limit: u64,
        /// Tokens asked for.
        asked: Option<u64>,
    },
    /// `Sleep mode freed … memory, … is still in use`.
    Sleep {
        /// Given back.
        freed: Option<Amount>,
        /// Still held.
        in_use: Option<Amount>,
    },
    /// `Expandable segments are not compatible with memory pool`: sleep mode refuses the allocator's setting.
    SegmentsRefused,
    /// `VLLM_CPU_KVCACHE_SPACE … is not set, using … by default`: the pool is host memory.
    CpuKvSpace {
        /// Its size.
        size: Option<Amount>,
    },
    /// `max_num_seqs (…) exceeds available Mamba cache blocks (…)`: a state block for every running request.
    MambaBlocks {
        /// `max_num_seqs`.
        requests: u64,
        /// Blocks there are.
        blocks: u64,
    },
    /// `… item with … which exceeds the pre-allocated encoder cache size …`: one request refused.
    EncoderItemTooLarge {
        /// Tokens of the item.
        tokens: Option<u64>,
        /// Tokens that the encoder cache holds.
        limit: Option<u64>,
    },
    /// `Workspace is locked but allocation from … requires … MB, current size is … MB`.
    WorkspaceLocked {
        /// Asked for.
        required: Option<Amount>,
        /// There is.
        current: Option<Amount>,
    },
    /// `EngineCore encountered a fatal error`, `Engine core initialization failed`, `Exception in worker …`: the error is above.
    EngineFailed,
    /// `Auto-fit max_model_len: reduced from … to …`.
    ModelLenReduced {
        /// Before.
        from: u64,
        /// After.
        to: u64,
    },
}

/// A step of the start that left a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reached {
    /// `Starting to load model`.
    Load,
    /// `Loading weights took`.
    Weights,
    /// `torch.compile takes`.
    Compile,
    /// `Memory profiling takes`.
    Profiled,
    /// `Profiling CUDA graph memory`.
    GraphProfile,
    /// `init engine (profile, create kv cache, warmup model) took`.
    Initialized,
}

/// Whether a line that exists as a remark and as a refusal is the refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The server stops here.
    Yes,
    /// A remark.
    No,
}
