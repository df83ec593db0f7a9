//! A dense decoder on CUDA: weights, paged KV pool and arena in planned regions of the device, the own tape
//! launched over them. Everything is taken and measured when it is opened; a step takes nothing.

mod error;
mod execute;
mod inputs;
mod layout;
mod load;
mod open;
mod options;
mod pages;
mod products;
mod program;
mod rank;
mod room;
mod rotary;
mod splits;
mod step;
mod take;
mod tier;

pub use error::{CudaError, LoadError};
pub use open::{GraphCost, OpenedCuda};
pub use options::{Arithmetic, CudaOptions, graph_sizes};
pub use pages::PageError;
pub use room::DeviceRoom;
pub use step::{Chosen, CudaModel, DeviceMemory, Step};
