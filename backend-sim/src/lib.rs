//! The memory-faithful simulator: devices and hosts in plain numbers, every byte accounted for.
//!
//! A machine is data ([`MachineSpec`]): devices with memory of their own or one memory with the host, the
//! host's RAM, page cache and control group, and faults that happen at given readings, steps or times.
//! [`SimBackend`] is that machine at work. Every call costs O(log n) in the segments that it holds.

mod accounts;
mod device;
mod faults;
mod host;
mod machine;
mod memory;
mod pages;
mod ranges;
mod spec;

pub use faults::{FailAt, Fault, Trigger};
pub use host::HostHeld;
pub use machine::SimBackend;
pub use spec::{
    CgroupSpec, CommonMemory, DeviceMemory, DeviceSpec, FreeReading, HostSpec, MachineSpec,
    TotalReading,
};
