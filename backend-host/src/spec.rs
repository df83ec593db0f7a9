//! What a machine in host memory is made of.

use plimsoll_core::units::Bytes;

/// What programs read as a device's total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TotalReading {
    /// Capacity without the driver's reserve.
    Works,
    /// Nothing: the engine goes on without knowing the capacity.
    Fails,
    /// Another figure than what is there.
    Wrong(Bytes),
}

/// The device of one rank: a share of the broker's memory that is counted as a device's would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankSpec {
    /// All of its memory.
    pub capacity: Bytes,
    /// What the vendor's tool would print; `None` when it cannot say.
    pub tool_capacity: Option<Bytes>,
    /// What programs read as total.
    pub total: TotalReading,
    /// What a driver would keep; no program sees it.
    pub driver_reserve: Bytes,
    /// Held by other programs at the start.
    pub others: Bytes,
    /// Segments are rounded up to a multiple of this; 0 keeps sizes exact. Parts of ranges must be
    /// multiples of it. Small segments are not carved out of shared pages, as a driver would.
    pub granularity: Bytes,
}

impl RankSpec {
    /// The total that programs read.
    #[must_use]
    pub fn readable_total(&self) -> Option<Bytes> {
        match self.total {
            TotalReading::Works => self.capacity.checked_sub(self.driver_reserve),
            TotalReading::Fails => None,
            TotalReading::Wrong(total) => Some(total),
        }
    }
}

/// Who says no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The broker: it counts every byte of server and neighbours, and refuses what does not fit. Too
    /// little memory is an answer.
    Broker,
    /// The kernel: nothing is refused before it, free memory is what it says, and it kills a process
    /// that takes too much.
    Kernel,
}

/// How much memory is really touched; all else is mapped and stays untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TouchPolicy {
    /// At most so much at one time, of server and neighbours together. What goes beyond is mapped only,
    /// and reported as [`crate::Footprint::spared`]. Under [`Limit::Broker`] a machine lowers this at its
    /// start to half of what the kernel then says can be taken.
    pub total: Bytes,
    /// Of it, at most so much for other programs.
    pub neighbours: Bytes,
    /// Touched again by each pass, at most.
    pub step: Bytes,
    /// Really copied by each move of KV, at most.
    pub copy: Bytes,
}

impl Default for TouchPolicy {
    /// 1 GiB in all, 256 MiB of it for other programs; 256 KiB a pass; 64 MiB a move.
    fn default() -> Self {
        Self {
            total: Bytes::gib(1),
            neighbours: Bytes::mib(256),
            step: Bytes(256 << 10),
            copy: Bytes::mib(64),
        }
    }
}

/// A machine in host memory: the ranks' devices, and the host beside them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSpec {
    /// In rank order.
    pub ranks: Vec<RankSpec>,
    /// Host memory that programs can still take, counted apart from the ranks' devices.
    pub host_available: Bytes,
    /// Who refuses.
    pub limit: Limit,
    /// What is touched.
    pub touch: TouchPolicy,
}
