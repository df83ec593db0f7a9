//! Foreign text to facts: launch commands and server logs.

pub mod log;
