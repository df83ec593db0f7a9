//! Who holds the memory: accounts and the ledger that must close.

pub mod ledger;
