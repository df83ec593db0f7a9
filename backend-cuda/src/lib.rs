//! The real NVIDIA device: what is there, how much memory it has, and ballast on it. The driver is
//! loaded at run time; a machine without one gets an error that says so, never a panic. All
//! `unsafe` is in `ffi`.

mod accounts;
mod backend;
mod ballast;
mod card;
pub mod facts;
mod failure;
mod ffi;
mod host;
pub mod libraries;
mod open;
pub mod probe;
mod range;
mod spec;

pub use backend::{CudaBackend, report::BallastReport, report::CardReport};
pub use failure::OpenError;
pub use probe::{CudaDevice, Partition, ProbeError, probe};
pub use spec::{CudaSpec, Declared, HostSpec, RankSpec, Share};
