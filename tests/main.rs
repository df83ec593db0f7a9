//! Integration tests: one module a subject.

// `cfg(test)` lets clippy know that helpers here may unwrap and panic.
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tidy;
