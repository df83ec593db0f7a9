//! All memory of a machine: devices with their own, hosts, and devices that live in their host's.

use crate::{
    device::{Device, Fit},
    host::Host,
    pages::{Emptied, PageId},
    spec::{DeviceMemory, FreeReading, MachineSpec},
};
use plimsoll_core::{
    backend::{BackendError, HostSide, Rank},
    memory::ledger::Account,
    units::Bytes,
};
use std::collections::BTreeMap;

/// Addresses of one rank: 47 bits, what a process of x86-64 has (assumed for all).
const ADDRESSES: Bytes = Bytes(1 << 47);

/// Devices and hosts.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    devices: Vec<Device>,
    hosts: Vec<Host>,
}

impl Memory {
    /// # Errors
    ///
    /// `TooLarge` when what is held at the start exceeds a device or a host; `Unknown` for a node that no
    /// machine of this many devices has, or devices of one node that disagree on their common memory.
    pub(crate) fn new(spec: &MachineSpec) -> Result<Self, BackendError> {
        let nodes = spec.devices.iter().map(|d| d.node as usize + 1).max().unwrap_or(1);
        if nodes > spec.devices.len().max(1) {
            return Err(BackendError::Unknown("node"));
        }
        let mut hosts = Vec::with_capacity(nodes);
        for node in (0..).take(nodes) {
            let mut host = spec.host;
            let common = |d: &&crate::DeviceSpec| d.node == node && d.memory != DeviceMemory::Own;
            let mut pools = spec.devices.iter().filter(common).map(crate::DeviceSpec::usable);
            if let Some(ram) = pools.next() {
                host.ram = ram;
                if pools.any(|other| other != ram) {
                    let what = "common memory: devices of one node differ";
                    return Err(BackendError::Unknown(what));
                }
            }
            hosts.push(Host::new(host)?);
        }
        let mut memory = Self { devices: Vec::new(), hosts };
        for (rank, device) in (0..).map(Rank).zip(&spec.devices) {
            let requested = device.driver_reserve.saturating_add(device.others);
            let capacity = device.capacity;
            memory.devices.push(Device::new(crate::DeviceSpec { others: Bytes::ZERO, ..*device }));
            if requested > capacity || memory.set_others(rank, device.others).is_err() {
                let account = Account::OtherPrograms;
                return Err(BackendError::TooLarge { rank, account, requested, capacity });
            }
        }
        Ok(memory)
    }

    pub(crate) const fn devices(&self) -> &[Device] {
        self.devices.as_slice()
    }

    pub(crate) const fn hosts(&self) -> &[Host] {
        self.hosts.as_slice()
    }

    pub(crate) fn device(&self, rank: Rank) -> Result<&Device, BackendError> {
        self.devices.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    pub(crate) fn device_mut(&mut self, rank: Rank) -> Result<&mut Device, BackendError> {
        self.devices.get_mut(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    pub(crate) fn host_mut(&mut self, node: u32) -> Result<&mut Host, BackendError> {
        self.hosts.get_mut(node as usize).ok_or(BackendError::Unknown("node"))
    }

    fn host_of(&self, device: &Device) -> &Host {
        &self.hosts[device.spec.node as usize]
    }

    /// The most that one request on a rank's device could get if nobody else were there.
    pub(crate) fn usable(&self, rank: Rank) -> Result<Bytes, BackendError> {
        let device = self.device(rank)?;
        Ok(match device.spec.memory {
            DeviceMemory::Own => device.spec.usable(),
            DeviceMemory::Common(common) => {
                let all = self.host_of(device).usable();
                common.working_set.map_or(all, |set| set.min(all))
            }
        })
    }

    /// What a request on a rank's device can get now: on common memory page cache is given back for it.
    pub(crate) fn takeable(&self, rank: Rank) -> Result<Bytes, BackendError> {
        let device = self.device(rank)?;
        Ok(match device.spec.memory {
            DeviceMemory::Own => device.spec.usable().saturating_sub(device.held()),
            DeviceMemory::Common(common) => {
                let host = self.host_of(device);
                let available = host.available();
                let set = |set: Bytes| set.saturating_sub(host.devices).min(available);
                common.working_set.map_or(available, set)
            }
        })
    }

    /// What a program reads as free on a rank's device.
    pub(crate) fn free_reading(&self, device: &Device) -> Bytes {
        match device.spec.memory {
            DeviceMemory::Own => device.spec.usable().saturating_sub(device.held()),
            DeviceMemory::Common(common) => match common.free {
                FreeReading::MemFree => self.host_of(device).free(),
                FreeReading::MemAvailable => self.host_of(device).available(),
            },
        }
    }

    /// What other programs hold of a rank's memory, on both sides where it is common.
    pub(crate) fn foreign(&self, device: &Device) -> Bytes {
        match device.spec.memory {
            DeviceMemory::Own => device.foreign(),
            DeviceMemory::Common(_) => {
                let held = self.host_of(device).held();
                let ours = self.neighbours(device).map(|d| d.accounts.total()).sum();
                held.others + held.devices.saturating_sub(ours)
            }
        }
    }

    /// The host's side of a common memory.
    pub(crate) fn host_side(&self, device: &Device) -> Option<HostSide> {
        let DeviceMemory::Common(common) = device.spec.memory else { return None };
        let host = self.host_of(device);
        let held = host.held();
        let (system, page_cache) = match common.free {
            FreeReading::MemFree => (Bytes::ZERO, held.page_cache),
            FreeReading::MemAvailable => (host.kept(), Bytes::ZERO),
        };
        Some(HostSide { others: held.others, system, page_cache })
    }

    /// Devices that have the same memory.
    fn neighbours<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = &'a Device> {
        let same = move |d: &&Device| {
            d.spec.node == device.spec.node && d.spec.memory != DeviceMemory::Own
        };
        self.devices.iter().filter(same)
    }

    /// Every account of the memory that a rank's device is in. Free is what a program reads as free; on
    /// common memory all that is neither free nor the server's is other programs', page cache too where
    /// the reading counts it as used.
    pub(crate) fn accounts(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let device = self.device(rank)?;
        let mut held: BTreeMap<Account, Bytes> = BTreeMap::new();
        let mut add = |account: Account, bytes: Bytes| *held.entry(account).or_default() += bytes;
        let free = self.free_reading(device);
        let mut ours = Bytes::ZERO;
        match device.spec.memory {
            DeviceMemory::Own => {
                ours = device.accounts.total();
                device.accounts.iter().for_each(|(account, bytes)| add(account, bytes));
            }
            DeviceMemory::Common(_) => {
                let pools = &self.host_of(device).pools;
                for accounts in self.neighbours(device).map(|d| &d.accounts).chain([pools]) {
                    ours += accounts.total();
                    accounts.iter().for_each(|(account, bytes)| add(account, bytes));
                }
            }
        }
        add(Account::DriverReserve, device.spec.driver_reserve);
        let rest = device.spec.usable().saturating_sub(ours).saturating_sub(free);
        add(Account::OtherPrograms, rest);
        add(Account::Free, free);
        Ok(held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect())
    }

    /// Takes exactly `size` for the server.
    ///
    /// # Errors
    ///
    /// `TooLarge`, `OutOfMemory`.
    pub(crate) fn take(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(), BackendError> {
        let capacity = self.usable(rank)?;
        if size > capacity {
            return Err(BackendError::TooLarge { rank, account, requested: size, capacity });
        }
        let free = self.takeable(rank)?;
        if size > free {
            return Err(BackendError::OutOfMemory { rank, account, requested: size, free });
        }
        self.draw(rank, size)?;
        self.device_mut(rank)?.accounts.add(account, size);
        Ok(())
    }

    /// Gives back what [`Self::take`] took.
    pub(crate) fn give(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(), BackendError> {
        self.device_mut(rank)?.accounts.sub(account, size);
        self.restore(rank, size)
    }

    /// `size` bytes of common memory go to a device; a device of its own counts its accounts alone.
    fn draw(&mut self, rank: Rank, size: Bytes) -> Result<(), BackendError> {
        let spec = self.device(rank)?.spec;
        if spec.memory != DeviceMemory::Own {
            let host = self.host_mut(spec.node)?;
            host.make_room(size);
            host.devices += size;
        }
        Ok(())
    }

    fn restore(&mut self, rank: Rank, size: Bytes) -> Result<(), BackendError> {
        let spec = self.device(rank)?.spec;
        if spec.memory != DeviceMemory::Own {
            let host = self.host_mut(spec.node)?;
            host.devices = host.devices.saturating_sub(size);
        }
        Ok(())
    }

    /// Takes a segment as `cudaMalloc` does; answers what it takes and the unit that it shares.
    ///
    /// # Errors
    ///
    /// As [`Self::take`]; a small segment that needs a new unit asks for all of it.
    pub(crate) fn take_segment(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(Bytes, Option<PageId>), BackendError> {
        let capacity = self.usable(rank)?;
        if size > capacity {
            return Err(BackendError::TooLarge { rank, account, requested: size, capacity });
        }
        let device = self.device(rank)?;
        let unit = device.spec.granularity;
        let footprint = match device.fit(size) {
            Fit::Whole(whole) => {
                self.take(rank, account, whole)?;
                return Ok((whole, None));
            }
            Fit::Shared(footprint) => footprint,
        };
        let page = match device.pages.fitting(footprint) {
            Some(page) => page,
            None => {
                self.take(rank, account, unit)?;
                let device = self.device_mut(rank)?;
                device.accounts.shift(account, Account::Context, unit);
                device.pages.open(unit)
            }
        };
        let device = self.device_mut(rank)?;
        device.pages.carve(page, footprint);
        device.accounts.shift(Account::Context, account, footprint);
        Ok((footprint, Some(page)))
    }

    /// Gives a segment back.
    pub(crate) fn give_segment(
        &mut self,
        rank: Rank,
        account: Account,
        (size, page): (Bytes, Option<PageId>),
    ) -> Result<(), BackendError> {
        let Some(page) = page else { return self.give(rank, account, size) };
        let device = self.device_mut(rank)?;
        let unit = device.spec.granularity;
        device.accounts.shift(account, Account::Context, size);
        match device.pages.give_back(page, size, unit) {
            Emptied::No => Ok(()),
            Emptied::Closed => self.give(rank, Account::Context, unit),
        }
    }

    /// Takes host memory for a rank's pool.
    ///
    /// # Errors
    ///
    /// `TooLarge` beyond the RAM, `HostOutOfMemory`.
    pub(crate) fn take_host(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(), BackendError> {
        let device = self.device(rank)?;
        let host = self.host_of(device);
        let capacity = host.usable();
        if size > capacity {
            return Err(BackendError::TooLarge { rank, account, requested: size, capacity });
        }
        let (free, limit) = host.pool_room();
        if size > free {
            let requested = size;
            return Err(BackendError::HostOutOfMemory { rank, account, limit, requested, free });
        }
        let node = device.spec.node;
        let host = self.host_mut(node)?;
        host.make_room(size);
        host.pools.add(account, size);
        self.device_mut(rank)?.host_pools += size;
        Ok(())
    }

    /// Gives back what [`Self::take_host`] took.
    pub(crate) fn give_host(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(), BackendError> {
        let device = self.device_mut(rank)?;
        device.host_pools = device.host_pools.saturating_sub(size);
        let node = device.spec.node;
        self.host_mut(node)?.pools.sub(account, size);
        Ok(())
    }

    /// Other programs hold this much of a rank's device from now on.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    pub(crate) fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        let before = self.device(rank)?.others;
        let (requested, free) = (held.saturating_sub(before), self.takeable(rank)?);
        if requested > free {
            let account = Account::OtherPrograms;
            return Err(BackendError::OutOfMemory { rank, account, requested, free });
        }
        self.draw(rank, requested)?;
        self.restore(rank, before.saturating_sub(held))?;
        self.device_mut(rank)?.others = held;
        Ok(())
    }

    /// A tenant takes up to `size` of a rank's device; answers what it got.
    pub(crate) fn tenant_comes(&mut self, rank: Rank, size: Bytes) -> Result<Bytes, BackendError> {
        let got = size.min(self.takeable(rank)?);
        self.draw(rank, got)?;
        self.device_mut(rank)?.tenants += got;
        Ok(got)
    }

    /// A tenant gives back what it got.
    pub(crate) fn tenant_leaves(&mut self, rank: Rank, got: Bytes) -> Result<(), BackendError> {
        let device = self.device_mut(rank)?;
        device.tenants = device.tenants.saturating_sub(got);
        self.restore(rank, got)
    }

    /// Available on the host that has the least.
    pub(crate) fn host_available(&self) -> Bytes {
        self.hosts.iter().map(Host::available).min().unwrap_or_default()
    }

    /// Reserves addresses of a rank.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` when there are too few left.
    pub(crate) fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<(), BackendError> {
        let device = self.device_mut(rank)?;
        let free = ADDRESSES.saturating_sub(device.reserved);
        if size > free {
            return Err(BackendError::OutOfMemory { rank, account, requested: size, free });
        }
        device.reserved += size;
        Ok(())
    }
}
