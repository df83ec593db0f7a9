//! A real machine that is made to agree with a declared one.
//!
//! What a scenario declares decides: capacity, other programs, what is free. The real machine holds what the
//! declared one holds, segment by segment, and a filler takes the rest of its memory, so that a request that
//! the declared machine refuses is refused by the real one too. Ranks that the real machine does not have,
//! host pools and contexts are declared only.

use plimsoll_backend_sim::SimBackend;
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, MIB},
};
use std::collections::BTreeMap;

/// The filler goes by the granularity of device memory.
const GRANULE: Bytes = Bytes(2 * MIB);

/// What a real context may hold that the declared machine has not taken yet when a run begins.
const CONTEXT: Bytes = Bytes::gib(1);

/// Where the real machine and the declared one parted; each costs nothing but the proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreement {
    /// Requests that both served or both refused.
    pub agreed: u64,
    /// Requests that the real machine served although the declared one refused.
    pub real_had_more: u64,
    /// Requests that the real machine served only after the filler had made room.
    pub real_had_less: u64,
}

/// A [`Backend`] that decides as declared and really holds what it hands out.
pub struct Ballast {
    declared: SimBackend,
    real: Box<dyn Backend>,
    /// What the filler holds on each real rank.
    filler: Vec<Bytes>,
    segments: BTreeMap<SegmentId, SegmentId>,
    ranges: BTreeMap<RangeId, (Rank, RangeId)>,
    agreement: Agreement,
}

impl Ballast {
    /// Fills the real machine until it agrees.
    ///
    /// # Errors
    ///
    /// [`BackendError::DeviceLost`] when it has less free memory than is declared, or cannot be read.
    pub fn new(declared: SimBackend, real: Box<dyn Backend>) -> Result<Self, BackendError> {
        let ranks = real.ranks().min(declared.ranks());
        let mut ballast = Self {
            declared,
            real,
            filler: vec![Bytes::ZERO; ranks as usize],
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            agreement: Agreement::default(),
        };
        for rank in (0..ranks).map(Rank) {
            // What others hold is set as one amount: those that are there count in the filler.
            let there = ballast.real.memory(rank)?.others.unwrap_or_default();
            ballast.filler[rank.0 as usize] = there;
            ballast.align_within(rank, CONTEXT)?;
        }
        Ok(ballast)
    }

    /// How well both agreed so far.
    #[must_use]
    pub const fn agreement(&self) -> Agreement {
        self.agreement
    }

    fn is_real(&self, rank: Rank) -> bool {
        (rank.0 as usize) < self.filler.len()
    }

    /// Moves the filler until the real rank has what the declared one has free, down to a granule.
    fn align(&mut self, rank: Rank) -> Result<(), BackendError> {
        self.align_within(rank, Bytes::ZERO)
    }

    /// As [`Self::align`]; the machine may lack `slack` yet.
    fn align_within(&mut self, rank: Rank, slack: Bytes) -> Result<(), BackendError> {
        if !self.is_real(rank) {
            return Ok(());
        }
        // On memory in common with the host a segment takes page cache's place: more than is read as free.
        let wanted = self.declared.takeable(rank)?;
        let there = self.real.memory(rank)?.free;
        let filler = self.filler[rank.0 as usize];
        let all = filler.saturating_add(there);
        if wanted > all && wanted.saturating_sub(all) <= slack {
            return Ok(());
        }
        let Some(next) = all.checked_sub(wanted) else {
            let lacking = wanted.saturating_sub(all);
            return Err(BackendError::DeviceLost(format!(
                "rank {} declares {wanted} free, the machine has {all}: {lacking} too little",
                rank.0
            )));
        };
        let next = Bytes(next.0 / GRANULE.0 * GRANULE.0);
        if next != filler {
            self.real.set_others(rank, next)?;
            self.filler[rank.0 as usize] = next;
        }
        Ok(())
    }

    /// Serves on the real rank what the declared one served; the filler makes room once.
    fn really<T>(
        &mut self,
        rank: Rank,
        mut serve: impl FnMut(&mut dyn Backend) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        match serve(self.real.as_mut()) {
            Ok(served) => {
                self.agreement.agreed += 1;
                Ok(served)
            }
            Err(BackendError::OutOfMemory { requested, .. }) => {
                self.make_room(rank, requested)?;
                self.agreement.real_had_less += 1;
                serve(self.real.as_mut()).map_err(|error| {
                    BackendError::DeviceLost(format!(
                        "the machine does not hold what is declared: {error}"
                    ))
                })
            }
            Err(other) => Err(other),
        }
    }

    /// Pairs a declared segment with the real one. Without a real one it is given back: a failed call
    /// changes nothing.
    fn keep(
        &mut self,
        declared: SegmentId,
        taken: Result<SegmentId, BackendError>,
    ) -> Result<(), BackendError> {
        match taken {
            Ok(real) => {
                self.segments.insert(declared, real);
                Ok(())
            }
            Err(error) => {
                self.declared.free(declared)?;
                Err(error)
            }
        }
    }

    /// The filler gives way until the real rank has `size` free, and a granule more: sizes that are no
    /// multiple of one cost the real machine up to that much each.
    fn make_room(&mut self, rank: Rank, size: Bytes) -> Result<(), BackendError> {
        let there = self.real.memory(rank)?.free;
        let wanted = size.round_up_to(GRANULE).saturating_add(GRANULE);
        let lacking = wanted.saturating_sub(there).round_up_to(GRANULE);
        let less = self.filler[rank.0 as usize].saturating_sub(lacking);
        self.real.set_others(rank, less)?;
        self.filler[rank.0 as usize] = less;
        Ok(())
    }

    /// A refused request is put to the real rank too: it should refuse.
    fn prove_refusal(&mut self, rank: Rank, account: Account, size: Bytes) {
        match self.real.allocate(rank, account, Place::Device, size) {
            Ok(segment) => {
                self.agreement.real_had_more += 1;
                // Taken a line above.
                let freed = self.real.free(segment);
                debug_assert!(freed.is_ok());
            }
            Err(_) => self.agreement.agreed += 1,
        }
    }
}

impl Backend for Ballast {
    fn ranks(&self) -> u32 {
        self.declared.ranks()
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let declared = self.declared.memory(rank)?;
        let measured_free = match self.is_real(rank) {
            true => Some(self.real.memory(rank)?.free),
            false => None,
        };
        Ok(MemoryReading { measured_free, ..declared })
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        self.declared.host_available()
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        self.declared.set_others(rank, held)?;
        self.align(rank)
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let is_real = self.is_real(rank) && place == Place::Device && account != Account::Context;
        let declared = match self.declared.allocate(rank, account, place, size) {
            Ok(segment) => segment,
            Err(refused) => {
                if is_real && matches!(refused, BackendError::OutOfMemory { .. }) {
                    self.prove_refusal(rank, account, size);
                }
                return Err(refused);
            }
        };
        if is_real {
            let taken = self.really(rank, |real| real.allocate(rank, account, place, size));
            self.keep(declared, taken)?;
        } else if account == Account::Context || place == Place::Host {
            // A host pool may take from the device's memory.
            self.align(rank)?;
        }
        Ok(declared)
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        self.declared.free(segment)?;
        match self.segments.remove(&segment) {
            Some(real) => self.real.free(real),
            None => Ok(()),
        }
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        self.declared.held(rank)
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        self.declared.set_host_others(held)?;
        // On a machine with one memory this took from the devices too.
        for rank in (0..self.declared.ranks()).map(Rank) {
            self.align(rank)?;
        }
        Ok(())
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        let declared = self.declared.reserve(rank, account, size)?;
        if self.is_real(rank) {
            let real = self.real.reserve(rank, account, size)?;
            self.ranges.insert(declared, (rank, real));
        }
        Ok(declared)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let real = self.ranges.get(&range).copied();
        match self.declared.map(range, offset, size) {
            Ok(()) => {}
            Err(refused) => {
                if let Some((rank, _)) = real
                    && matches!(refused, BackendError::OutOfMemory { .. })
                {
                    self.prove_refusal(rank, Account::Activations, size);
                }
                return Err(refused);
            }
        }
        match real {
            Some((rank, real)) => {
                let mapped = self.really(rank, |body| body.map(real, offset, size));
                if mapped.is_err() {
                    self.declared.unmap(range, offset, size)?;
                }
                mapped
            }
            None => Ok(()),
        }
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        self.declared.unmap(range, offset, size)?;
        match self.ranges.get(&range) {
            Some((_, real)) => self.real.unmap(*real, offset, size),
            None => Ok(()),
        }
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        self.declared.unreserve(range)?;
        match self.ranges.remove(&range) {
            Some((_, real)) => self.real.unreserve(real),
            None => Ok(()),
        }
    }

    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let declared = self.declared.capture(rank, batch, planned)?;
        if self.is_real(rank) {
            let taken = self.really(rank, |real| real.capture(rank, batch, planned));
            self.keep(declared, taken)?;
            // A real graph may have cost more than was planned.
            self.align(rank)?;
        }
        Ok(declared)
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        let declared = self.declared.execute(step)?;
        let real = self.real.execute(step)?;
        Ok(StepReport { measured: real.measured, ..declared })
    }

    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        self.declared.move_kv(rank, way, size)?;
        if self.is_real(rank) { self.real.move_kv(rank, way, size) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec};

    fn machine(capacity: Bytes, ranks: usize) -> SimBackend {
        let device = DeviceSpec::of_capacity(capacity);
        let host = HostSpec::of_available(Bytes::gib(4));
        let spec = MachineSpec::new(vec![device; ranks], host);
        SimBackend::new(spec).unwrap()
    }

    /// Another simulator stands for the real machine: what is real about it does not matter here.
    fn ballast() -> Ballast {
        let real = Box::new(machine(Bytes::gib(40), 1));
        Ballast::new(machine(Bytes::gib(10), 2), real).unwrap()
    }

    #[test]
    fn both_serve_and_refuse_alike() {
        let mut ballast = ballast();
        let rank = Rank(0);
        let take = |b: &mut Ballast, size| b.allocate(rank, Account::KvPool, Place::Device, size);
        let pool = take(&mut ballast, Bytes::gib(7)).unwrap();
        assert_eq!(ballast.memory(rank).unwrap().measured_free, Some(Bytes::gib(3)));
        assert!(take(&mut ballast, Bytes::gib(4)).is_err());
        ballast.set_others(rank, Bytes::gib(2)).unwrap();
        assert!(take(&mut ballast, Bytes::gib(2)).is_err());
        assert_eq!(ballast.memory(rank).unwrap().measured_free, Some(Bytes::gib(1)));
        ballast.free(pool).unwrap();
        assert_eq!(ballast.memory(rank).unwrap().measured_free, Some(Bytes::gib(8)));
        let agreement = ballast.agreement();
        assert_eq!((agreement.real_had_more, agreement.real_had_less), (0, 0));
        // The second rank is declared only.
        assert_eq!(ballast.memory(Rank(1)).unwrap().measured_free, None);
    }

    #[test]
    fn programs_that_are_there_count_in_the_filler() {
        let others = Bytes(Bytes::gib(3).0 + 12345);
        let device = DeviceSpec { others, ..DeviceSpec::of_capacity(Bytes::gib(40)) };
        let spec = MachineSpec::new(vec![device], HostSpec::of_available(Bytes::gib(4)));
        let real = Box::new(SimBackend::new(spec).unwrap());
        let mut ballast = Ballast::new(machine(Bytes::gib(10), 1), real).unwrap();
        ballast.set_others(Rank(0), Bytes::gib(2)).unwrap();
        let reading = ballast.memory(Rank(0)).unwrap();
        assert_eq!(reading.free, Bytes::gib(8));
        let apart = reading.measured_free.unwrap().saturating_sub(reading.free);
        assert!(apart < GRANULE, "{apart:?}");
    }

    #[test]
    fn a_smaller_machine_cannot_stand_in() {
        let real = Box::new(machine(Bytes::gib(8), 1));
        let lost = Ballast::new(machine(Bytes::gib(10), 1), real);
        assert!(matches!(lost, Err(BackendError::DeviceLost(_))));
    }
}
