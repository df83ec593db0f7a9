//! The memory-faithful simulator: devices and a host in plain numbers, every byte accounted for.

mod machine;

pub use machine::{DeviceSpec, MachineSpec, SimBackend};
