//! What rows say together: chances, the highest value that survives, what nothing else beats.

pub mod chance;
pub mod groups;
pub mod pareto;
pub mod survive;

pub use chance::Chance;
pub use groups::{Group, groups};
pub use pareto::{Better, Objective, front};
pub use survive::{Series, Share, Survival, series, survival};
