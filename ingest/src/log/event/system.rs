//! The operating system, drivers, container runtimes and Python.

use crate::log::Amount;

/// One frame of a Python traceback. Paths are cut to what lies inside a known package
/// (`sglang/srt/layers/logits_processor.py`) or to the file's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// File, redacted.
    pub file: Box<str>,
    /// Line in it.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<Box<str>>,
    /// The source line printed below the frame, cut to 160 bytes.
    pub code: Option<Box<str>>,
}

/// An exception that ended a traceback and is no other event. Class and message are empty where the text
/// ends inside the traceback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExceptionText {
    /// `RuntimeError`, `torch.OutOfMemoryError`, `ValueError` …
    pub class: Box<str>,
    /// Its message, first line, redacted, at most 400 bytes.
    pub message: Box<str>,
    /// The innermost frames, outermost first (at most 24).
    pub frames: Vec<Frame>,
}

/// What is not an engine's own line.
#[derive(Clone, PartialEq, Debug)]
pub enum System {
    /// A Python exception with its traceback.
    Exception(ExceptionText),
    /// The driver refused memory without the allocator's figures: `CUDA error: out of memory`,
    /// `cudaErrorMemoryAllocation`, `hipErrorOutOfMemory`, `CUDA_ERROR_OUT_OF_MEMORY`, `cudaMalloc failed`.
    DriverOom {
        /// The call, where the line names it (`cudaGraphInstantiate`, `cuMemCreate`).
        call: Option<Box<str>>,
        /// Bytes asked, where printed.
        requested: Option<Amount>,
        /// The innermost frames of the traceback that it ended, outermost first (at most 24).
        frames: Vec<Frame>,
    },
    /// A CUDA, HIP or Triton error that is not about memory (`an illegal memory access`, `no kernel image`).
    DeviceError {
        /// Its text.
        text: Box<str>,
        /// The innermost frames of the traceback that it ended, outermost first (at most 24).
        frames: Vec<Frame>,
    },
    /// `NV_ERR_NO_MEMORY` in the kernel log: the driver of a unified-memory machine found no pages.
    NvNoMemory,
    /// Metal: `kIOGPUCommandBufferCallbackErrorOutOfMemory`, `Insufficient Memory`.
    MetalOom,
    /// The kernel killed a process for memory (`Out of memory: Killed process`, `oom-kill:`).
    KernelKill {
        /// The process's name, without its number.
        process: Option<Box<str>>,
        /// Its resident memory.
        resident: Option<Amount>,
        /// Whether the kernel line names a memory control group as the limit that was hit.
        cgroup: Option<bool>,
    },
    /// `OOMKilled`, exit 137, `killed by the OOM killer`, `MemoryError`, `Cannot allocate memory`.
    HostOom {
        /// The words.
        text: Box<str>,
        /// The peak, where printed (`11.4G memory peak`).
        peak: Option<Amount>,
    },
    /// A process ended with this exit code; killed by signal n is −n.
    Exit {
        /// The code as printed.
        code: i64,
    },
    /// A signal arrived: `SIGQUIT received`, `Killed`, `SIGTERM`.
    Signal {
        /// Its name.
        name: Box<str>,
    },
    /// No room in shared memory or on disk: `No space left on device`, `Bus error`, `unable to open shared memory object`.
    NoSpace {
        /// The words.
        text: Box<str>,
    },
    /// Ray's own monitor killed a worker for host memory.
    RayMemoryKill,
    /// Free, used and total of a device as `nvidia-smi` prints it in a pasted table.
    SmiRow {
        /// Used.
        used: Amount,
        /// Total.
        total: Amount,
    },
}
