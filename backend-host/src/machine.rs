//! A [`Backend`] whose memory is real memory of this process.

use crate::{
    broker::{Broker, Claim},
    kernel::Kernel,
    pile::Pile,
    purse::{Meter, Owner, Purse},
    range::Range,
    region::Region,
    spec::{HostSpec, Limit, TouchPolicy},
};
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, Nanos},
};
use std::{collections::BTreeMap, io, time::Instant};

/// KV is moved through a piece of this size.
const STAGE: usize = 4 << 20;

/// Ranks' devices and a host in anonymous mappings of this process.
///
/// One broker counts for all of them, for the server and for its neighbours; so a machine of many cards
/// stands in a few GiB, and decisions are those of any other backend with the same numbers. What comes and
/// goes (activations, graphs, workspaces, leaks, other programs) is really touched, as far as
/// [`TouchPolicy`] allows; what is taken once and kept is mapped and not touched.
///
/// A mapping that the kernel refuses is told apart from a refusal of the broker: under
/// [`Limit::Broker`] it is [`BackendError::DeviceLost`], since this computer cannot carry the machine; under
/// [`Limit::Kernel`] it is [`BackendError::OutOfMemory`], or [`BackendError::HostOutOfMemory`] for the host.
#[derive(Debug)]
pub struct HostBackend {
    broker: Broker,
    purse: Purse,
    kernel: Kernel,
    policy: TouchPolicy,
    /// Kept mapped for what a driver would keep.
    _reserves: Vec<Region>,
    others: Vec<Pile>,
    host_others: Pile,
    segments: BTreeMap<SegmentId, Segment>,
    ranges: BTreeMap<RangeId, Range>,
    stage: Option<(Vec<u8>, Vec<u8>)>,
    next: u64,
}

#[derive(Debug)]
struct Segment {
    claim: Claim,
    region: Region,
}

impl HostBackend {
    /// A machine at rest: driver reserves mapped, other programs at their start.
    ///
    /// # Errors
    ///
    /// [`BackendError::TooLarge`] when a rank's reserve and other programs exceed its capacity;
    /// [`BackendError::DeviceLost`] when the kernel refuses a mapping.
    pub fn new(spec: &HostSpec) -> Result<Self, BackendError> {
        let broker = Broker::new(spec)?;
        let mut kernel = Kernel::default();
        let total = match spec.limit {
            Limit::Kernel => spec.touch.total,
            // Half of what is there now is left to those who come later.
            Limit::Broker => {
                spec.touch.total.min(kernel.now().map_or(Bytes(u64::MAX), |free| Bytes(free.0 / 2)))
            }
        };
        let mut machine = Self {
            broker,
            purse: Purse::new(&spec.touch, total),
            kernel,
            policy: spec.touch,
            _reserves: Vec::new(),
            others: Vec::new(),
            host_others: Pile::default(),
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            stage: None,
            next: 0,
        };
        machine.settle(spec)?;
        Ok(machine)
    }

    /// Maps what stands on the devices before a server starts.
    fn settle(&mut self, spec: &HostSpec) -> Result<(), BackendError> {
        for (rank, device) in (0..).map(Rank).zip(&spec.ranks) {
            let claim = Claim::device(rank, Account::DriverReserve);
            let reserve = self.region(claim, device.driver_reserve)?;
            self._reserves.push(reserve);
            let claim = Claim::device(rank, Account::OtherPrograms);
            let mut pile = Pile::default();
            let grown = pile.resize(device.others, &mut self.purse);
            grown.map_err(|error| self.refused(claim, device.others, &error))?;
            self.others.push(pile);
        }
        Ok(())
    }

    /// Shows the real memory behind the machine, also when the machine has been given away. Buffers of the
    /// program itself are not in it.
    #[must_use]
    pub fn meter(&self) -> Meter {
        self.purse.meter().clone()
    }

    /// Maps a region for a claim and counts what it touches; the broker has said yes.
    fn region(&mut self, claim: Claim, size: Bytes) -> Result<Region, BackendError> {
        let touch = self.purse.leave(claim.account, size);
        let region = Region::new(size, touch).map_err(|error| self.refused(claim, size, &error))?;
        self.purse.spend(Owner::of(claim.account), region.size(), region.touched());
        Ok(region)
    }

    /// A mapping that the kernel refused.
    fn refused(&mut self, claim: Claim, requested: Bytes, error: &io::Error) -> BackendError {
        let Claim { rank, account, .. } = claim;
        match self.broker.limit() {
            Limit::Kernel => claim.out_of_memory(requested, self.kernel.now().unwrap_or_default()),
            Limit::Broker => BackendError::DeviceLost(format!(
                "the kernel refused to map {requested} for {} of rank {}: {error}",
                account.label(),
                rank.0
            )),
        }
    }

    /// Free memory that decides: the broker's count, or the kernel's own.
    fn deciding(&mut self, counted: Bytes) -> Bytes {
        match self.broker.limit() {
            Limit::Broker => counted,
            Limit::Kernel => self.kernel.now().unwrap_or(counted),
        }
    }

    /// Takes a segment that the broker allows.
    fn take(&mut self, claim: Claim, size: Bytes) -> Result<SegmentId, BackendError> {
        let region = self.region(claim, size)?;
        self.broker.take(claim, size);
        let id = SegmentId(self.name());
        self.segments.insert(id, Segment { claim, region });
        Ok(id)
    }

    const fn name(&mut self) -> u64 {
        let name = self.next;
        self.next += 1;
        name
    }

    /// Other programs hold `held` from now on, of a device or of the host.
    fn neighbours(&mut self, claim: Claim, held: Bytes) -> Result<(), BackendError> {
        let before = self.broker.others(claim)?;
        if let Some(more) = held.checked_sub(before) {
            self.broker.room(claim, more)?;
        }
        let pile = match claim.place {
            Place::Host => Some(&mut self.host_others),
            Place::Device => self.others.get_mut(claim.rank.0 as usize),
        };
        let pile = pile.ok_or(BackendError::Unknown("rank"))?;
        let grown = pile.resize(held, &mut self.purse);
        grown.map_err(|error| self.refused(claim, held.saturating_sub(before), &error))?;
        self.broker.set_others(claim, held);
        Ok(())
    }

    fn range(&self, range: RangeId) -> Result<&Range, BackendError> {
        self.ranges.get(&range).ok_or(BackendError::Unknown("range"))
    }
}

impl Backend for HostBackend {
    fn ranks(&self) -> u32 {
        u32::try_from(self.others.len()).unwrap_or(u32::MAX)
    }

    /// `free` is the broker's count, or the kernel's where it decides; `measured_free` is always the
    /// kernel's: the smaller of `MemAvailable` and what the control group leaves, read at most every 10 ms.
    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let device = *self.broker.spec(rank)?;
        let counted = self.broker.device_free(rank)?;
        let others = self.broker.others(Claim::device(rank, Account::OtherPrograms))?;
        let free = self.deciding(counted);
        Ok(MemoryReading {
            capacity: device.tool_capacity,
            total: device.readable_total(),
            free,
            others: Some(others),
            common: None,
            measured_free: self.kernel.recent(),
        })
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        let counted = self.broker.host_free();
        Ok(self.deciding(counted))
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        self.neighbours(Claim::device(rank, Account::OtherPrograms), held)
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let claim = Claim { rank, account, place };
        let size = self.broker.segment(claim, size)?;
        self.take(claim, size)
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        let Segment { claim, region } =
            self.segments.remove(&segment).ok_or(BackendError::Unknown("segment"))?;
        self.broker.give(claim, region.size());
        self.purse.refund(Owner::of(claim.account), region.size(), region.touched());
        Ok(())
    }

    /// The rows sum to the capacity while the broker refuses; where the kernel decides, accounts may hold
    /// more than the declared capacity, and the row of free memory is what is left of that.
    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        self.broker.rows(rank)
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        let (rank, account) = (Rank(0), Account::OtherPrograms);
        self.neighbours(Claim { rank, account, place: Place::Host }, held)
    }

    /// Addresses are numbers here; the kernel is asked for them when memory is mapped.
    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        self.broker.spec(rank)?;
        let id = RangeId(self.name());
        self.ranges.insert(id, Range::new(rank, account, size));
        Ok(id)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let held = self.range(range)?;
        let claim = Claim::device(held.rank, held.account);
        let unit = self.broker.spec(held.rank)?.granularity;
        if !held.is_vacant(offset, size, unit) {
            return Err(BackendError::Unknown("vacant part of a range"));
        }
        self.broker.exact(claim, size)?;
        let touch = self.purse.leave(claim.account, size);
        let held = self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))?;
        held.map(offset, size, touch).map_err(|error| self.refused(claim, size, &error))?;
        self.purse.spend(Owner::of(claim.account), size, touch);
        self.broker.take(claim, size);
        Ok(())
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let held = self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))?;
        let claim = Claim::device(held.rank, held.account);
        let unit = self.broker.spec(held.rank)?.granularity;
        if !held.is_mapped(offset, size, unit) {
            return Err(BackendError::Unknown("mapped part of a range"));
        }
        let given = held.unmap(offset, size).map_err(|error| self.refused(claim, size, &error))?;
        self.purse.refund(Owner::of(claim.account), given.mapped, given.touched);
        self.broker.give(claim, size);
        Ok(())
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        if !self.range(range)?.is_empty() {
            return Err(BackendError::Unknown("range without memory"));
        }
        self.ranges.remove(&range);
        Ok(())
    }

    /// A graph is memory of its account, exactly as planned, touched like what a driver fills at a capture.
    fn capture(
        &mut self,
        rank: Rank,
        _batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let claim = Claim::device(rank, Account::Graphs);
        self.broker.exact(claim, planned)?;
        self.take(claim, planned)
    }

    /// Touches a little of what is live again, as far as the policy says. `elapsed` is the model's time.
    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        let start = Instant::now();
        let live = self.segments.values_mut().map(|s| &mut s.region);
        let live = live.chain(self.ranges.values_mut().flat_map(Range::regions));
        let mut left = self.policy.step;
        for region in live {
            if left == Bytes::ZERO {
                break;
            }
            left = left.saturating_sub(region.again(left));
        }
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(StepReport { elapsed: step.time, measured: Some(Nanos(took)) })
    }

    /// Copies real bytes, through a buffer of 4 MiB a side and no more than the policy's of one move. The
    /// tiers themselves need not be held here: under ballast the host's is declared only.
    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        self.broker.spec(rank)?;
        let mut left = usize::try_from(size.min(self.policy.copy).0).unwrap_or(usize::MAX);
        let buffers = || (vec![1_u8; STAGE], vec![2_u8; STAGE]);
        let (device, host) = self.stage.get_or_insert_with(buffers);
        let (from, to) = match way {
            KvMove::ToHost => (device, host),
            KvMove::ToDevice => (host, device),
        };
        while left > 0 {
            let piece = left.min(STAGE);
            to[..piece].copy_from_slice(&from[..piece]);
            left -= piece;
        }
        Ok(())
    }
}
