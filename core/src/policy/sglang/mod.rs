//! SGLang: every release from 0.4.6 to 0.5.23, each rule once with the versions in which it holds.

pub mod args;
pub mod version;
