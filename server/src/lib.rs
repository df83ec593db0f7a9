//! The server: an engine on a thread of its own, and the HTTP front end that feeds it.
//!
//! The two meet in [`engine::Engine`]: requests go in as [`engine::Submission`]s, what happens to them comes
//! back as [`engine::Event`]s. Nothing of HTTP is known to the engine, nothing of tokens' memory to HTTP.

pub mod engine;
pub mod http;
pub mod listen;
pub mod plan;
pub mod start;
