//! Before a relaunch: what still holds the devices and the host, what to wait for, and the commands that
//! look and free. Nothing is run: commands are texts.
//!
//! [`judge`] takes the facts of a machine; [`after_crash`] gives the same advice from a log alone. A relaunch
//! that comes too early sees a smaller snapshot of free memory, and sizes its pool by it.

mod commands;
mod judge;
mod role;

pub use commands::{Crash, Step, after_crash};
pub use judge::{DeviceState, Finding, Judgement, Kind, Weight, judge};
pub use role::{Part, Role, role, segment_role};

use plimsoll_core::units::Bytes;
use std::collections::BTreeSet;

/// What was read of a machine. `None` is what could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Devices that show their memory.
    pub devices: Option<Vec<DeviceFacts>>,
    /// Processes.
    pub processes: Option<Vec<ProcessFacts>>,
    /// Files below `/dev/shm`.
    pub segments: Vec<SegmentFacts>,
    /// The host's memory.
    pub host: Option<HostFacts>,
    /// The port that the server is to listen on, and whether somebody does.
    pub port: Option<(u16, Port)>,
    /// Free memory of a device to wait for, as the last start's log had it.
    pub baseline: Option<Bytes>,
    /// What could not be read, in words.
    pub unread: Vec<String>,
}

/// Whether a port is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// Nobody listens.
    Free,
    /// Somebody does.
    Taken,
}

/// One device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its capacity.
    pub total: Option<Bytes>,
    /// Free.
    pub free: Option<Bytes>,
    /// Used; what is neither free nor used is the driver's.
    pub used: Option<Bytes>,
    /// Processes that compute on it, by the driver's own list, with what they hold.
    pub holders: Vec<(u32, Option<Bytes>)>,
}

/// One process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFacts {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// The kernel's letter of its state.
    pub state: char,
    /// The kernel's short name.
    pub name: String,
    /// The words of its command line; only its role is ever shown of them.
    pub command: Vec<String>,
    /// Whether signals to it take rights that the user lacks.
    pub owner: Owner,
    /// In RAM.
    pub resident: Bytes,
    /// Locked or pinned, whichever is more.
    pub locked: Bytes,
    /// Device files that it has open; `None` when that is not shown.
    pub device_files: Option<BTreeSet<String>>,
    /// Segments of `/dev/shm` that it has open or mapped.
    pub segments: BTreeSet<String>,
    /// Whether it listens on the port that was asked for.
    pub port: Port,
}

/// Whose a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The user's who asks.
    Own,
    /// Somebody else's.
    Other,
}

/// A file below `/dev/shm`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFacts {
    /// Its name.
    pub name: String,
    /// Memory that it occupies.
    pub bytes: Bytes,
}

/// The host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostFacts {
    /// `MemTotal`.
    pub total: Bytes,
    /// What a new program can take: `MemAvailable`, or less where a control group leaves less.
    pub headroom: Option<Bytes>,
    /// `Mlocked`.
    pub locked: Option<Bytes>,
    /// `Unevictable`.
    pub unevictable: Option<Bytes>,
    /// The control group's use without what the kernel would drop, and its limit.
    pub cgroup: Option<(Bytes, Bytes)>,
}

#[cfg(test)]
mod tests;
