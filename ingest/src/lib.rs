//! Readers of what users have at hand: launch commands of SGLang and vLLM.

pub mod launch;
