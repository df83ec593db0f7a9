//! SGLang: every release from 0.4.6 to 0.5.23, each rule once with the versions in which it holds.

pub mod args;
pub mod attention;
pub mod capacity;
pub mod cell;
pub mod facts;
pub mod fraction;
pub mod from_model;
mod from_model_state;
pub mod geometry;
pub mod graphs;
pub mod hicache;
mod mamba;
pub mod mlx;
mod page;
pub mod pool;
pub mod pool_bytes;
#[cfg(test)]
mod pool_tests;
pub mod prefill_graph;
pub mod readings;
pub mod refusal;
pub mod requests;
pub mod rules;
pub mod scheduling;
pub mod settings;
pub mod speculation;
mod swa;
pub mod tiers;
pub mod version;
pub mod whys;
pub mod window;

pub use pool::{Pool, RankInputs, size_pool};
pub use settings::{Resolved, resolve};
