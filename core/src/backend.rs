//! The machine as the engine sees it: memory of `n` ranks that can be read, taken and given back.
//!
//! Policy never lives in a backend. A backend reports, hands out and refuses; [`crate::engine`]
//! decides. A server of `n` ranks is `n` rank memories driven in lockstep.

pub mod conformance;

use crate::{
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};

/// Index of a tensor- or pipeline-parallel rank, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank(pub u32);

/// A segment that a backend handed out; valid until it is freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId(pub u64);

/// A range of addresses that a backend reserved; memory is mapped into parts of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RangeId(pub u64);

/// Where a segment lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Memory of the rank's device.
    Device,
    /// Host memory, as a host cache pool takes it.
    Host,
}

/// What a rank's device says about its memory at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryReading {
    /// What the vendor's tool prints as the device's memory (`nvidia-smi`); `None` when it cannot
    /// say (GB10, MIG).
    pub capacity: Option<Bytes>,
    /// What programs see as total (`cudaMemGetInfo`): the capacity without the driver's reserve;
    /// `None` when no reading of it works.
    pub total: Option<Bytes>,
    /// Free now, all programs counted.
    pub free: Bytes,
    /// Held by other programs, where the backend can tell; on memory in common with the host those on both
    /// sides.
    pub others: Option<Bytes>,
    /// What the host's side holds, where device and host have one memory.
    pub common: Option<HostSide>,
    /// What a real device said, where `free` is a declared reading; never decides anything.
    pub measured_free: Option<Bytes>,
}

/// The host's side of a memory that device and host have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSide {
    /// Programs on the host; part of [`MemoryReading::others`].
    pub others: Bytes,
    /// What the system itself holds or keeps, as far as [`MemoryReading::free`] counts it as used.
    pub system: Bytes,
    /// Page cache that [`MemoryReading::free`] counts as used; zero where the reading counts it as free.
    /// It is no one's: whoever asks takes its place.
    pub page_cache: Bytes,
}

/// One forward pass, as a backend executes it; all ranks take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepWork {
    /// Kind of the pass.
    pub mode: Mode,
    /// New tokens.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
    /// What the time model says it takes.
    pub time: Nanos,
}

/// What a pass took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepReport {
    /// Time that the run goes on by: the model's on a simulator and under ballast.
    pub elapsed: Nanos,
    /// Time that a real device took, where it was measured.
    pub measured: Option<Nanos>,
}

/// Which way KV moves between the device and its host tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KvMove {
    /// Device to host (backup).
    ToHost,
    /// Host to device (load-back).
    ToDevice,
}

/// Which limit of host memory was reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HostLimit {
    /// What the machine has available.
    Host,
    /// The limit of the server's control group (`memory.max`, `memory.limit_in_bytes`).
    Cgroup,
}

impl HostLimit {
    /// Name in the decision log: who kills the process that goes over it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cgroup => "cgroup",
        }
    }
}

/// Failures a backend can report. Running out of memory is an answer, never a panic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Too little memory free at this moment; a later try may succeed.
    #[error("rank {} is out of memory for {}: asked for {requested}, {free} free", rank.0, account.label())]
    OutOfMemory {
        /// Which rank.
        rank: Rank,
        /// For whom.
        account: Account,
        /// Size of the refused segment.
        requested: Bytes,
        /// Free when it was refused.
        free: Bytes,
    },
    /// Too little host memory. A backend answers; a real kernel does not: it grants the addresses (default
    /// overcommit refuses only what is larger than RAM and swap) and kills the process when it touches
    /// the pages, by the machine's OOM killer or by the one of the control group.
    #[error(
        "the {}'s memory has no room for {} of rank {}: asked for {requested}, {free} left; the kernel would kill the process",
        limit.name(), account.label(), rank.0
    )]
    HostOutOfMemory {
        /// For which rank; rank 0 for other programs.
        rank: Rank,
        /// For whom.
        account: Account,
        /// Which limit was reached; the tighter one where both are.
        limit: HostLimit,
        /// Size of the refused request.
        requested: Bytes,
        /// What the limit still left.
        free: Bytes,
    },
    /// Larger than the device; no later try can succeed.
    #[error("{requested} for {} can never fit the {capacity} of rank {}", account.label(), rank.0)]
    TooLarge {
        /// Which rank.
        rank: Rank,
        /// For whom.
        account: Account,
        /// Size of the refused segment.
        requested: Bytes,
        /// What the device has in all.
        capacity: Bytes,
    },
    /// No such rank, segment or part of a range: a mistake of the caller.
    #[error("no such {0}")]
    Unknown(&'static str),
    /// The device is gone; the engine must stop.
    #[error("device lost: {0}")]
    DeviceLost(String),
}

/// Memory of a machine.
///
/// Calls come from one thread. A failed call changes nothing.
pub trait Backend {
    /// Ranks that this machine holds.
    fn ranks(&self) -> u32;

    /// Reads the memory of one rank's device.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a rank that does not exist; [`BackendError::DeviceLost`].
    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError>;

    /// Host memory that programs can still take, in the sense of `MemAvailable`.
    ///
    /// # Errors
    ///
    /// [`BackendError::DeviceLost`] when it cannot be read.
    fn host_available(&mut self) -> Result<Bytes, BackendError>;

    /// Sets what other programs hold on one rank's device from now on.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`] when they ask for more than is free.
    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError>;

    /// Takes a segment.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`], [`BackendError::HostOutOfMemory`] or [`BackendError::TooLarge`];
    /// nothing is taken then.
    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError>;

    /// Gives a segment back, all of it.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a segment that is not held.
    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError>;

    /// What each account holds on one rank's device now, other programs and free included.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a rank that does not exist.
    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError>;

    /// Sets what other programs hold of the host's memory from now on.
    ///
    /// # Errors
    ///
    /// [`BackendError::HostOutOfMemory`] when they ask for more than is available.
    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError>;

    /// Reserves addresses of one rank's device; costs no memory.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a rank that does not exist; [`BackendError::OutOfMemory`] when
    /// there are no addresses left.
    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError>;

    /// Backs `size` bytes at `offset` of a range with memory. Both are multiples of the device's
    /// granularity; `size` is not zero.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`]: nothing of this call is mapped. [`BackendError::Unknown`] for a part
    /// that is outside the range, not a multiple of the granularity, or mapped already.
    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError>;

    /// Takes the memory behind `size` bytes at `offset` away again; any mapped part, in whatever calls it
    /// was mapped.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a part that is not mapped, all of it.
    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError>;

    /// Gives the addresses of a range back; nothing of it is mapped.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a range that is not reserved or still mapped.
    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError>;

    /// Captures a graph for `batch` requests. Answers the segment that stands for it: what the driver took
    /// beside the pool's segments, `planned` bytes on a simulator and at least that under ballast.
    ///
    /// # Errors
    ///
    /// As [`Self::allocate`].
    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError>;

    /// Executes one pass on all ranks.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`] of a pass that could not run; [`BackendError::DeviceLost`].
    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError>;

    /// Calls of [`Self::execute`] from here on, as long as nothing else is called that changes anything, which
    /// would do nothing but count passes and time: [`Self::skip`] may stand for them. 0 where a pass is real
    /// work, or might change something.
    fn idle_passes(&self) -> u64 {
        0
    }

    /// Stands for `passes` such calls that take `time` together.
    fn skip(&mut self, _passes: u64, _time: Nanos) {}

    /// Moves KV of one rank between its device and its host tier.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a rank that does not exist, or that does not hold `size` bytes on
    /// both sides; [`BackendError::DeviceLost`].
    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError>;
}
