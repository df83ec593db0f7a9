//! Scenario files, their claims, and the decision log: what goes into a run and what comes out.

pub mod outcome;
pub mod path;

pub mod problem;
pub mod scenario;
pub mod yaml;
