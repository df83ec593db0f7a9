//! The machine around the device: memory of the host as the engines and the kernel count it, what
//! `nvidia-smi` prints, and a machine whose ranks lie in real memory of this process.
//!
//! The readings read files and run one command; they never change anything. [`HostBackend`] maps and
//! touches memory of this process only.

pub mod amdgpu;
pub mod audit;
mod broker;
mod kernel;
pub mod linux;
mod machine;
pub mod macos;
pub mod memory;
pub mod model;
pub mod nvidia_smi;
mod pile;
pub mod pressure;
pub mod processes;
mod purse;
mod range;
mod region;
mod spec;

pub use machine::HostBackend;
pub use memory::{Cgroup, CgroupVersion, HostError, HostMemory, NumaNode, read_host};
pub use purse::{Footprint, Meter};
pub use spec::{HostSpec, Limit, RankSpec, TotalReading, TouchPolicy};
