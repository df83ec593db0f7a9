//! Foreign text to facts: launch commands, server logs, recorded workloads, pages of running servers,
//! what a dead one left behind.

pub mod bench;
pub mod launch;
pub mod log;
pub mod relaunch;
pub mod watch;
pub mod workload;
