//! vLLM: memory sizing of V0 (0.6 to 0.10) and V1 (0.8 to 0.33) by version.
//!
//! The way through: [`settings::resolve`] → [`budget::requested`] → [`profile::available_kv`] →
//! [`capacity::size_pool`] (V0: [`v0::size_pool`]); [`window`] asks which utilization would do,
//! [`refusal`] and [`lines`] say it in the engine's own words.

pub mod args;
pub mod budget;
pub mod capacity;
pub mod defaults;
pub mod from_model;
pub mod graphs;
pub mod groups;
pub mod hybrid;
pub mod lines;
pub mod profile;
pub mod refusal;
pub mod rules;
pub mod settings;
pub mod spec;
pub mod suggest;
pub mod v0;
pub mod window;
