//! The brain of Plimsoll: pool sizing, model geometry, accounts of memory and decisions.
//!
//! Pure: no I/O, clock, thread, environment or unsafe code. Backends report memory and execute;
//! everything that is decided is decided here, so that it is decided the same way everywhere.

#![forbid(unsafe_code)]

pub mod backend;
pub mod decision;
pub mod device;
pub mod engine;
pub mod estimate;
pub mod figure;
pub mod kv;
pub mod memory;
pub mod model;
pub mod plan;
pub mod policy;
pub mod pyfloat;
pub mod sched;
pub mod tape;
pub mod units;
