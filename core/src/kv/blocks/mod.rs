//! Blocks of a paged KV cache: who holds them, in which order free ones are taken, and what they are
//! found by.
//!
//! The mechanics alone, as vLLM has them (`BlockPool`, `FreeKVCacheBlockQueue`); which blocks a request
//! needs is decided in [`crate::sched::vllm`].

mod chain;
mod pool;
mod prefixes;
mod queue;
mod table;

pub use chain::Chain;
pub use pool::{BlockPool, Change, Key, Release, Space};
pub use prefixes::{Content, Prefix, Prefixes};
pub use queue::FreeQueue;
pub use table::{BlockTable, Checkpoint};

/// Number of a block.
pub type BlockId = u32;

/// The block that stands for "not needed": never taken, never free.
pub const NULL_BLOCK: BlockId = 0;
