//! Ranks' devices and the host: capacity, other programs, and who took which segment.

use plimsoll_core::{
    backend::{Backend, BackendError, MemoryReading, Place, Rank, SegmentId},
    memory::ledger::Account,
    units::Bytes,
};
use std::collections::BTreeMap;

/// One rank's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Physical memory.
    pub capacity: Bytes,
    /// What the vendor's tool prints; `None` when it cannot say.
    pub tool_capacity: Option<Bytes>,
    /// What the driver keeps; no program sees it.
    pub driver_reserve: Bytes,
    /// Held by other programs at the start.
    pub others: Bytes,
    /// Segments are rounded up to a multiple of this; 0 keeps sizes exact.
    pub granularity: Bytes,
}

/// A machine: one device a rank, and the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineSpec {
    /// In rank order.
    pub devices: Vec<DeviceSpec>,
    /// Host memory that programs can still take.
    pub host_available: Bytes,
}

#[derive(Clone, Copy)]
struct Segment {
    rank: Rank,
    account: Account,
    place: Place,
    size: Bytes,
}

/// A [`Backend`] whose memory is arithmetic.
pub struct SimBackend {
    spec: MachineSpec,
    others: Vec<Bytes>,
    segments: BTreeMap<SegmentId, Segment>,
    next: u64,
}

impl SimBackend {
    /// A machine at rest: nothing is held but the driver reserve and the other programs.
    ///
    /// # Errors
    ///
    /// [`BackendError::TooLarge`] when a device's reserve and other programs exceed its capacity.
    pub fn new(spec: MachineSpec) -> Result<Self, BackendError> {
        for (rank, device) in (0..).map(Rank).zip(&spec.devices) {
            let requested = device.driver_reserve.saturating_add(device.others);
            if requested > device.capacity {
                let account = Account::OtherPrograms;
                let capacity = device.capacity;
                return Err(BackendError::TooLarge { rank, account, requested, capacity });
            }
        }
        let others = spec.devices.iter().map(|d| d.others).collect();
        Ok(Self { spec, others, segments: BTreeMap::new(), next: 0 })
    }

    fn device(&self, rank: Rank) -> Result<&DeviceSpec, BackendError> {
        self.spec.devices.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    fn taken(&self, place: Place, rank: Rank) -> Bytes {
        let here = |s: &&Segment| s.place == place && (place == Place::Host || s.rank == rank);
        self.segments.values().filter(here).map(|s| s.size).sum()
    }

    fn device_free(&self, rank: Rank) -> Result<Bytes, BackendError> {
        let device = self.device(rank)?;
        let others = self.others[rank.0 as usize];
        let held = device.driver_reserve + others + self.taken(Place::Device, rank);
        Ok(device.capacity.saturating_sub(held))
    }
}

impl Backend for SimBackend {
    fn ranks(&self) -> u32 {
        u32::try_from(self.spec.devices.len()).unwrap_or(u32::MAX)
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let device = self.device(rank)?;
        Ok(MemoryReading {
            capacity: device.tool_capacity,
            total: device.capacity.saturating_sub(device.driver_reserve),
            free: self.device_free(rank)?,
            others: Some(self.others[rank.0 as usize]),
        })
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        Ok(self.spec.host_available.saturating_sub(self.taken(Place::Host, Rank(0))))
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        let before = *self.others.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))?;
        let free = self.device_free(rank)?;
        if held > before.saturating_add(free) {
            let requested = held.saturating_sub(before);
            let account = Account::OtherPrograms;
            return Err(BackendError::OutOfMemory { rank, account, requested, free });
        }
        self.others[rank.0 as usize] = held;
        Ok(())
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let device = *self.device(rank)?;
        let (requested, free, capacity) = match place {
            Place::Device => {
                let usable = device.capacity.saturating_sub(device.driver_reserve);
                (size.round_up_to(device.granularity), self.device_free(rank)?, usable)
            }
            Place::Host => (size, self.host_available()?, self.spec.host_available),
        };
        if requested > capacity {
            return Err(BackendError::TooLarge { rank, account, requested, capacity });
        }
        if requested > free {
            return Err(BackendError::OutOfMemory { rank, account, requested, free });
        }
        let id = SegmentId(self.next);
        self.next += 1;
        self.segments.insert(id, Segment { rank, account, place, size: requested });
        Ok(id)
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        self.segments.remove(&segment).map(|_| ()).ok_or(BackendError::Unknown("segment"))
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let device = self.device(rank)?;
        let mut held: BTreeMap<Account, Bytes> = BTreeMap::new();
        held.insert(Account::DriverReserve, device.driver_reserve);
        held.insert(Account::OtherPrograms, self.others[rank.0 as usize]);
        let mine = |s: &&Segment| s.rank == rank && s.place == Place::Device;
        for segment in self.segments.values().filter(mine) {
            *held.entry(segment.account).or_default() += segment.size;
        }
        held.insert(Account::Free, self.device_free(rank)?);
        Ok(held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> SimBackend {
        let device = DeviceSpec {
            capacity: Bytes::gib(10),
            tool_capacity: Some(Bytes::gib(10)),
            driver_reserve: Bytes::gib(1),
            others: Bytes::ZERO,
            granularity: Bytes::mib(2),
        };
        let spec = MachineSpec { devices: vec![device; 2], host_available: Bytes::gib(4) };
        SimBackend::new(spec).unwrap()
    }

    #[test]
    fn segments_are_rounded_and_every_byte_has_an_account() {
        let mut sim = machine();
        let id = sim.allocate(Rank(1), Account::Weights, Place::Device, Bytes(1)).unwrap();
        assert_eq!(sim.memory(Rank(1)).unwrap().free, Bytes::gib(9).saturating_sub(Bytes::mib(2)));
        assert_eq!(sim.memory(Rank(0)).unwrap().free, Bytes::gib(9));
        let all: Bytes = sim.held(Rank(1)).unwrap().into_iter().map(|(_, b)| b).sum();
        assert_eq!(all, Bytes::gib(10));
        sim.free(id).unwrap();
        assert_eq!(sim.free(id), Err(BackendError::Unknown("segment")));
        assert_eq!(sim.memory(Rank(1)).unwrap().free, Bytes::gib(9));
    }

    #[test]
    fn not_now_and_never_are_told_apart() {
        let mut sim = machine();
        let never = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(11));
        assert!(matches!(never, Err(BackendError::TooLarge { .. })));
        sim.set_others(Rank(0), Bytes::gib(5)).unwrap();
        let not_now = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(5));
        assert!(matches!(not_now, Err(BackendError::OutOfMemory { .. })));
        assert!(sim.set_others(Rank(0), Bytes::gib(10)).is_err());
    }

    #[test]
    fn the_host_is_shared_by_the_ranks() {
        let mut sim = machine();
        sim.allocate(Rank(0), Account::KvPool, Place::Host, Bytes::gib(3)).unwrap();
        let second = sim.allocate(Rank(1), Account::KvPool, Place::Host, Bytes::gib(3));
        assert!(
            matches!(second, Err(BackendError::OutOfMemory { free, .. }) if free == Bytes::gib(1))
        );
    }
}
