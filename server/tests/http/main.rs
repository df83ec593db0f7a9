//! The front end over real sockets, with a scripted engine behind it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod bodies;
mod chat;
mod client;
mod completions;
mod errors;
mod life;
mod native;
mod pages;
mod script;
