//! The KV cache as the scheduler sees it: sequences of token ids and slots, allocators, the radix tree.

mod free_list;
mod radix;
mod rows;
mod runs;
mod slot_trace;
mod slots;

pub use free_list::FreeList;
pub use radix::{
    EvictionPolicy, HostEvent, HostHit, HostTierOptions, Inserted, Match, NodeId, RadixTree,
    TreeClock, TreeOptions, WritePolicy,
};
pub use rows::{RequestRows, RowOrder};
pub use runs::{Cursor, Run, Runs};
pub use slot_trace::SlotChange;
pub use slots::{Extend, PageFree, SlotAllocator};
