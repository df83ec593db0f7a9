//! The KV cache as the scheduler sees it: sequences of token ids and slots, allocators, the radix tree.

mod runs;

pub use runs::{Run, Runs};
