//! Calibration: on runs of our own with known coefficients, and on real ones where they are there.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod case;
mod synthetic;
mod vllm_runs;
