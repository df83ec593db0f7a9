//! What a model is made of: layers, KV cells, weights.

pub mod config;
pub mod detail;
pub mod encoding;
pub mod error;
mod fields;
pub mod geometry;
pub mod gguf;
pub mod kv;
pub mod near;
pub mod parallel;
pub mod pattern;
pub mod safetensors;
pub mod storage;
pub mod tensors;
pub mod weights;
