//! A simulated machine at work: the [`Backend`] over its memory, its segments and its faults.

use crate::{
    HostHeld,
    faults::{FailAt, Fault, Phase, Trigger},
    memory::Memory,
    pages::PageId,
    ranges::Range,
    spec::MachineSpec,
};
use plimsoll_core::{
    backend::{
        Backend, BackendError, HostLimit, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId,
        StepReport, StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, Nanos},
};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Segment {
    rank: Rank,
    account: Account,
    place: Place,
    size: Bytes,
    page: Option<PageId>,
}

/// A [`Backend`] whose memory is arithmetic.
#[derive(Clone, Debug)]
pub struct SimBackend {
    memory: Memory,
    segments: BTreeMap<SegmentId, Segment>,
    ranges: BTreeMap<RangeId, Range>,
    faults: Vec<(Fault, Phase)>,
    next: u64,
    fail_at: Option<FailAt>,
    takes: u64,
    steps: u64,
    elapsed: Nanos,
}

/// When faults are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Reading,
    Step,
}

impl SimBackend {
    /// A machine at rest: nothing is held but the driver reserve, other programs and tenants of the start.
    ///
    /// # Errors
    ///
    /// [`BackendError::TooLarge`] when that exceeds a device or a host; [`BackendError::Unknown`] for a
    /// fault on a rank or node that does not exist, or nodes that the devices cannot have.
    pub fn new(spec: MachineSpec) -> Result<Self, BackendError> {
        let memory = Memory::new(&spec)?;
        let mut machine = Self {
            memory,
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            faults: Vec::new(),
            next: 0,
            fail_at: spec.fail_at,
            takes: 0,
            steps: 0,
            elapsed: Nanos(0),
        };
        for fault in spec.faults {
            let phase = machine.at_start(&fault)?;
            machine.faults.push((fault, phase));
        }
        Ok(machine)
    }

    /// Who holds the RAM of a host; `None` for a node that does not exist.
    #[must_use]
    pub fn host_held(&self, node: u32) -> Option<HostHeld> {
        self.memory.hosts().get(node as usize).map(crate::host::Host::held)
    }

    /// Files are read or written until a host's page cache has this size, or what is free is used.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a node that does not exist.
    pub fn set_page_cache(&mut self, node: u32, size: Bytes) -> Result<(), BackendError> {
        self.memory.host_mut(node)?.set_page_cache(size);
        Ok(())
    }

    /// What a segment of any size could get on a rank's device now. On memory in common with the host this
    /// is more than [`MemoryReading::free`] where page cache can be given back, and less above a working
    /// set.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unknown`] for a rank that does not exist.
    pub fn takeable(&self, rank: Rank) -> Result<Bytes, BackendError> {
        self.memory.takeable(rank)
    }

    /// Model time of all executed steps.
    #[must_use]
    pub const fn elapsed(&self) -> Nanos {
        self.elapsed
    }

    const fn name(&mut self) -> u64 {
        let name = self.next;
        self.next += 1;
        name
    }

    /// Checks what a fault names, and lets tenants of the start in.
    fn at_start(&mut self, fault: &Fault) -> Result<Phase, BackendError> {
        let too_large = |rank: Rank, requested: Bytes, capacity: Bytes| {
            let account = Account::OtherPrograms;
            Err(BackendError::TooLarge { rank, account, requested, capacity })
        };
        let here = match *fault {
            Fault::Tenant { rank, from, size, .. } => {
                let free = self.memory.takeable(rank)?;
                if from.is_none() && size > free {
                    return too_large(rank, size, free);
                }
                from.is_none()
            }
            Fault::HostTenant { node, from, size, .. } => {
                let free = self.memory.host_mut(node)?.available();
                if from.is_none() && size > free {
                    return too_large(Rank(0), size, free);
                }
                from.is_none()
            }
            Fault::PageCache { node, .. } => {
                self.memory.host_mut(node)?;
                false
            }
            Fault::Leak { rank, .. } => {
                self.memory.device(rank)?;
                false
            }
        };
        if here { self.advance(fault, Phase::Waiting) } else { Ok(Phase::Waiting) }
    }

    /// Does the next thing of a fault.
    fn advance(&mut self, fault: &Fault, phase: Phase) -> Result<Phase, BackendError> {
        match (*fault, phase) {
            (Fault::Tenant { rank, size, .. }, Phase::Waiting) => {
                self.memory.tenant_comes(rank, size).map(Phase::Here)
            }
            (Fault::Tenant { rank, .. }, Phase::Here(got)) => {
                self.memory.tenant_leaves(rank, got).map(|()| Phase::Over)
            }
            (Fault::HostTenant { node, size, .. }, Phase::Waiting) => {
                let host = self.memory.host_mut(node)?;
                let got = size.min(host.available());
                host.make_room(got);
                host.tenants += got;
                Ok(Phase::Here(got))
            }
            (Fault::HostTenant { node, .. }, Phase::Here(got)) => {
                let host = self.memory.host_mut(node)?;
                host.tenants = host.tenants.saturating_sub(got);
                Ok(Phase::Over)
            }
            (Fault::PageCache { node, size, .. }, Phase::Waiting) => {
                self.memory.host_mut(node)?.set_page_cache(size);
                Ok(Phase::Over)
            }
            (_, phase) => Ok(phase),
        }
    }

    fn is_due(&self, trigger: Trigger, moment: Moment) -> bool {
        match trigger {
            Trigger::AfterReading { rank, nth } => {
                self.memory.device(rank).is_ok_and(|device| device.readings >= nth)
            }
            Trigger::BeforeStep(step) => moment == Moment::Step && self.steps >= step,
            Trigger::At(time) => moment == Moment::Step && self.elapsed >= time,
        }
    }

    /// Lets everything happen that is due.
    fn pass(&mut self, moment: Moment) -> Result<(), BackendError> {
        for at in 0..self.faults.len() {
            let (fault, mut phase) = self.faults[at];
            // At most two things: it comes, it leaves.
            while let Some(trigger) = fault.next(phase)
                && self.is_due(trigger, moment)
            {
                phase = self.advance(&fault, phase)?;
                self.faults[at].1 = phase;
            }
        }
        Ok(())
    }

    /// Leaks of one step, each as much as there is.
    fn leak(&mut self) -> Result<(), BackendError> {
        for at in 0..self.faults.len() {
            let (Fault::Leak { rank, each_step }, _) = self.faults[at] else { continue };
            let lost = each_step.min(self.memory.takeable(rank)?);
            self.memory.take(rank, Account::Unaccounted, lost)?;
        }
        Ok(())
    }

    /// Counts a call that takes memory, and refuses the one that is to fail.
    fn count(
        &mut self,
        rank: Rank,
        account: Account,
        requested: Bytes,
    ) -> Result<(), BackendError> {
        let free = self.memory.takeable(rank)?;
        let now = self.takes;
        self.takes += 1;
        if self.fail_at.is_some_and(|fail| fail.covers(now)) {
            return Err(BackendError::OutOfMemory { rank, account, requested, free });
        }
        Ok(())
    }

    fn hold(&mut self, segment: Segment) -> SegmentId {
        let id = SegmentId(self.name());
        self.segments.insert(id, segment);
        id
    }

    fn range(&self, range: RangeId) -> Result<&Range, BackendError> {
        self.ranges.get(&range).ok_or(BackendError::Unknown("range"))
    }

    fn range_mut(&mut self, range: RangeId) -> Result<&mut Range, BackendError> {
        self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))
    }
}

impl Backend for SimBackend {
    fn ranks(&self) -> u32 {
        u32::try_from(self.memory.devices().len()).unwrap_or(u32::MAX)
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let device = self.memory.device(rank)?;
        let reading = MemoryReading {
            capacity: device.spec.tool_capacity,
            total: device.spec.readable_total(),
            free: self.memory.free_reading(device),
            others: Some(self.memory.foreign(device)),
            common: self.memory.host_side(device),
            measured_free: None,
        };
        self.memory.device_mut(rank)?.readings += 1;
        self.pass(Moment::Reading)?;
        Ok(reading)
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        Ok(self.memory.host_available())
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        self.memory.set_others(rank, held)
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        self.count(rank, account, size)?;
        let (size, page) = match place {
            Place::Device => self.memory.take_segment(rank, account, size)?,
            Place::Host => {
                self.memory.take_host(rank, account, size)?;
                (size, None)
            }
        };
        Ok(self.hold(Segment { rank, account, place, size, page }))
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        let Segment { rank, account, place, size, page } =
            self.segments.remove(&segment).ok_or(BackendError::Unknown("segment"))?;
        match place {
            Place::Device => self.memory.give_segment(rank, account, (size, page)),
            Place::Host => self.memory.give_host(rank, account, size),
        }
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        self.memory.accounts(rank)
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        for host in self.memory.hosts() {
            let (requested, free) = (held.saturating_sub(host.others), host.available());
            if requested > free {
                let (rank, account) = (Rank(0), Account::OtherPrograms);
                let limit = HostLimit::Host;
                return Err(BackendError::HostOutOfMemory {
                    rank,
                    account,
                    limit,
                    requested,
                    free,
                });
            }
        }
        for node in (0..).take(self.memory.hosts().len()) {
            let host = self.memory.host_mut(node)?;
            host.make_room(held.saturating_sub(host.others));
            host.others = held;
        }
        Ok(())
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        self.count(rank, account, size)?;
        self.memory.reserve(rank, account, size)?;
        let id = RangeId(self.name());
        self.ranges.insert(id, Range::new(rank, account, size));
        Ok(id)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let (rank, account) = self.range(range).map(|r| (r.rank, r.account))?;
        let unit = self.memory.device(rank)?.spec.granularity;
        let part = self.range(range)?.unmapped_part(offset, size, unit)?;
        self.count(rank, account, size)?;
        self.memory.take(rank, account, size)?;
        self.range_mut(range)?.map(part);
        Ok(())
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let (rank, account) = self.range(range).map(|r| (r.rank, r.account))?;
        let unit = self.memory.device(rank)?.spec.granularity;
        let part = self.range(range)?.mapped_part(offset, size, unit)?;
        self.range_mut(range)?.unmap(part);
        self.memory.give(rank, account, size)
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        let held = self.range(range)?;
        if !held.is_unmapped() {
            return Err(BackendError::Unknown("range without memory behind it"));
        }
        let (rank, size) = (held.rank, held.size());
        self.ranges.remove(&range);
        let device = self.memory.device_mut(rank)?;
        device.reserved = device.reserved.saturating_sub(size);
        Ok(())
    }

    fn capture(
        &mut self,
        rank: Rank,
        _batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let account = Account::Graphs;
        self.count(rank, account, planned)?;
        self.memory.take(rank, account, planned)?;
        let place = Place::Device;
        Ok(self.hold(Segment { rank, account, place, size: planned, page: None }))
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        self.pass(Moment::Step)?;
        self.leak()?;
        self.steps += 1;
        self.elapsed = Nanos(self.elapsed.0.saturating_add(step.time.0));
        Ok(StepReport { elapsed: step.time, measured: None })
    }

    fn idle_passes(&self) -> u64 {
        if self.faults.is_empty() { u64::MAX } else { 0 }
    }

    fn skip(&mut self, passes: u64, time: Nanos) {
        self.steps += passes;
        self.elapsed = Nanos(self.elapsed.0.saturating_add(time.0));
    }

    fn move_kv(&mut self, rank: Rank, _way: KvMove, size: Bytes) -> Result<(), BackendError> {
        let device = self.memory.device(rank)?;
        let pools = [Account::KvPool, Account::DraftPool, Account::StatePool];
        let here: Bytes = pools.into_iter().map(|account| device.accounts.of(account)).sum();
        if size > here {
            return Err(BackendError::Unknown("KV of this size on the device"));
        }
        if size > device.host_pools {
            return Err(BackendError::Unknown("host tier of this size"));
        }
        Ok(())
    }
}
