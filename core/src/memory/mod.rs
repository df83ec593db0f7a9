//! Who holds the memory: accounts and the ledger that must close, PyTorch's caching allocator, and
//! its snapshots.

pub mod caching_allocator;
pub mod ledger;
pub mod snapshot;
