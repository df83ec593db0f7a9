//! The machine around the device: memory of the host as the engines and the kernel count it, and
//! what `nvidia-smi` prints. Reads files and runs one command; never changes anything.

pub mod linux;
pub mod macos;
pub mod memory;
pub mod nvidia_smi;

pub use memory::{Cgroup, CgroupVersion, HostError, HostMemory, NumaNode, read_host};
