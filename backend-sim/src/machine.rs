//! Ranks' devices and the host: capacity, other programs, and who took which segment.

use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
    },
    memory::ledger::Account,
    units::Bytes,
};
use std::collections::BTreeMap;

/// Whether the runtime tells programs the device's total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TotalReading {
    /// It does.
    Works,
    /// It does not: the engine goes on without knowing the capacity.
    Fails,
}

/// One rank's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Physical memory.
    pub capacity: Bytes,
    /// What the vendor's tool prints; `None` when it cannot say.
    pub tool_capacity: Option<Bytes>,
    /// Whether programs can read the total.
    pub total: TotalReading,
    /// What the driver keeps; no program sees it.
    pub driver_reserve: Bytes,
    /// Held by other programs at the start.
    pub others: Bytes,
    /// Segments are rounded up to a multiple of this; 0 keeps sizes exact.
    pub granularity: Bytes,
}

impl DeviceSpec {
    /// The total that programs read.
    #[must_use]
    pub fn readable_total(&self) -> Option<Bytes> {
        match self.total {
            TotalReading::Works => self.capacity.checked_sub(self.driver_reserve),
            TotalReading::Fails => None,
        }
    }
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
    host_others: Bytes,
    segments: BTreeMap<SegmentId, Segment>,
    ranges: BTreeMap<RangeId, Range>,
    next: u64,
}

/// Reserved addresses and what is mapped into them, by offset.
#[derive(Clone)]
struct Range {
    rank: Rank,
    account: Account,
    size: Bytes,
    mapped: BTreeMap<u64, Bytes>,
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
        Ok(Self {
            spec,
            others,
            host_others: Bytes::ZERO,
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            next: 0,
        })
    }

    fn device(&self, rank: Rank) -> Result<&DeviceSpec, BackendError> {
        self.spec.devices.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    fn taken(&self, place: Place, rank: Rank) -> Bytes {
        let here = |s: &&Segment| s.place == place && (place == Place::Host || s.rank == rank);
        let segments: Bytes = self.segments.values().filter(here).map(|s| s.size).sum();
        let mapped = self.ranges.values().filter(|r| place == Place::Device && r.rank == rank);
        segments + mapped.flat_map(|r| r.mapped.values()).copied().sum()
    }

    const fn name(&mut self) -> u64 {
        let name = self.next;
        self.next += 1;
        name
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
            total: device.readable_total(),
            free: self.device_free(rank)?,
            others: Some(self.others[rank.0 as usize]),
            measured_free: None,
        })
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        let taken = self.taken(Place::Host, Rank(0)) + self.host_others;
        Ok(self.spec.host_available.saturating_sub(taken))
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
        let id = SegmentId(self.name());
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
        for range in self.ranges.values().filter(|r| r.rank == rank) {
            *held.entry(range.account).or_default() += range.mapped.values().copied().sum();
        }
        held.insert(Account::Free, self.device_free(rank)?);
        Ok(held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect())
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        let free = self.host_available()?;
        if held > self.host_others.saturating_add(free) {
            let requested = held.saturating_sub(self.host_others);
            let (rank, account) = (Rank(0), Account::OtherPrograms);
            return Err(BackendError::OutOfMemory { rank, account, requested, free });
        }
        self.host_others = held;
        Ok(())
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        self.device(rank)?;
        let id = RangeId(self.name());
        self.ranges.insert(id, Range { rank, account, size, mapped: BTreeMap::new() });
        Ok(id)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let Range { rank, account, size: whole, .. } =
            *self.ranges.get(&range).ok_or(BackendError::Unknown("range"))?;
        if offset + size > whole {
            return Err(BackendError::Unknown("part of a range"));
        }
        let free = self.device_free(rank)?;
        if size > free {
            return Err(BackendError::OutOfMemory { rank, account, requested: size, free });
        }
        let range = self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))?;
        *range.mapped.entry(offset.0).or_default() += size;
        Ok(())
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let range = self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))?;
        match range.mapped.remove(&offset.0) {
            Some(mapped) if mapped == size => Ok(()),
            _ => Err(BackendError::Unknown("part of a range")),
        }
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        match self.ranges.get(&range) {
            Some(held) if held.mapped.is_empty() => {
                self.ranges.remove(&range);
                Ok(())
            }
            _ => Err(BackendError::Unknown("range")),
        }
    }

    fn capture(
        &mut self,
        rank: Rank,
        _batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        self.allocate(rank, Account::Graphs, Place::Device, planned)
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        Ok(StepReport { elapsed: step.time, measured: None })
    }

    fn move_kv(&mut self, rank: Rank, _way: KvMove, _size: Bytes) -> Result<(), BackendError> {
        self.device(rank).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> SimBackend {
        let device = DeviceSpec {
            capacity: Bytes::gib(10),
            tool_capacity: Some(Bytes::gib(10)),
            total: TotalReading::Works,
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
