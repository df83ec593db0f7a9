//! macOS: memory by `sysctl` (no foreign calls). Metal's recommended working set is not among its
//! names; the device catalog has it by memory size.

use crate::memory::{HostError, HostMemory};
use plimsoll_core::units::Bytes;
use std::process::Command;

/// Reads `hw.memsize` and, when set, `iogpu.wired_limit_mb`.
///
/// # Errors
/// When `hw.memsize` cannot be read.
pub fn read() -> Result<HostMemory, HostError> {
    let total = number("hw.memsize")?;
    // 0 is the default and means no override.
    let wired = number("iogpu.wired_limit_mb").ok().filter(|mib| *mib > 0);
    Ok(HostMemory {
        total: Bytes(total),
        free: None,
        available: None,
        cgroup: None,
        numa: Vec::new(),
        shm_used: None,
        metal_wired_limit: wired.map(|mib| Bytes(mib.saturating_mul(1 << 20))),
    })
}

fn number(name: &str) -> Result<u64, HostError> {
    let place = format!("sysctl -n {name}");
    let output = Command::new("sysctl").args(["-n", name]).output();
    let output = output
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    text.parse().map_err(|_| HostError::Form {
        place,
        line: 1,
        key: name.to_owned(),
        value: text,
        expected: "a whole number",
    })
}
