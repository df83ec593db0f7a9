//! Tests of what the crate shows to others.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod claims;
mod docs;
mod faults;
mod fuzz;
mod scenario;
mod weaker;
mod wire;
mod workload;
