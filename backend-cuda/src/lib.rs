//! The real NVIDIA device: what is there, how much memory it has, ballast on it, and the layer that
//! serving stands on (`device`). The driver is loaded at run time; a machine without one gets an error that says so, never a panic. All
//! `unsafe` is in `ffi`.

mod accounts;
mod backend;
mod ballast;
mod card;
mod comms;
pub mod device;
mod exercise;
pub mod facts;
mod failure;
mod ffi;
mod gemm;
mod host;
pub mod kernels;
pub mod libraries;
mod memory;
pub mod model;
mod module;
mod open;
mod pinned;
pub mod probe;
mod range;
mod region;
mod spec;
mod stream;

pub use backend::{CudaBackend, report::BallastReport, report::CardReport};
pub use failure::OpenError;
pub use probe::{CudaDevice, Partition, ProbeError, probe};
pub use spec::{CudaSpec, Declared, HostSpec, RankSpec, Share};
