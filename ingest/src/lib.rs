//! Foreign text to facts: launch commands, server logs, recorded workloads, pages of running servers.

pub mod bench;
pub mod launch;
pub mod log;
pub mod watch;
pub mod workload;
