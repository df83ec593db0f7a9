//! PyTorch's out-of-memory texts.

use crate::log::Amount;

/// Which wording it is; what each prints differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TorchOomForm {
    /// 2.1 and later: `GPU 0 has a total capacity of … of which … is free. …`.
    Sentences,
    /// Up to 2.0, and NPU: `(GPU 0; … total capacity; … already allocated; … free; … reserved in total …)`.
    Brackets,
    /// vLLM's and others' own: `memory allocation failed … trying to allocate N bytes (free: N, total: N)`.
    Counted,
    /// Only the name of the exception, or cut off before any figure.
    Bare,
}

/// `CUDA out of memory. Tried to allocate …` with every figure that it printed. Source of the fields:
/// PyTorch `CUDACachingAllocator` (the segment asked for, not the tensor; total and free are the driver's
/// after everything cached was released).
#[derive(Clone, PartialEq, Debug)]
pub struct TorchOom {
    /// Which wording.
    pub form: TorchOomForm,
    /// `CUDA`, `HIP`, `NPU`, `XPU`, `MPS` as printed.
    pub dialect: Box<str>,
    /// The segment that was asked for.
    pub requested: Option<Amount>,
    /// Ordinal of the device in the process's view.
    pub device: Option<u32>,
    /// Total capacity.
    pub capacity: Option<Amount>,
    /// Free on the device.
    pub free: Option<Amount>,
    /// `this process has … memory in use`. `0 bytes` and 2^64 are artefacts (containers, WSL2): kept as printed.
    pub this_process: Option<Amount>,
    /// `Process … has … memory in use`, one for each other process listed (numbers of processes are not kept).
    pub processes: Vec<Amount>,
    /// Allocated by PyTorch.
    pub allocated: Option<Amount>,
    /// In private pools (CUDA graphs).
    pub private_pools: Option<Amount>,
    /// Reserved by PyTorch and not allocated; in the form with brackets: reserved − allocated.
    pub reserved_unallocated: Option<Amount>,
    /// The innermost frames of the traceback above it, outermost first (at most 24).
    pub frames: Vec<super::Frame>,
}
