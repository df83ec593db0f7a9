//! Foreign text to facts: launch commands and server logs.

pub mod launch;
pub mod log;
