//! One file a verb.

pub mod help;
