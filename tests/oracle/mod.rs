//! Ground truth: vectors and public logs that the rules must agree with.

mod vllm;
mod vllm_startup;
