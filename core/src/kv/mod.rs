//! The KV cache as the scheduler sees it: sequences of token ids and slots, allocators, the radix tree.

pub mod blocks;
mod free_list;
mod radix;
mod rows;
mod runs;
mod slot_trace;
mod slots;
mod swa;

pub use free_list::FreeList;
pub use radix::{
    EvictionPolicy, HostEvent, HostHit, HostTierOptions, Inserted, Match, NodeId, RadixTree,
    TreeClock, TreeOptions, WritePolicy,
};
pub use rows::{RequestRows, RowOrder};
pub use runs::{Cursor, Run, Runs};
pub use slot_trace::SlotChange;
pub use slots::{Extend, PageFree, SlotAllocator};
pub use swa::{Evicted, Mark, PerPool, SwaAllocator, SwaTree, Taken};
