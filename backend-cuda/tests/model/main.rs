//! The decoder on CUDA over the fake driver, whose kernels are the project's own compiled for the CPU:
//! against the same models on the host, and what it takes, lends and gives back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests only; a panic is how a test fails"
)]

#[cfg(test)]
mod agree;
#[cfg(test)]
mod common;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod sampling;
#[cfg(test)]
#[path = "../driver/support.rs"]
mod support;
#[cfg(test)]
mod tier;

/// Counts what a step allocates. A counting allocator stands under the whole program.
#[global_allocator]
static COUNTING: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;
