//! What a model is made of: layers, KV cells, weights.

pub mod geometry;
