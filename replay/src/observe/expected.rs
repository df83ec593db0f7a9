//! What a machine should answer, from what it last answered and what was taken and given back since.

use plimsoll_backend_sim::{MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend as _, BackendError, MemoryReading, Place, RangeId, Rank, SegmentId},
    units::Bytes,
};
use std::collections::BTreeMap;

/// Expectations, and the names of what is held: the same on a live machine and on a recorded one.
#[derive(Debug)]
pub(super) struct Expected {
    ranks: Vec<MemoryReading>,
    host: Bytes,
    segments: BTreeMap<SegmentId, (Rank, Place, Bytes)>,
    ranges: BTreeMap<RangeId, Rank>,
    next: u64,
}

impl Expected {
    /// At first the declared machine is expected. It begins with what is declared, and has as many ranks as
    /// the live one.
    pub(super) fn new(spec: &MachineSpec, ranks: u32) -> Result<Self, BackendError> {
        let mut declared = SimBackend::new(spec.clone())?;
        let count = ranks.min(declared.ranks());
        let readings = (0..count).map(|rank| {
            let reading = declared.memory(Rank(rank))?;
            Ok(MemoryReading { common: None, ..reading })
        });
        let ranks = readings.collect::<Result<_, BackendError>>()?;
        let host = declared.host_available()?;
        let (segments, ranges) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { ranks, host, segments, ranges, next: 0 })
    }

    pub(super) fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn reading(&self, rank: Rank) -> Result<MemoryReading, BackendError> {
        self.ranks.get(rank.0 as usize).copied().ok_or(BackendError::Unknown("rank"))
    }

    pub(super) const fn host(&self) -> Bytes {
        self.host
    }

    /// A reading was answered.
    pub(super) fn read(&mut self, rank: Rank, reading: MemoryReading) {
        if let Some(known) = self.ranks.get_mut(rank.0 as usize) {
            *known = reading;
        }
    }

    pub(super) const fn read_host(&mut self, available: Bytes) {
        self.host = available;
    }

    /// A name for what is taken next: segments and ranges share one count.
    pub(super) const fn name(&mut self) -> u64 {
        let name = self.next;
        self.next += 1;
        name
    }

    pub(super) fn took(&mut self, id: SegmentId, rank: Rank, place: Place, size: Bytes) {
        self.segments.insert(id, (rank, place, size));
        self.less(rank, place, size);
    }

    pub(super) fn gave(&mut self, id: SegmentId) {
        if let Some((rank, place, size)) = self.segments.remove(&id) {
            self.more(rank, place, size);
        }
    }

    pub(super) fn reserved(&mut self, id: RangeId, rank: Rank) {
        self.ranges.insert(id, rank);
    }

    pub(super) fn unreserved(&mut self, id: RangeId) {
        self.ranges.remove(&id);
    }

    pub(super) fn mapped(&mut self, id: RangeId, size: Bytes) {
        if let Some(rank) = self.ranges.get(&id) {
            self.less(*rank, Place::Device, size);
        }
    }

    pub(super) fn unmapped(&mut self, id: RangeId, size: Bytes) {
        if let Some(rank) = self.ranges.get(&id) {
            self.more(*rank, Place::Device, size);
        }
    }

    /// Other programs hold this much of a device.
    pub(super) fn others(&mut self, rank: Rank, held: Bytes) {
        let before = self.ranks.get(rank.0 as usize).and_then(|reading| reading.others);
        let before = before.unwrap_or_default();
        self.more(rank, Place::Device, before.saturating_sub(held));
        self.less(rank, Place::Device, held.saturating_sub(before));
        if let Some(reading) = self.ranks.get_mut(rank.0 as usize) {
            reading.others = Some(held);
        }
    }

    fn free_mut(&mut self, rank: Rank, place: Place) -> Option<&mut Bytes> {
        match place {
            Place::Host => Some(&mut self.host),
            Place::Device => self.ranks.get_mut(rank.0 as usize).map(|reading| &mut reading.free),
        }
    }

    fn less(&mut self, rank: Rank, place: Place, size: Bytes) {
        if let Some(free) = self.free_mut(rank, place) {
            *free = free.saturating_sub(size);
        }
    }

    fn more(&mut self, rank: Rank, place: Place, size: Bytes) {
        if let Some(free) = self.free_mut(rank, place) {
            *free = free.saturating_add(size);
        }
    }
}
