//! Scenario files, their claims, and the decision log: what goes into a run and what comes out.

pub mod accounts;
pub mod again;
pub mod assemble;
pub mod ballast;
pub mod blind;
pub mod checker;
pub mod diff;
pub mod digest;
pub mod folder;
pub mod kinds;
pub mod ledger_at;
pub mod observe;
pub mod outcome;
pub mod path;
pub mod plan;
pub mod problem;
pub mod record;
pub mod run;
pub mod scenario;
pub mod serve;
pub mod start;
mod start_death;
pub mod timeline;
pub mod verdict;
pub mod wire;
pub mod workload;
pub mod yaml;
