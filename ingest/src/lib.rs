//! Foreign text to facts: launch commands, server logs, recorded workloads.

pub mod bench;
pub mod launch;
pub mod log;
pub mod workload;
