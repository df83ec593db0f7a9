//! Tests of what the crate shows to others.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod checker;
mod claims;
mod docs;
mod faults;
mod fuzz;
mod life;
mod neighbours;
mod observed;
mod recorded;
mod scenario;
mod timeline;
mod unified;
mod weaker;
mod wire;
mod workload;
