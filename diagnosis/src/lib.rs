//! From the facts of a log to what happened and what to set.
//!
//! `rules/` holds one file a family of causes; each reads a [`Case`] and gives findings. `reconstruct` solves
//! the ledger of each phase from the lines that exist. Nothing here reads files or the clock.

pub mod against;
mod case;
mod cause;
pub mod codes;
pub mod emit;
mod facts;
mod finding;
mod logged;
pub mod oom;
pub mod pages;
mod planned;
pub mod reconstruct;
mod report;
mod rules;
mod study;

pub use case::{Asked, Case};
pub use cause::{Cause, Confidence, Direction, Level, Move, Phase};
pub use finding::{Evidence, Finding, Lever, NoHelp, Number, Value};
pub use planned::{DeviceKnown, Planned, planned};
pub use report::{Capacity, Fact, Raising, Relaunch, Report, diagnose};
pub use rules::findings;
