//! The real NVIDIA device: what is there and how much memory it has. The driver is loaded at run
//! time; a machine without one gets an error that says so, never a panic. All `unsafe` is in `ffi`.

mod ffi;
pub mod probe;

pub use probe::{CudaDevice, Partition, ProbeError, probe};
