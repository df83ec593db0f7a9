//! SGLang: every release from 0.4.6 to 0.5.23, each rule once with the versions in which it holds.

pub mod args;
pub mod capacity;
pub mod facts;
pub mod fraction;
pub mod graphs;
mod page;
pub mod prefill_graph;
pub mod refusal;
pub mod rules;
pub mod settings;
pub mod speculation;
pub mod tiers;
pub mod version;
pub mod whys;

pub use settings::{Resolved, resolve};
