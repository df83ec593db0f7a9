//! What happens to the machine while the server runs.

use crate::{
    backend::Rank,
    units::{Bytes, Nanos},
};

/// When a change happens: before the first step that begins at that time or has that number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum When {
    /// Time since the server was ready.
    At(Nanos),
    /// Number of the step, from 0.
    Step(u64),
}

/// A change that is not the server's doing, or a fault of the server's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Other programs hold this much of a rank's device from now on.
    DeviceOthers {
        /// Whose device.
        rank: Rank,
        /// In all.
        held: Bytes,
    },
    /// Other programs hold this much of the host's memory from now on. On a machine with one memory this
    /// is the device's memory too.
    HostOthers {
        /// In all.
        held: Bytes,
    },
    /// The server loses this much of a rank's device for good.
    Leak {
        /// Whose device.
        rank: Rank,
        /// How much more.
        bytes: Bytes,
    },
}

/// A change and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedChange {
    /// When.
    pub when: When,
    /// What.
    pub change: Change,
}
