//! The backend over the fake driver library: the probe, ballast, faults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests only; a panic is how a test fails"
)]

#[cfg(test)]
mod ballast;
#[cfg(test)]
mod device;
#[cfg(test)]
mod device_faults;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod products;
#[cfg(test)]
mod rebuild;
#[cfg(test)]
mod sums;
#[cfg(test)]
mod support;
#[cfg(test)]
mod typed;
