//! `serve`: the flags of a model's start.

pub mod options;
