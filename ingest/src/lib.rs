//! Foreign text to facts: launch commands, server logs, recorded workloads, measured times, pages of running
//! servers, what a dead one left behind.

pub mod bench;
pub mod launch;
pub mod log;
pub mod measured;
pub mod relaunch;
pub mod watch;
pub mod workload;
