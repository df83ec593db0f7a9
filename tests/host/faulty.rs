//! The checks find what is wrong: a machine with one fault fails, by name, where the fault shows.

use plimsoll_backend_host::{HostBackend, HostSpec, Limit, RankSpec, TotalReading, TouchPolicy};
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
        conformance::{Bench, conformance},
    },
    memory::ledger::Account,
    units::{Bytes, Nanos},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A freed segment stays counted.
    Leaks,
    /// The same name twice.
    ReusesNames,
    /// Refuses for now what can never fit.
    NeverIsNotNow,
    /// A refused segment leaves a trace.
    RefusalTakes,
    /// One row of the account is missing.
    LosesRow,
    /// Rank 1's segments come from rank 0.
    WrongRank,
    /// Host pools come from the device.
    PoolsOnDevice,
    /// Reserved addresses cost memory.
    RangesCost,
    /// Unmapping is forgotten.
    KeepsParts,
    /// A range may be given back while it is mapped.
    ForgetsMapped,
    /// Other programs are added to what they held.
    OthersAddUp,
    /// Other programs are never refused.
    OthersOverdraw,
    /// A pass takes the device's time.
    RealTime,
    /// A graph costs half of what is planned.
    CheapGraphs,
    /// A pass keeps memory.
    PassKeeps,
}

use Fault as F;

const FAULTS: [(Fault, &str); 15] = [
    (F::Leaks, "accounts_close"),
    (F::ReusesNames, "accounts_close"),
    (F::NeverIsNotNow, "not_now_and_never"),
    (F::RefusalTakes, "not_now_and_never"),
    (F::LosesRow, "accounts_close"),
    (F::WrongRank, "accounts_close"),
    (F::PoolsOnDevice, "host_is_shared"),
    (F::RangesCost, "ranges"),
    (F::KeepsParts, "ranges"),
    (F::ForgetsMapped, "refused_ranges"),
    (F::OthersAddUp, "other_programs"),
    (F::OthersOverdraw, "other_programs"),
    (F::RealTime, "passes_and_moves"),
    (F::CheapGraphs, "graphs"),
    (F::PassKeeps, "passes_and_moves"),
];

struct Faulty {
    fault: Fault,
    body: HostBackend,
    last: Option<SegmentId>,
    /// The range that was reserved last, until it is given back.
    last_range: Option<RangeId>,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

fn machine(fault: Fault) -> Result<Faulty, BackendError> {
    let rank = RankSpec {
        capacity: Bytes::mib(256),
        tool_capacity: Some(Bytes::mib(256)),
        total: TotalReading::Works,
        driver_reserve: Bytes::mib(4),
        others: Bytes::mib(8),
        granularity: Bytes::ZERO,
    };
    let spec = HostSpec {
        ranks: vec![rank; 2],
        host_available: Bytes::mib(128),
        limit: Limit::Broker,
        touch: TouchPolicy { total: Bytes::mib(4), ..TouchPolicy::default() },
    };
    Ok(Faulty { fault, body: HostBackend::new(&spec)?, last: None, last_range: None })
}

impl Backend for Faulty {
    fn ranks(&self) -> u32 {
        self.body.ranks()
    }
    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        self.body.memory(rank)
    }
    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        self.body.host_available()
    }
    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        let now = self.body.memory(rank)?;
        let held = match self.fault {
            F::OthersAddUp => held.saturating_add(now.others.unwrap_or_default()),
            F::OthersOverdraw => held.min(now.free.saturating_add(now.others.unwrap_or_default())),
            _ => held,
        };
        self.body.set_others(rank, held)
    }
    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let place = if self.has(F::PoolsOnDevice) { Place::Device } else { place };
        let rank = if self.has(F::WrongRank) && rank == Rank(1) { Rank(0) } else { rank };
        let done = self.body.allocate(rank, account, place, size);
        match (self.fault, done) {
            (F::NeverIsNotNow, Err(BackendError::TooLarge { .. })) => {
                let free = self.body.memory(rank)?.free;
                Err(BackendError::OutOfMemory { rank, account, requested: size, free })
            }
            (F::RefusalTakes, Err(error)) => {
                let _ = self.body.allocate(rank, account, place, Bytes::mib(1));
                Err(error)
            }
            (F::ReusesNames, Ok(id)) => Ok(*self.last.get_or_insert(id)),
            (_, done) => done,
        }
    }
    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        if self.has(F::Leaks) { Ok(()) } else { self.body.free(segment) }
    }
    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let mut held = self.body.held(rank)?;
        held.retain(|(account, _)| !(self.has(F::LosesRow) && *account == Account::Weights));
        Ok(held)
    }
    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        self.body.set_host_others(held)
    }
    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        if self.has(F::RangesCost) {
            self.body.allocate(rank, account, Place::Device, Bytes::mib(1))?;
        }
        let range = self.body.reserve(rank, account, size)?;
        self.last_range = Some(range);
        Ok(range)
    }
    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        self.body.map(range, offset, size)
    }
    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let known = range != RangeId(u64::MAX);
        if self.has(F::KeepsParts) && known { Ok(()) } else { self.body.unmap(range, offset, size) }
    }
    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        let first = self.body.unreserve(range);
        let forgets = self.has(F::ForgetsMapped) && self.last_range == Some(range);
        self.last_range = self.last_range.filter(|last| *last != range);
        if forgets { Ok(()) } else { first }
    }
    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        // Those of a size that fits: larger ones are refused as they should be.
        let cheap = self.has(F::CheapGraphs) && planned < Bytes::mib(64);
        let cost = if cheap { Bytes(planned.0 / 2) } else { planned };
        self.body.capture(rank, batch, cost)
    }
    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        if self.has(F::PassKeeps) {
            self.body.allocate(Rank(0), Account::Activations, Place::Device, Bytes::mib(1))?;
        }
        let report = self.body.execute(step)?;
        let real = report.measured.unwrap_or_default().max(Nanos(1));
        let elapsed = if self.has(F::RealTime) { real } else { report.elapsed };
        Ok(StepReport { elapsed, ..report })
    }
    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        self.body.move_kv(rank, way, size)
    }
}

#[test]
fn every_fault_is_found_and_named() {
    let bench = Bench::exact(Bytes::mib(2));
    assert_eq!(conformance(|| machine(F::None), &bench), Ok(()));
    for (fault, check) in FAULTS {
        let found = conformance(|| machine(fault), &bench).expect_err(&format!("{fault:?}"));
        assert!(found.starts_with(&format!("{check}: ")), "{fault:?} was found as: {found}");
    }
}
