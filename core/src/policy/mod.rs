//! The engines' own rules, as versioned policies: launch flags to settings to a memory plan.

pub mod plimsoll;
pub mod sglang;
pub mod vllm;
