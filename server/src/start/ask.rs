//! What is asked of a server.

use std::path::PathBuf;

use plimsoll_backend_host::model::Keep;
use plimsoll_core::{policy::plimsoll::KvFormat, sched::sglang::QueuePolicy, units::Bytes};

/// What is asked of a server; `None` is the engine's own choice.
#[derive(Clone, Debug)]
pub struct Ask {
    /// A folder from the hub or a `.gguf` file.
    pub path: PathBuf,
    /// Name under which the model is served; `None`: the path's last part.
    pub name: Option<String>,
    /// What is kept free of the memory.
    pub margin: Option<Bytes>,
    /// Longest sequence; `None`: the model's own, at most [`DEFAULT_CONTEXT`].
    pub context_length: Option<u64>,
    /// Requests that run at once; `None`: 16 on the host, 64 on devices.
    pub max_running_requests: Option<u64>,
    /// Requests that may wait.
    pub max_queued_requests: Option<u64>,
    /// Token slots of the pool; `None`: as many as memory allows, on the host only as many as requests can use.
    pub max_total_tokens: Option<u64>,
    /// Tokens of a prefill pass; `None`: 512 on the host, 2048 on devices.
    pub chunked_prefill_size: Option<u64>,
    /// Token slots of a page.
    pub page_size: u64,
    /// Order of the waiting queue.
    pub policy: QueuePolicy,
    /// `schedule_conservativeness`.
    pub conservativeness: f64,
    /// Scheduling by priority.
    pub by_priority: bool,
    /// Whether prefixes are kept.
    pub prefix_cache: bool,
    /// How keys and values are kept; `None`: float32 on the host, the type of the arithmetic on devices.
    pub kv: Option<KvFormat>,
    /// Where it computes.
    pub on: On,
    /// Whether pages are lent when the memory runs short.
    pub lend: bool,
    /// Seconds since 1970.
    pub now: u64,
}

/// Where a model computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum On {
    /// On the processors of this machine.
    Host(HostAsk),
    /// On NVIDIA devices.
    Cuda(CudaAsk),
}

/// What holds for the host alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAsk {
    /// All that the process may hold.
    pub memory_limit: Option<Bytes>,
    /// How matrices are kept.
    pub keep: Keep,
    /// Threads of the model; `None`: one a core.
    pub threads: Option<usize>,
}

/// What holds for devices alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaAsk {
    /// Ordinals, a rank each.
    pub devices: Vec<u32>,
    /// Type of the arithmetic; `None`: that of the checkpoint.
    pub arithmetic: Option<Half>,
    /// Largest batch that has a decode graph; `None`: all that may run, 0: no graphs.
    pub graph_max: Option<u64>,
    /// Whether memory that no row explains ends the start.
    pub strict: bool,
}

/// A type of 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// bfloat16.
    Bf16,
    /// float16.
    F16,
}

/// Longest sequence unless another is asked for: a table of positions is held for all of it.
pub const DEFAULT_CONTEXT: u64 = 8192;

impl Ask {
    /// Requests that run at once.
    #[must_use]
    pub fn running(&self) -> u64 {
        let default = if matches!(self.on, On::Host(_)) { 16 } else { 64 };
        self.max_running_requests.unwrap_or(default)
    }

    /// Tokens of a prefill pass.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        // On a few cores a pass of 512 takes well under a second; a device is idle on so few.
        let default = if matches!(self.on, On::Host(_)) { 512 } else { 2048 };
        self.chunked_prefill_size.unwrap_or(default)
    }

    /// Longest sequence of a model that has `most`.
    #[must_use]
    pub fn context(&self, most: u64) -> u64 {
        self.context_length.unwrap_or(DEFAULT_CONTEXT.min(most))
    }
}
