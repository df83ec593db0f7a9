//! Plimsoll's own memory plan: what the engine on the host holds, decided before it holds any of it.

mod cell;

pub use cell::{CellError, KvCell, KvFormat};
