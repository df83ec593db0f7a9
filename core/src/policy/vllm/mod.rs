//! vLLM: memory sizing of V0 and V1 by version.

pub mod args;
