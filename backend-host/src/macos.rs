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

/// What of this process lies in RAM, by `ps`.
///
/// # Errors
/// When `ps` does not say it.
pub fn resident() -> Result<Bytes, HostError> {
    let place = "ps -o rss=".to_owned();
    let mut command = Command::new("ps");
    command.args(["-o", "rss=", "-p"]).arg(std::process::id().to_string());
    let output = command
        .output()
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let kib: Result<u64, _> = text.parse();
    kib.map(|kib| Bytes(kib.saturating_mul(1024))).map_err(|_| HostError::Form {
        place,
        line: 1,
        key: "rss".to_owned(),
        value: text,
        expected: "a whole number of KiB",
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
