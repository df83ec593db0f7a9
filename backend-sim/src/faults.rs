//! What goes wrong on a machine, as data, and when.

use plimsoll_core::{
    backend::Rank,
    units::{Bytes, Nanos},
};

/// When a fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// At once after that reading of a rank's memory was answered, counted from 1: between two readings.
    AfterReading {
        /// Whose memory.
        rank: Rank,
        /// Which reading.
        nth: u64,
    },
    /// Before that step, counted from 0.
    BeforeStep(u64),
    /// Before the first step that begins at that model time or later; time is the sum over executed steps.
    At(Nanos),
}

/// Calls that take memory (allocate, map, reserve, capture, counted together from 0) and are refused.
///
/// PyTorch's allocator asks once more after it has given back what it had cached, so one refusal is not
/// the end of a server; two in a row are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailAt {
    /// The first of them.
    pub call: u64,
    /// How many in a row; `u64::MAX`: all from there on.
    pub times: u64,
}

impl FailAt {
    /// One call.
    #[must_use]
    pub const fn once(call: u64) -> Self {
        Self { call, times: 1 }
    }

    pub(crate) const fn covers(self, call: u64) -> bool {
        call >= self.call && call - self.call < self.times
    }
}

/// Something that the engine does not do and does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A program on a rank's device, beside those of [`crate::DeviceSpec::others`]: a neighbour that
    /// starts and leaves, or what a dead server has not given back yet (`from: None`). When there is too
    /// little memory it takes what there is.
    Tenant {
        /// Whose device.
        rank: Rank,
        /// When it comes; `None`: it is there at the start.
        from: Option<Trigger>,
        /// When it leaves; `None`: never.
        until: Option<Trigger>,
        /// What it takes.
        size: Bytes,
    },
    /// The same in the memory of one host.
    HostTenant {
        /// Which host.
        node: u32,
        /// When it comes; `None`: it is there at the start.
        from: Option<Trigger>,
        /// When it leaves; `None`: never.
        until: Option<Trigger>,
        /// What it takes.
        size: Bytes,
    },
    /// Files are read or written until one host's page cache has this size, or what is free is used.
    PageCache {
        /// Which host.
        node: u32,
        /// When.
        at: Trigger,
        /// Size of the cache.
        size: Bytes,
    },
    /// The server loses memory of a rank's device for good with every step, until nothing is left. No step
    /// fails by that alone: the next one that needs a new segment does.
    Leak {
        /// Whose device.
        rank: Rank,
        /// How much a step.
        each_step: Bytes,
    },
}

impl Fault {
    /// When something happens that has not happened yet; `None` when nothing will.
    pub(crate) const fn next(&self, phase: Phase) -> Option<Trigger> {
        match (self, phase) {
            (Self::Tenant { from, .. } | Self::HostTenant { from, .. }, Phase::Waiting) => *from,
            (Self::Tenant { until, .. } | Self::HostTenant { until, .. }, Phase::Here(_)) => *until,
            (Self::PageCache { at, .. }, Phase::Waiting) => Some(*at),
            _ => None,
        }
    }
}

/// How far a fault has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing happened yet.
    Waiting,
    /// A tenant that holds this much.
    Here(Bytes),
    /// It is over.
    Over,
}
