//! One file a verb.

pub mod bench;
pub mod calibrate;
pub mod changes;
pub mod chat;
pub mod diagnose;
pub mod diff;
pub mod doctor;
pub mod explain;
pub mod help;
pub mod junit;
pub mod plan;
pub mod replay;
pub mod run;
mod run_seeds;
pub mod schema;
pub mod serve;
pub mod show;
pub mod source;
pub mod sweep;
pub mod views;
pub mod watch;
pub mod workload;
