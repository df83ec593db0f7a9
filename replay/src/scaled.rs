//! A real machine under a declared one that is larger: of every byte it holds an n-th.
//!
//! What is declared still decides, and the real machine still serves and refuses; its pages weigh n times as
//! much. Ranges are held by their mapped bytes in whole granules: an n-th of a range has no place of its own.

use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, MIB},
};
use std::collections::BTreeMap;

/// What a real device rounds segments to.
const GRANULE: Bytes = Bytes(2 * MIB);

/// Of what is free on the real machine, this part is used at most: pages round up.
const USED: (u64, u64) = (15, 16);

/// A [`Backend`] that holds an n-th of what it is asked for.
pub struct Scaled {
    real: Box<dyn Backend>,
    by: u64,
    ranges: BTreeMap<RangeId, Range>,
    next: u64,
}

/// A range, and the granules that stand for its mapped bytes.
struct Range {
    rank: Rank,
    account: Account,
    mapped: Bytes,
    held: Vec<SegmentId>,
}

impl Scaled {
    /// A machine that stands for one with `declared` bytes a rank: scaled by the smallest whole number with
    /// which that fits what its fullest rank has free.
    ///
    /// # Errors
    ///
    /// [`BackendError`] of a reading; [`BackendError::DeviceLost`] when nothing is free.
    pub fn fitting(mut real: Box<dyn Backend>, declared: Bytes) -> Result<Self, BackendError> {
        let mut least = Bytes(u64::MAX);
        for rank in (0..real.ranks()).map(Rank) {
            least = least.min(real.memory(rank)?.free);
        }
        let usable = least.0 / USED.1 * USED.0;
        if usable == 0 {
            return Err(BackendError::DeviceLost("nothing of it is free".to_owned()));
        }
        let by = declared.0.div_ceil(usable).max(1);
        Ok(Self { real, by, ranges: BTreeMap::new(), next: 0 })
    }

    /// The n.
    #[must_use]
    pub const fn by(&self) -> u64 {
        self.by
    }

    const fn down(&self, bytes: Bytes) -> Bytes {
        Bytes(bytes.0.div_ceil(self.by))
    }

    const fn up(&self, bytes: Bytes) -> Bytes {
        Bytes(bytes.0.saturating_mul(self.by))
    }

    /// Sizes of an answer, as the caller counts. A refused request is told with what rounding may cost.
    fn told(&self, error: BackendError) -> BackendError {
        match error {
            BackendError::OutOfMemory { rank, account, requested, free } if self.by > 1 => {
                let requested = self.up(requested.round_up_to(GRANULE) + GRANULE);
                BackendError::OutOfMemory { rank, account, requested, free: self.up(free) }
            }
            other => other,
        }
    }

    fn range(&mut self, range: RangeId) -> Result<Range, BackendError> {
        self.ranges.remove(&range).ok_or(BackendError::Unknown("range"))
    }

    /// Takes or gives granules until they hold what is mapped; a refusal gives back what was taken.
    fn settle(&mut self, range: &mut Range, mapped: Bytes) -> Result<(), BackendError> {
        let wanted = (self.down(mapped).0.div_ceil(GRANULE.0)) as usize;
        let before = range.held.len();
        while range.held.len() > wanted {
            let Some(last) = range.held.pop() else { break };
            self.real.free(last)?;
        }
        while range.held.len() < wanted {
            match self.real.allocate(range.rank, range.account, Place::Device, GRANULE) {
                Ok(segment) => range.held.push(segment),
                Err(error) => {
                    for segment in range.held.drain(before..) {
                        self.real.free(segment)?;
                    }
                    return Err(self.told(error));
                }
            }
        }
        range.mapped = mapped;
        Ok(())
    }
}

impl Backend for Scaled {
    fn ranks(&self) -> u32 {
        self.real.ranks()
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let real = self.real.memory(rank)?;
        let up = |bytes: Option<Bytes>| bytes.map(|bytes| self.up(bytes));
        Ok(MemoryReading {
            capacity: up(real.capacity),
            total: up(real.total),
            free: self.up(real.free),
            others: up(real.others),
            common: real.common,
            measured_free: up(real.measured_free),
        })
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        self.real.host_available()
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        // Down to a granule: what the filler leaves too much proves less, what it takes too much would refuse.
        let held = match self.by {
            1 => held,
            by => Bytes(held.0 / by / GRANULE.0 * GRANULE.0),
        };
        self.real.set_others(rank, held).map_err(|error| self.told(error))
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let size = self.down(size);
        self.real.allocate(rank, account, place, size).map_err(|error| self.told(error))
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        self.real.free(segment)
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let rows = self.real.held(rank)?;
        Ok(rows.into_iter().map(|(account, bytes)| (account, self.up(bytes))).collect())
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        self.real.set_host_others(held)
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        _size: Bytes,
    ) -> Result<RangeId, BackendError> {
        let id = RangeId(self.next);
        self.next += 1;
        self.ranges.insert(id, Range { rank, account, mapped: Bytes::ZERO, held: Vec::new() });
        Ok(id)
    }

    fn map(&mut self, range: RangeId, _offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let mut held = self.range(range)?;
        let mapped = held.mapped.saturating_add(size);
        let settled = self.settle(&mut held, mapped);
        self.ranges.insert(range, held);
        settled
    }

    fn unmap(&mut self, range: RangeId, _offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let mut held = self.range(range)?;
        let mapped = held.mapped.saturating_sub(size);
        let settled = self.settle(&mut held, mapped);
        self.ranges.insert(range, held);
        settled
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        let held = self.range(range)?;
        held.held.into_iter().try_for_each(|segment| self.real.free(segment))
    }

    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let planned = self.down(planned);
        self.real.capture(rank, batch, planned).map_err(|error| self.told(error))
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        self.real.execute(step)
    }

    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        let size = self.down(size);
        self.real.move_kv(rank, way, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ballast::Ballast;
    use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec, SimBackend};

    /// A simulator stands for the real machine: what is real about it does not matter here.
    fn machine(capacity: Bytes) -> SimBackend {
        let host = HostSpec::of_available(Bytes::gib(4));
        let device = DeviceSpec { granularity: GRANULE, ..DeviceSpec::of_capacity(capacity) };
        SimBackend::new(MachineSpec::new(vec![device], host)).unwrap()
    }

    #[test]
    fn a_small_machine_serves_and_refuses_like_a_large_one() {
        let (rank, kv, place) = (Rank(0), Account::KvPool, Place::Device);
        let scaled = Scaled::fitting(Box::new(machine(Bytes::gib(8))), Bytes::gib(80)).unwrap();
        assert_eq!(scaled.by(), 11);
        let mut ballast = Ballast::new(machine(Bytes::gib(80)), Box::new(scaled)).unwrap();
        let pool = ballast.allocate(rank, kv, place, Bytes::gib(60)).unwrap();
        let range = ballast.reserve(rank, kv, Bytes::gib(30)).unwrap();
        ballast.map(range, Bytes::ZERO, Bytes::gib(15)).unwrap();
        assert!(ballast.map(range, Bytes::gib(15), Bytes::gib(6)).is_err());
        assert!(ballast.allocate(rank, kv, place, Bytes::gib(6)).is_err());
        for _ in 0..100 {
            ballast.allocate(rank, Account::Activations, place, Bytes::mib(20)).unwrap();
        }
        ballast.unmap(range, Bytes::gib(5), Bytes::gib(10)).unwrap();
        ballast.map(range, Bytes::gib(10), Bytes::gib(9)).unwrap();
        ballast.free(pool).unwrap();
        let reading = ballast.memory(rank).unwrap();
        let apart = reading.measured_free.unwrap().0.abs_diff(reading.free.0);
        // A hundred segments of 20 MiB are a granule each.
        assert!(apart < Bytes::mib(250).0, "{reading:?}");
        assert_eq!(ballast.agreement().real_had_more, 0);
        // What a machine holds whole is not scaled.
        let same = Scaled::fitting(Box::new(machine(Bytes::gib(40))), Bytes::gib(10)).unwrap();
        assert_eq!(same.by(), 1);
        assert!(Scaled::fitting(Box::new(machine(Bytes(8))), Bytes::gib(10)).is_err());
    }
}
