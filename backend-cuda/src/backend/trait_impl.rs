//! The trait of a machine, over the cards.

use super::{Ask, CudaBackend, REFUSED};
use crate::failure::Failure;
use crate::range::Range;
use crate::spec::Share;
use plimsoll_core::{
    backend::{
        Backend, BackendError, HostLimit, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId,
        StepReport, StepWork,
    },
    memory::ledger::Account,
    units::{Bytes, Nanos},
};
use std::collections::BTreeMap;
use std::rc::Rc;

const NO_PART: BackendError = BackendError::Unknown("part of a range");

impl Backend for CudaBackend {
    fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    fn memory(&mut self, rank: Rank) -> Result<MemoryReading, BackendError> {
        let free = self.free_of(rank)?;
        let state = self.rank(rank)?;
        let facts = self.card(rank)?.card.facts();
        let reading = match state.share {
            Share::Whole => MemoryReading {
                capacity: facts.tool_total,
                total: Some(facts.total),
                free,
                others: Some(state.others),
                common: None,
                measured_free: None,
            },
            Share::Declared(share) => MemoryReading {
                capacity: share.tool_capacity,
                total: share.total,
                free,
                others: Some(state.others),
                common: None,
                measured_free: Some(self.card_free(rank)?),
            },
        };
        Ok(reading)
    }

    fn host_available(&mut self) -> Result<Bytes, BackendError> {
        self.host.available()
    }

    fn set_others(&mut self, rank: Rank, held: Bytes) -> Result<(), BackendError> {
        let before = self.rank(rank)?.others;
        let account = Account::OtherPrograms;
        let requested = held.saturating_sub(before);
        let ask = Ask { rank, account, requested, free: self.free_of(rank)? };
        if requested > ask.free {
            return Err(ask.refused(REFUSED));
        }
        let foreign = match self.rank(rank)?.share {
            Share::Whole => self.card(rank)?.card.facts().foreign.unwrap_or_default(),
            Share::Declared(_) => Bytes::ZERO,
        };
        // Taken out while it changes: the filler of the same card may have to give way.
        let mut ballast = std::mem::take(&mut self.rank_mut(rank)?.ballast);
        let target = held.saturating_sub(foreign);
        let answer = self.take(ask, requested, |state| ballast.set(&state.card, target));
        let state = self.rank_mut(rank)?;
        state.ballast = ballast;
        answer?;
        state.others = match state.share {
            Share::Whole => foreign + state.ballast.size(),
            Share::Declared(_) => held,
        };
        Ok(())
    }

    fn allocate(
        &mut self,
        rank: Rank,
        account: Account,
        place: Place,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        match place {
            Place::Device => self.take_device(rank, account, size),
            Place::Host => self.take_host(rank, account, size),
        }
    }

    fn free(&mut self, segment: SegmentId) -> Result<(), BackendError> {
        let held = self.segments.remove(&segment).ok_or(BackendError::Unknown("segment"))?;
        match held.place {
            Place::Device => {
                self.rank_mut(held.rank)?.accounts.discharge(held.account, held.charged);
            }
            Place::Host => self.host.discharge(held.charged, held.pinned()),
        }
        let card = Rc::clone(&self.card(held.rank)?.card);
        drop(held);
        card.check().map_err(Failure::plain)
    }

    fn held(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let state = self.rank(rank)?;
        let rows = match state.share {
            Share::Whole => self.whole_rows(rank)?,
            Share::Declared(share) => {
                let mut rows: BTreeMap<Account, Bytes> = state.accounts.rows();
                let mut add = |account, bytes| *rows.entry(account).or_default() += bytes;
                add(Account::DriverReserve, share.driver_reserve);
                add(Account::OtherPrograms, state.others);
                add(Account::Free, self.free_of(rank)?);
                rows
            }
        };
        Ok(rows.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect())
    }

    fn set_host_others(&mut self, held: Bytes) -> Result<(), BackendError> {
        let free = self.host.available()?;
        let before = self.host.others;
        if held > before.saturating_add(free) {
            let requested = held.saturating_sub(before);
            let (rank, account, limit) = (Rank(0), Account::OtherPrograms, HostLimit::Host);
            return Err(BackendError::HostOutOfMemory { rank, account, limit, requested, free });
        }
        self.host.others = held;
        Ok(())
    }

    fn reserve(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<RangeId, BackendError> {
        let card = Rc::clone(&self.card(rank)?.card);
        let ask = Ask { rank, account, requested: size, free: self.free_of(rank)? };
        let range = Range::reserve(&card, rank, account, size);
        let range = range.map_err(|failure| ask.refused(failure))?;
        let id = RangeId(self.name());
        self.ranges.insert(id, range);
        Ok(id)
    }

    fn map(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let held = self.ranges.get(&range).ok_or(BackendError::Unknown("range"))?;
        if !held.fits(offset, size) || held.touches(offset, size) {
            return Err(NO_PART);
        }
        let (rank, account) = (held.rank, held.account);
        let ask = match self.ask(rank, account, size) {
            // A range may be wider than the device; a part that can never fit is refused as any.
            Err(BackendError::TooLarge { requested, .. }) => {
                let free = self.free_of(rank)?;
                return Err(BackendError::OutOfMemory { rank, account, requested, free });
            }
            ask => ask?,
        };
        // Taken out while it changes: the filler of the same card may have to give way.
        let mut held = self.ranges.remove(&range).ok_or(BackendError::Unknown("range"))?;
        let answer = self.take(ask, size, |_| held.map(offset, size));
        self.ranges.insert(range, held);
        answer?;
        self.rank_mut(rank)?.accounts.charge(account, size);
        Ok(())
    }

    fn unmap(&mut self, range: RangeId, offset: Bytes, size: Bytes) -> Result<(), BackendError> {
        let held = self.ranges.get_mut(&range).ok_or(BackendError::Unknown("range"))?;
        if !held.fits(offset, size) || !held.covers(offset, size) {
            return Err(NO_PART);
        }
        let (rank, account) = (held.rank, held.account);
        let (lost, answer) = held.unmap(offset, size);
        self.rank_mut(rank)?.accounts.discharge(account, size + lost);
        let ask = Ask { rank, account, requested: lost, free: Bytes::ZERO };
        answer.map_err(|failure| ask.refused(failure))?;
        self.card(rank)?.card.check().map_err(Failure::plain)
    }

    fn unreserve(&mut self, range: RangeId) -> Result<(), BackendError> {
        match self.ranges.get(&range) {
            Some(held) if held.is_empty() => {
                let rank = held.rank;
                self.ranges.remove(&range);
                self.card(rank)?.card.check().map_err(Failure::plain)
            }
            _ => Err(BackendError::Unknown("range")),
        }
    }

    fn capture(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        self.take_graph(rank, batch, planned)
    }

    fn execute(&mut self, step: &StepWork) -> Result<StepReport, BackendError> {
        for (at, state) in self.cards.iter().enumerate() {
            let pieces = self.live_activations(at);
            state.exercise.start_fill(&pieces, 0xA5).map_err(Failure::plain)?;
        }
        let mut measured = Nanos::default();
        for state in &self.cards {
            measured = measured.max(state.exercise.end_fill().map_err(Failure::plain)?);
        }
        Ok(StepReport { elapsed: step.time, measured: Some(measured) })
    }

    fn move_kv(&mut self, rank: Rank, way: KvMove, size: Bytes) -> Result<(), BackendError> {
        let exercise = &self.card(rank)?.exercise;
        let copied = size.min(self.copy_limit);
        let done = match way {
            KvMove::ToHost => exercise.copy_to_host(copied.0),
            KvMove::ToDevice => exercise.copy_to_device(copied.0),
        };
        done.map_err(Failure::plain)?;
        self.counters.moved = self.counters.moved.saturating_add(size);
        self.counters.copied = self.counters.copied.saturating_add(copied);
        Ok(())
    }
}
