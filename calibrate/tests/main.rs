//! Calibration: on runs of our own with known coefficients, and on real ones where they are there.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod case;
mod vllm_runs;
