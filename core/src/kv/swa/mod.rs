//! Hybrid models: some layers see every token, the others a sliding window. Two pools of slots, and a
//! prefix cache that may give up the window slots of a node before the node.

mod map;
mod pools;
mod tree;

pub use pools::{PerPool, SwaAllocator};
pub use tree::{Evicted, Mark, SwaTree, Taken};
