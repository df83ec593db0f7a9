//! Integration tests: one module a subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "this crate is tests only; a panic is how a test fails"
)]

// `cfg(test)` lets clippy know that helpers here may unwrap and panic.
#[cfg(test)]
mod accuracy;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod checker;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod cuda;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod determinism;
#[cfg(test)]
mod founding;
#[cfg(test)]
mod fuzz_smoke;
#[cfg(test)]
mod host;
#[cfg(test)]
mod invoke;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod report;
#[cfg(test)]
mod runs;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod serve_cuda;
#[cfg(test)]
mod slots;
#[cfg(test)]
mod tidy;
