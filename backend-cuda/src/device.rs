//! The device layer: what serving, and whoever measures a card, stands on. Cards with their
//! streams, memory in regions, device code and its launches. Ballast uses the same.

pub use crate::card::{Card, CardFacts};
pub use crate::comms::{Comms, Part, SumFloat};
pub use crate::failure::Failure;
pub use crate::ffi::library::MissingLibrary;
pub use crate::ffi::memory::DevicePointer;
pub use crate::ffi::module::FunctionAttribute;
pub use crate::ffi::nvrtc::CompileError;
pub use crate::gemm::{Float, Gemm, Planned, Shape, bucket};
pub use crate::memory::Buffer;
pub use crate::module::{Argument, Function, Launch, Module};
pub use crate::open::cards;
pub use crate::pinned::Pinned;
pub use crate::region::{Elastic, Fixed, Region};
pub use crate::stream::{Event, Graph, Stream};
