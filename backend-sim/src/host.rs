//! One host's RAM: other programs, page cache, host pools of the server, and the device where memory is
//! common.

use crate::{accounts::Accounts, spec::HostSpec};
use plimsoll_core::{
    backend::{BackendError, HostLimit, Rank},
    memory::ledger::Account,
    units::Bytes,
};

/// Who holds a host's RAM; the amounts add up to `ram`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostHeld {
    /// `MemTotal`.
    pub ram: Bytes,
    /// Other programs, faults of the machine's data included.
    pub others: Bytes,
    /// Page cache.
    pub page_cache: Bytes,
    /// Host pools of the server.
    pub pools: Bytes,
    /// Held for devices that have their memory in common with this host, by any program.
    pub devices: Bytes,
    /// `MemFree`.
    pub free: Bytes,
}

/// State of one host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    spec: HostSpec,
    /// As set, without tenants of the machine's faults.
    pub(crate) others: Bytes,
    /// Tenants of the machine's faults.
    pub(crate) tenants: Bytes,
    page_cache: Bytes,
    pub(crate) pools: Accounts,
    /// Held for devices with common memory.
    pub(crate) devices: Bytes,
}

impl Host {
    /// # Errors
    ///
    /// `TooLarge` when what is held at the start exceeds the RAM.
    pub(crate) fn new(spec: HostSpec) -> Result<Self, BackendError> {
        let requested = spec.others.saturating_add(spec.page_cache).saturating_add(spec.kept);
        if requested > spec.ram {
            let (rank, account) = (Rank(0), Account::OtherPrograms);
            return Err(BackendError::TooLarge { rank, account, requested, capacity: spec.ram });
        }
        Ok(Self {
            spec,
            others: spec.others,
            tenants: Bytes::ZERO,
            page_cache: spec.page_cache,
            pools: Accounts::default(),
            devices: Bytes::ZERO,
        })
    }

    /// What programs could hold if nobody else were there.
    pub(crate) const fn usable(&self) -> Bytes {
        self.spec.ram.saturating_sub(self.spec.kept)
    }

    /// What the kernel never hands out.
    pub(crate) const fn kept(&self) -> Bytes {
        self.spec.kept
    }

    /// `MemFree`.
    pub(crate) fn free(&self) -> Bytes {
        let held = self.others + self.tenants + self.page_cache + self.pools.total() + self.devices;
        self.spec.ram.saturating_sub(held)
    }

    /// `MemAvailable`: what can be taken, page cache given back.
    pub(crate) fn available(&self) -> Bytes {
        (self.free() + self.page_cache).saturating_sub(self.spec.kept)
    }

    /// What the server's pools can still take, and which limit says so.
    pub(crate) fn pool_room(&self) -> (Bytes, HostLimit) {
        let available = self.available();
        let group = self
            .spec
            .cgroup
            .map(|group| group.limit.saturating_sub(group.used).saturating_sub(self.pools.total()));
        match group {
            Some(room) if room < available => (room, HostLimit::Cgroup),
            _ => (available, HostLimit::Host),
        }
    }

    /// Gives page cache back until `size` more can be taken from what is free.
    /// The caller has checked that `size` is available.
    pub(crate) fn make_room(&mut self, size: Bytes) {
        let easy = self.free().saturating_sub(self.spec.kept);
        let short = size.saturating_sub(easy);
        self.page_cache = self.page_cache.saturating_sub(short);
    }

    /// Page cache wants to be this large; it grows into free memory only, and shrinks freely.
    pub(crate) fn set_page_cache(&mut self, wanted: Bytes) {
        let most = (self.free() + self.page_cache).saturating_sub(self.spec.kept);
        self.page_cache = wanted.min(most);
    }

    pub(crate) fn held(&self) -> HostHeld {
        HostHeld {
            ram: self.spec.ram,
            others: self.others + self.tenants,
            page_cache: self.page_cache,
            pools: self.pools.total(),
            devices: self.devices,
            free: self.free(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CgroupSpec;

    fn host() -> Host {
        let mut spec = HostSpec::of_available(Bytes(100));
        spec.page_cache = Bytes(60);
        spec.kept = Bytes(5);
        Host::new(spec).unwrap()
    }

    #[test]
    fn page_cache_is_used_for_mem_free_and_not_for_mem_available() {
        let mut host = host();
        assert_eq!((host.free(), host.available()), (Bytes(40), Bytes(95)));
        host.make_room(Bytes(50));
        host.devices += Bytes(50);
        // 35 came from what was free, 15 from the cache; the kernel keeps its 5.
        assert_eq!((host.free(), host.available()), (Bytes(5), Bytes(45)));
        host.make_room(Bytes(45));
        host.devices += Bytes(45);
        assert_eq!((host.free(), host.available()), (Bytes(5), Bytes(0)));
        host.set_page_cache(Bytes(50));
        assert_eq!(host.held().page_cache, Bytes(0));
    }

    #[test]
    fn the_tighter_limit_decides() {
        let mut host = host();
        assert_eq!(host.pool_room(), (Bytes(95), HostLimit::Host));
        host.spec.cgroup = Some(CgroupSpec { limit: Bytes(50), used: Bytes(10) });
        assert_eq!(host.pool_room(), (Bytes(40), HostLimit::Cgroup));
        host.others = Bytes(35);
        // Only 5 are free beside the cache, but the group's 40 are still the tighter of the two.
        assert_eq!(host.pool_room(), (Bytes(40), HostLimit::Cgroup));
        host.others = Bytes(40);
        host.page_cache = Bytes(20);
        assert_eq!(host.pool_room(), (Bytes(40), HostLimit::Cgroup));
        host.tenants = Bytes(20);
        assert_eq!(host.pool_room(), (Bytes(35), HostLimit::Host));
    }

    #[test]
    fn a_host_that_cannot_be_is_refused() {
        let mut spec = HostSpec::of_available(Bytes(100));
        spec.others = Bytes(101);
        assert!(matches!(Host::new(spec), Err(BackendError::TooLarge { .. })));
    }
}
