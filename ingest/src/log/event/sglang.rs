//! Lines that only SGLang writes. Templates: SGLang 0.4.x to 0.5.23, `model_runner`, `memory_pool`,
//! `cuda_graph_runner`, `scheduler`, `scheduler_metrics_mixin`.

use crate::log::Amount;

/// A line of SGLang with its figures. "GB" in these lines is GiB.
#[derive(Clone, PartialEq, Debug)]
pub enum Sglang {
    /// `server_args=ServerArgs(…)`: every argument as printed, in its order (bounded; secrets left out).
    ServerArgs(Vec<(Box<str>, Box<str>)>),
    /// `Init torch distributed ends. mem usage=…` / `Memory baseline taken. mem usage=…`.
    ContextTaken {
        /// What the context and communicators took.
        usage: Amount,
    },
    /// `Load weight begin. avail mem=…`.
    LoadBegin {
        /// Free before loading.
        avail: Amount,
    },
    /// `Load weight end. …`.
    LoadEnd {
        /// Class of the model.
        model_class: Option<Box<str>>,
        /// `dtype=` or `quant=` as printed.
        form: Option<Box<str>>,
        /// Free after loading.
        avail: Option<Amount>,
        /// What loading took; below zero when memory came back meanwhile.
        usage: Option<Amount>,
        /// Whether this model is a draft (its class ends in MTP, NextN, Eagle…).
        draft: Option<bool>,
    },
    /// `KV Cache is allocated. …`; K and V apart or `KV size` for latent attention.
    KvAllocated {
        /// `Full`, `SWA` where labelled.
        label: Option<Box<str>>,
        /// Token slots; some releases and some quotations leave them out.
        tokens: Option<u64>,
        /// K size, or the whole where only one figure is printed.
        k: Option<Amount>,
        /// V size.
        v: Option<Amount>,
        /// Element type as printed.
        dtype: Option<Box<str>>,
    },
    /// `Use sliding window memory pool. full_layer_tokens=…, swa_layer_tokens=…`.
    WindowPool {
        /// Tokens of the full-attention pool.
        full: Option<u64>,
        /// Tokens of the window pool.
        window: Option<u64>,
    },
    /// `Mamba Cache is allocated. …`.
    MambaAllocated {
        /// State slots.
        slots: Option<u64>,
        /// Convolution state.
        conv: Option<Amount>,
        /// SSM state.
        ssm: Option<Amount>,
        /// Intermediate SSM states of speculation.
        intermediate_ssm: Option<Amount>,
        /// Intermediate convolution windows of speculation.
        intermediate_conv: Option<Amount>,
    },
    /// `Memory pool end. avail mem=…`.
    PoolEnd {
        /// Free after the pools.
        avail: Amount,
    },
    /// `Capture … begin. … avail mem=…`.
    CaptureBegin {
        /// What is captured, in lower case as printed: `cuda graph`, `piecewise cuda graph`,
        /// `target verify cuda graph`, `draft decode cuda graph` …
        what: Box<str>,
        /// Free before, where printed.
        avail: Option<Amount>,
    },
    /// A progress line: `Capturing batches (bs=… avail_mem=…)`, `Capturing num tokens (…)`.
    Capturing {
        /// Batch size or tokens.
        size: Option<u64>,
        /// Free at that moment.
        avail: Option<Amount>,
    },
    /// `Capture … end. … mem usage=… avail mem=…`.
    CaptureEnd {
        /// As in [`Sglang::CaptureBegin`].
        what: Box<str>,
        /// What it took; below zero when memory came back meanwhile.
        usage: Option<Amount>,
        /// Free after.
        avail: Option<Amount>,
    },
    /// `max_total_num_tokens=…, chunked_prefill_size=…, …`.
    Summary {
        /// Token slots of the pool.
        max_total_num_tokens: u64,
        /// Chunk, per data-parallel rank; −1 is off.
        chunked_prefill_size: Option<i64>,
        /// Prefill token budget.
        max_prefill_tokens: Option<u64>,
        /// Requests that may run.
        max_running_requests: Option<u64>,
        /// Context length.
        context_len: Option<u64>,
        /// Free at the end of the start.
        available_gpu_mem: Option<Amount>,
    },
    /// `max_total_tokens=… is larger than the profiled value …`.
    ProfiledBelowAsked {
        /// Asked for.
        asked: i64,
        /// What fits; can be negative.
        profiled: i64,
    },
    /// `max_running_requests was reduced …` / `is capped to …`.
    RunningCapped {
        /// Asked for.
        asked: Option<u64>,
        /// What is left.
        left: Option<u64>,
    },
    /// `Not enough memory. Please try to increase --mem-fraction-static.`
    NotEnoughMemory {
        /// `Current value: …` where printed.
        fraction: Option<f64>,
    },
    /// `Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=…`.
    WeightsLeaveNothing {
        /// The fraction in force.
        fraction: Option<f64>,
        /// `Raise --mem-fraction-static above …`.
        above: Option<f64>,
        /// `minimum viable = …`.
        minimum: Option<f64>,
    },
    /// The memory of the ranks is unbalanced: `The memory capacity is unbalanced.`
    Unbalanced,
    /// `Allocating … GB host memory for hierarchical KV cache.` (GB is decimal here).
    HostPool {
        /// Bytes for this rank.
        size: Amount,
        /// Tokens where printed.
        tokens: Option<u64>,
    },
    /// `Not enough host memory available. Requesting … but only have … free.`
    HostPoolRefused {
        /// Asked for.
        requested: Option<Amount>,
        /// Free by its account.
        free: Option<Amount>,
    },
    /// MLX: `Auto-sized attention KV pool: sys_available=…`.
    MlxPool {
        /// Free memory of the system as read.
        available: Option<Amount>,
        /// Budget.
        budget: Option<Amount>,
        /// Slots.
        slots: Option<u64>,
        /// Bytes of a slot.
        cell: Option<u64>,
    },
    /// LoRA buffers: the backend or `Using … as the LoRA backend`, with its bytes where printed.
    Lora {
        /// Bytes where printed.
        bytes: Option<Amount>,
    },
    /// `The server is fired up and ready to roll!`
    Ready,
    /// `KV cache pool is full. Retract requests. …` / `Decode out of memory happened. …`.
    Retract {
        /// Requests thrown out.
        requests: u64,
        /// Tokens won, where printed.
        gained: Option<u64>,
        /// New-token ratio before and after.
        ratio: Option<(f64, f64)>,
    },
    /// `Prefill out of memory. …` of the token pool: slots, not bytes.
    PrefillPoolExhausted {
        /// Tokens asked for.
        tokens: Option<u64>,
    },
    /// `Decode out of memory. …` / `Out of memory even after retracting …` of the token pool.
    DecodePoolExhausted {
        /// Tokens asked for.
        tokens: Option<u64>,
    },
    /// `alloc_req_slots runs out of memory.`
    RequestSlotsExhausted,
    /// `Input length (… tokens) exceeds the maximum allowed length (… tokens).`
    InputTooLong {
        /// The prompt.
        input: u64,
        /// The limit.
        limit: u64,
    },
    /// `Capture cuda graph failed: …` (the cause is its own event).
    CaptureFailed {
        /// The text after the colon, first line.
        text: Box<str>,
    },
    /// `Scheduler hit an exception: …`.
    SchedulerException,
    /// `Server couldn't get a response from detokenizer for last … seconds`; health check failures.
    DetokenizerSilent {
        /// Seconds.
        seconds: Option<u64>,
    },
    /// `Watchdog timeout`.
    Watchdog,
    /// `Memory … leak detected` of the token pool: slots that were lost.
    PoolLeak,
}
