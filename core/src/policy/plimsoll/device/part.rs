//! The rows of a device's plan.

use crate::{figure::Why, memory::ledger::Account, units::Bytes};

/// Who holds memory of a device. The order is the order of printing, and that in which it is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DevicePart {
    /// Other programs on the device, at the start.
    OtherPrograms,
    /// The driver's context of this process, its streams and staging buffers.
    Context,
    /// Code of the own kernels.
    Kernels,
    /// cuBLASLt: its handle and the code of its kernels.
    Gemm,
    /// NCCL: buffers and channels of its communicator.
    Collectives,
    /// Weights of this rank.
    Weights,
    /// Cosines and sines of every position.
    Rotary,
    /// Ids, positions and page tables of the largest step, and the tokens that it chooses.
    Inputs,
    /// Activations of the largest step.
    Arena,
    /// Parts of attention that are not merged yet.
    Scratch,
    /// Workspace of matrix products.
    Workspace,
    /// Captured decode graphs.
    Graphs,
    /// Pages of the KV pool.
    KvPool,
    /// Left free for other programs.
    Margin,
    /// Free beyond the margin: less than a page of the pool, or more than it may have.
    Rest,
    /// Taken by nobody that is known.
    Unexplained,
}

impl DevicePart {
    /// Every part, in printing order.
    pub const ALL: [Self; 16] = [
        Self::OtherPrograms,
        Self::Context,
        Self::Kernels,
        Self::Gemm,
        Self::Collectives,
        Self::Weights,
        Self::Rotary,
        Self::Inputs,
        Self::Arena,
        Self::Scratch,
        Self::Workspace,
        Self::Graphs,
        Self::KvPool,
        Self::Margin,
        Self::Rest,
        Self::Unexplained,
    ];

    /// Name in records and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OtherPrograms => "other_programs",
            Self::Context => "context",
            Self::Kernels => "kernels",
            Self::Gemm => "cublaslt",
            Self::Collectives => "nccl",
            Self::Weights => "weights",
            Self::Rotary => "rotary_table",
            Self::Inputs => "step_inputs",
            Self::Arena => "arena",
            Self::Scratch => "attention_scratch",
            Self::Workspace => "gemm_workspace",
            Self::Graphs => "graphs",
            Self::KvPool => "kv_pool",
            Self::Margin => "margin",
            Self::Rest => "rest",
            Self::Unexplained => "unexplained",
        }
    }

    /// Name for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::OtherPrograms => "other programs",
            Self::Context => "CUDA context",
            Self::Kernels => "own kernels' code",
            Self::Gemm => "cuBLASLt",
            Self::Collectives => "NCCL",
            Self::Weights => "weights",
            Self::Rotary => "rotary table",
            Self::Inputs => "step inputs, page tables",
            Self::Arena => "activations (largest step)",
            Self::Scratch => "attention scratch",
            Self::Workspace => "GEMM workspace",
            Self::Graphs => "decode graphs",
            Self::KvPool => "KV pool",
            Self::Margin => "margin, left free",
            Self::Rest => "rest, not used",
            Self::Unexplained => "unexplained",
        }
    }

    /// The account of a ledger that it belongs to.
    #[must_use]
    pub const fn account(self) -> Account {
        match self {
            Self::OtherPrograms => Account::OtherPrograms,
            Self::Context | Self::Kernels | Self::Gemm | Self::Collectives => Account::Context,
            Self::Weights => Account::Weights,
            Self::Rotary | Self::Scratch | Self::Workspace => Account::Workspaces,
            Self::Inputs => Account::RequestTable,
            Self::Arena => Account::Activations,
            Self::Graphs => Account::Graphs,
            Self::KvPool => Account::KvPool,
            Self::Margin | Self::Rest => Account::Free,
            Self::Unexplained => Account::Unaccounted,
        }
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceRow {
    /// Who.
    pub part: DevicePart,
    /// As predicted before it was taken.
    pub planned: Bytes,
    /// What the device's free memory fell by when it was taken.
    pub measured: Option<Bytes>,
    /// From what it was predicted.
    pub why: Why,
}

impl DeviceRow {
    /// What counts: the measurement, where there is one.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.measured.unwrap_or(self.planned)
    }
}
