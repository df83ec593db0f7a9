//! Host memory beside the devices: page-locked pools of this process, and who else holds some.

use crate::spec::HostSpec;
use plimsoll_core::{backend::BackendError, units::Bytes};

/// What is held of the host.
pub(crate) struct Host {
    spec: HostSpec,
    /// Pools of all ranks, with memory or not.
    pools: Bytes,
    /// The part of `pools` that is page-locked memory.
    pub(crate) pinned: Bytes,
    /// Held in the name of other programs; accounted only.
    pub(crate) others: Bytes,
}

impl Host {
    pub(crate) const fn new(spec: HostSpec) -> Self {
        Self { spec, pools: Bytes::ZERO, pinned: Bytes::ZERO, others: Bytes::ZERO }
    }

    /// What programs can still take. A live reading already counts what is page-locked.
    pub(crate) fn available(&self) -> Result<Bytes, BackendError> {
        let (available, held) = match self.spec.available {
            Some(declared) => (declared, self.pools),
            None => (meminfo("MemAvailable:")?, self.pools.saturating_sub(self.pinned)),
        };
        Ok(available.saturating_sub(held).saturating_sub(self.others))
    }

    /// What the host has in all, as far as programs can ever take it.
    pub(crate) fn capacity(&self) -> Result<Bytes, BackendError> {
        self.spec.available.map_or_else(|| meminfo("MemTotal:"), Ok)
    }

    /// Whether a pool of this size may really be page-locked.
    pub(crate) fn may_pin(&self, size: Bytes) -> bool {
        self.pinned.saturating_add(size) <= self.spec.pinned_limit
    }

    pub(crate) fn charge(&mut self, size: Bytes, pinned: Bytes) {
        self.pools += size;
        self.pinned += pinned;
    }

    pub(crate) const fn discharge(&mut self, size: Bytes, pinned: Bytes) {
        self.pools = self.pools.saturating_sub(size);
        self.pinned = self.pinned.saturating_sub(pinned);
    }

    /// Pools without memory behind them.
    pub(crate) const fn accounted_only(&self) -> Bytes {
        self.pools.saturating_sub(self.pinned)
    }
}

/// A row of `/proc/meminfo`, which counts in KiB.
fn meminfo(row: &str) -> Result<Bytes, BackendError> {
    let unread = || BackendError::DeviceLost(format!("/proc/meminfo has no {row}"));
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|_| unread())?;
    let line = text.lines().find_map(|line| line.strip_prefix(row)).ok_or_else(unread)?;
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>().map_err(|_| unread())?;
    Ok(Bytes(kib * 1024))
}
