//! Results as text: for people, for machines, for tables.

pub mod bench;
pub mod calibrate;
pub mod cuda;
pub mod diagnosis;
pub mod explain;
pub mod figures;
pub mod json;
pub mod junit;
pub mod ledger;
pub mod life;
pub mod metrics;
pub mod plan;
pub mod relaunch;
pub mod run;
pub mod sweep;
pub mod table;
pub mod text;
pub mod watch;
pub mod workload;
