//! One machine in two bodies: a live one that is recorded, and its recording.

use super::{
    Queue,
    answer::{self, Answer},
    expected::Expected,
};
use crate::start::Machine;
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepReport,
        StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, Nanos},
};
use std::{cell::Cell, collections::BTreeMap};

/// Something that is done to a machine; it succeeds unless observed otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act<'a> {
    SetOthers(Rank, Bytes),
    SetHostOthers(Bytes),
    Allocate(SegmentId, Rank, Account, Place, Bytes),
    Free(SegmentId),
    Reserve(RangeId, Rank, Account, Bytes),
    Map(RangeId, Bytes, Bytes),
    Unmap(RangeId, Bytes, Bytes),
    Unreserve(RangeId),
    Capture(SegmentId, Rank, u64, Bytes),
    Execute(&'a StepWork),
    MoveKv(Rank, KvMove, Bytes),
}

/// Who answers. `call` is the number of the call.
pub(super) trait Answers {
    fn reading(
        &mut self,
        call: u64,
        rank: Rank,
        expected: MemoryReading,
    ) -> Result<MemoryReading, BackendError>;
    fn host(&mut self, call: u64, expected: Bytes) -> Result<Bytes, BackendError>;
    fn held(&self, call: u64, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError>;
    /// Answers the time that a step really took.
    fn act(&mut self, call: u64, act: Act<'_>) -> Result<Option<Nanos>, BackendError>;
}

/// A live machine; what could not be derived goes to the queue.
pub(super) struct Live {
    machine: Machine,
    queue: Queue,
    segments: BTreeMap<SegmentId, SegmentId>,
    ranges: BTreeMap<RangeId, RangeId>,
}

impl Live {
    pub(super) fn new(machine: Machine, queue: Queue) -> Self {
        Self { machine, queue, segments: BTreeMap::new(), ranges: BTreeMap::new() }
    }

    fn write(&self, call: u64, answer: &Answer) {
        self.queue.borrow_mut().push(answer::record(call, answer));
    }

    fn refused<T>(&self, call: u64, done: Result<T, BackendError>) -> Result<T, BackendError> {
        if let Err(error) = &done {
            self.write(call, &Answer::Refused(error.clone()));
        }
        done
    }

    fn range(&self, id: RangeId) -> Result<RangeId, BackendError> {
        self.ranges.get(&id).copied().ok_or(BackendError::Unknown("range"))
    }

    fn really(&mut self, act: Act<'_>) -> Result<Option<Nanos>, BackendError> {
        let machine = self.machine.as_mut();
        match act {
            Act::SetOthers(rank, held) => machine.set_others(rank, held)?,
            Act::SetHostOthers(held) => machine.set_host_others(held)?,
            Act::Allocate(id, rank, account, place, size) => {
                let real = machine.allocate(rank, account, place, size)?;
                self.segments.insert(id, real);
            }
            Act::Capture(id, rank, batch, planned) => {
                let real = machine.capture(rank, batch, planned)?;
                self.segments.insert(id, real);
            }
            Act::Free(id) => {
                let real = self.segments.remove(&id).ok_or(BackendError::Unknown("segment"))?;
                machine.free(real)?;
            }
            Act::Reserve(id, rank, account, size) => {
                let real = machine.reserve(rank, account, size)?;
                self.ranges.insert(id, real);
            }
            Act::Map(id, offset, size) => {
                let real = self.range(id)?;
                self.machine.map(real, offset, size)?;
            }
            Act::Unmap(id, offset, size) => {
                let real = self.range(id)?;
                self.machine.unmap(real, offset, size)?;
            }
            Act::Unreserve(id) => {
                let real = self.range(id)?;
                self.machine.unreserve(real)?;
                self.ranges.remove(&id);
            }
            Act::Execute(step) => return Ok(machine.execute(step)?.measured),
            Act::MoveKv(rank, way, size) => machine.move_kv(rank, way, size)?,
        }
        Ok(None)
    }
}

impl Answers for Live {
    fn reading(
        &mut self,
        call: u64,
        rank: Rank,
        expected: MemoryReading,
    ) -> Result<MemoryReading, BackendError> {
        let reading = self.machine.memory(rank);
        let reading = self.refused(call, reading)?;
        // Beside the reading that decides nothing was measured; a host's side is not told apart.
        let reading = MemoryReading { common: None, measured_free: None, ..reading };
        if reading != expected {
            self.write(call, &Answer::Reading(rank, reading));
        }
        Ok(reading)
    }

    fn host(&mut self, call: u64, expected: Bytes) -> Result<Bytes, BackendError> {
        let available = self.machine.host_available();
        let available = self.refused(call, available)?;
        if available != expected {
            self.write(call, &Answer::Host(available));
        }
        Ok(available)
    }

    fn held(&self, call: u64, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let held = self.refused(call, self.machine.held(rank))?;
        self.write(call, &Answer::Held(rank, held.clone()));
        Ok(held)
    }

    fn act(&mut self, call: u64, act: Act<'_>) -> Result<Option<Nanos>, BackendError> {
        let done = self.really(act);
        self.refused(call, done)
    }
}

/// What was recorded of a live machine.
pub(super) struct Played {
    seen: BTreeMap<u64, Answer>,
}

impl Played {
    pub(super) const fn new(seen: BTreeMap<u64, Answer>) -> Self {
        Self { seen }
    }

    fn refusal(&self, call: u64) -> Result<(), BackendError> {
        match self.seen.get(&call) {
            Some(Answer::Refused(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl Answers for Played {
    fn reading(
        &mut self,
        call: u64,
        rank: Rank,
        expected: MemoryReading,
    ) -> Result<MemoryReading, BackendError> {
        self.refusal(call)?;
        Ok(match self.seen.get(&call) {
            Some(Answer::Reading(of, reading)) if *of == rank => *reading,
            _ => expected,
        })
    }

    fn host(&mut self, call: u64, expected: Bytes) -> Result<Bytes, BackendError> {
        self.refusal(call)?;
        Ok(match self.seen.get(&call) {
            Some(Answer::Host(available)) => *available,
            _ => expected,
        })
    }

    fn held(&self, call: u64, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        self.refusal(call)?;
        Ok(match self.seen.get(&call) {
            Some(Answer::Held(of, held)) if *of == rank => held.clone(),
            _ => Vec::new(),
        })
    }

    fn act(&mut self, call: u64, _act: Act<'_>) -> Result<Option<Nanos>, BackendError> {
        self.refusal(call).map(|()| None)
    }
}

/// A machine that is observed, or was.
pub(super) struct Observed<A> {
    expected: Expected,
    answers: A,
    calls: Cell<u64>,
}

impl<A: Answers> Observed<A> {
    pub(super) const fn new(expected: Expected, answers: A) -> Self {
        Self { expected, answers, calls: Cell::new(0) }
    }

    fn call(&self) -> u64 {
        let call = self.calls.get();
        self.calls.set(call.saturating_add(1));
        call
    }

    fn act(&mut self, act: Act<'_>) -> Result<Option<Nanos>, BackendError> {
        let call = self.call();
        self.answers.act(call, act)
    }
}

impl<A: Answers> Backend for Observed<A> {
    fn ranks(&self) -> u32 {
        self.expected.ranks()
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let expected = self.expected.reading(rank)?;
        let expected = MemoryReading { measured_free: None, ..expected };
        let call = self.call();
        let reading = self.answers.reading(call, rank, expected)?;
        self.expected.read(rank, reading);
        Ok(reading)
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        let call = self.call();
        let available = self.answers.host(call, self.expected.host())?;
        self.expected.read_host(available);
        Ok(available)
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        self.act(Act::SetOthers(rank, held))?;
        self.expected.others(rank, held);
        Ok(())
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let id = SegmentId(self.expected.name());
        self.act(Act::Allocate(id, rank, account, place, size))?;
        self.expected.took(id, rank, place, size);
        Ok(id)
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        self.act(Act::Free(segment))?;
        self.expected.gave(segment);
        Ok(())
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        self.answers.held(self.call(), rank)
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        self.act(Act::SetHostOthers(held)).map(|_| ())
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        let id = RangeId(self.expected.name());
        self.act(Act::Reserve(id, rank, account, size))?;
        self.expected.reserved(id, rank);
        Ok(id)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        self.act(Act::Map(range, offset, size))?;
        self.expected.mapped(range, size);
        Ok(())
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        self.act(Act::Unmap(range, offset, size))?;
        self.expected.unmapped(range, size);
        Ok(())
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        self.act(Act::Unreserve(range))?;
        self.expected.unreserved(range);
        Ok(())
    }

    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let id = SegmentId(self.expected.name());
        self.act(Act::Capture(id, rank, batch, planned))?;
        self.expected.took(id, rank, Place::Device, planned);
        Ok(id)
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        let measured = self.act(Act::Execute(step))?;
        Ok(StepReport { elapsed: step.time, measured })
    }

    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        self.act(Act::MoveKv(rank, way, size)).map(|_| ())
    }
}
