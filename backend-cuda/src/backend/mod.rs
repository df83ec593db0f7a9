//! A machine of real devices under ballast: memory is really taken, nothing is computed.

pub(crate) mod report;
mod trait_impl;

use crate::accounts::close;
use crate::ballast::Ballast;
use crate::failure::{Failure, OpenError};
use crate::ffi::memory::DevicePointer;
use crate::host::Host;
use crate::memory::Buffer;
use crate::open::{CardState, RankState, open};
use crate::pinned::Pinned;
use crate::range::Range;
use crate::spec::{CudaSpec, PAGE, Share};
use crate::stream::Graph;
use plimsoll_core::{
    backend::{BackendError, HostLimit, Place, RangeId, Rank, SegmentId},
    memory::ledger::Account,
    units::Bytes,
};
use report::Counters;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Where a pass touches live activation memory: this much at either end of a piece.
const TOUCH: u64 = 64 << 10;
/// How many pieces of live activation memory a pass touches at most.
const TOUCHED_MAX: usize = 16;
/// Plain allocations up to this size share pages of the driver.
const SMALL_MAX: Bytes = Bytes::mib(1);
/// What the declaration refuses, or the card after the filler gave way.
const REFUSED: Failure = Failure::OutOfMemory("allocation");

/// What stands behind a segment. The fields hold memory until they are dropped.
enum Holding {
    /// Nothing: an empty segment, or a host pool beyond the pinned limit.
    Nothing,
    Device(Buffer),
    Host(#[expect(dead_code, reason = "held until dropped")] Pinned),
    Graph(
        #[expect(dead_code, reason = "held until dropped")] Graph,
        #[expect(dead_code, reason = "held until dropped")] Ballast,
    ),
}

struct Segment {
    rank: Rank,
    account: Account,
    place: Place,
    charged: Bytes,
    holding: Holding,
}

/// A [`plimsoll_core::backend::Backend`] over real CUDA devices.
///
/// With a declared share, the declaration decides what is refused, and every granted byte is
/// really held on the card; what the card has beyond the shares is held too, so that its own free
/// reading agrees to the page. With a whole card the driver decides. Dropping it gives all back.
pub struct CudaBackend {
    // Dropped in this order: what is taken from a card goes before the card.
    segments: BTreeMap<SegmentId, Segment>,
    ranges: BTreeMap<RangeId, Range>,
    ranks: Vec<RankState>,
    cards: Vec<CardState>,
    host: Host,
    copy_limit: Bytes,
    counters: Counters,
    next: u64,
}

/// A request that may be granted: what is really asked for, and what was free.
#[derive(Clone, Copy)]
struct Ask {
    rank: Rank,
    account: Account,
    requested: Bytes,
    free: Bytes,
}

impl Ask {
    fn refused(&self, failure: Failure) -> BackendError {
        failure.asking(self.rank, self.account, self.requested, self.free)
    }
}

impl CudaBackend {
    /// Opens the driver and the cards that the ranks name.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: no usable driver, no such device, shares that do not fit, or a card that is
    /// too full for a context. Nothing stays then.
    pub fn open(spec: &CudaSpec) -> Result<Self, OpenError> {
        let (cards, ranks) = open(spec)?;
        Ok(Self {
            segments: BTreeMap::new(),
            ranges: BTreeMap::new(),
            ranks,
            cards,
            host: Host::new(spec.host),
            copy_limit: spec.copy_limit,
            counters: Counters::default(),
            next: 0,
        })
    }

    const fn name(&mut self) -> u64 {
        let name = self.next;
        self.next += 1;
        name
    }

    fn rank(&self, rank: Rank) -> Result<&RankState, BackendError> {
        self.ranks.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    fn rank_mut(&mut self, rank: Rank) -> Result<&mut RankState, BackendError> {
        self.ranks.get_mut(rank.0 as usize).ok_or(BackendError::Unknown("rank"))
    }

    fn card(&self, rank: Rank) -> Result<&CardState, BackendError> {
        let at = self.rank(rank)?.card;
        self.cards.get(at).ok_or(BackendError::Unknown("rank"))
    }

    /// What the card says is free.
    fn card_free(&self, rank: Rank) -> Result<Bytes, BackendError> {
        let (free, _) = self.card(rank)?.card.memory().map_err(Failure::plain)?;
        Ok(free)
    }

    /// What the rank is told is free.
    fn free_of(&self, rank: Rank) -> Result<Bytes, BackendError> {
        let state = self.rank(rank)?;
        match state.share {
            Share::Whole => self.card_free(rank),
            Share::Declared(share) => {
                let held = state.others.saturating_add(state.accounts.sum());
                Ok(share.usable().saturating_sub(held))
            }
        }
    }

    /// What the rank can ever hold.
    fn usable(&self, rank: Rank) -> Result<Bytes, BackendError> {
        Ok(match self.rank(rank)?.share {
            Share::Whole => self.card(rank)?.card.facts().total,
            Share::Declared(share) => share.usable(),
        })
    }

    /// Checks a request for device memory against the size of the device and the declaration.
    fn ask(&mut self, rank: Rank, account: Account, size: Bytes) -> Result<Ask, BackendError> {
        let share = self.rank(rank)?.share;
        self.card(rank)?.card.check().map_err(Failure::plain)?;
        let granularity = match share {
            Share::Whole => Bytes::ZERO,
            Share::Declared(share) => share.granularity,
        };
        let capacity = self.usable(rank)?;
        // A size near 2^64 has no multiple above it.
        let requested = if size > capacity { size } else { size.round_up_to(granularity) };
        if requested > capacity {
            return Err(BackendError::TooLarge { rank, account, requested, capacity });
        }
        let ask = Ask { rank, account, requested, free: self.free_of(rank)? };
        if matches!(share, Share::Declared(_)) && requested > ask.free {
            self.second_opinion(ask)?;
            return Err(ask.refused(REFUSED));
        }
        Ok(ask)
    }

    /// What the driver answers to a request that the declaration refuses; counted, never decides.
    /// Asked only where the rank has its card for itself: on a shared one the other ranks' free
    /// memory is free too.
    fn second_opinion(&mut self, ask: Ask) -> Result<(), BackendError> {
        let CardState { card, ranks: 1, .. } = self.card(ask.rank)? else { return Ok(()) };
        let answer = Buffer::take(card, ask.requested).map(drop);
        match answer {
            Ok(()) => self.counters.refusals_disputed += 1,
            Err(Failure::OutOfMemory(_)) => self.counters.refusals_confirmed += 1,
            Err(other) => return Err(other.plain()),
        }
        Ok(())
    }

    /// Takes something on a rank's card. If the driver refuses what the declaration grants (its
    /// pages are larger than the declared ones, a graph left pages behind), the filler gives way
    /// once.
    fn take<T>(
        &mut self,
        ask: Ask,
        size: Bytes,
        mut make: impl FnMut(&CardState) -> Result<T, Failure>,
    ) -> Result<T, BackendError> {
        let at = self.rank(ask.rank)?.card;
        let state = self.cards.get_mut(at).ok_or(BackendError::Unknown("rank"))?;
        match make(state) {
            Err(Failure::OutOfMemory(_)) => {}
            done => return done.map_err(|failure| ask.refused(failure)),
        }
        let way = size.round_up_to(PAGE) + PAGE;
        let filler = state.filler.size();
        if filler > Bytes::ZERO {
            let less = filler.saturating_sub(way);
            state.filler.set(&state.card, less).map_err(|failure| ask.refused(failure))?;
            self.counters.filler_given += filler.saturating_sub(state.filler.size());
            match make(state) {
                Err(Failure::OutOfMemory(_)) => {}
                done => return done.map_err(|failure| ask.refused(failure)),
            }
        }
        // The card holds less than was declared: what it really has is the answer.
        let (free, _) = state.card.memory().map_err(Failure::plain)?;
        Err(Ask { free: free.min(ask.free), ..ask }.refused(REFUSED))
    }

    /// What a plain allocation is charged: what was asked under a declaration; on a whole card
    /// the driver's pages, which small allocations share (then the change of the reading tells).
    fn charge_of(&self, ask: Ask, before: Bytes) -> Result<Bytes, BackendError> {
        if matches!(self.rank(ask.rank)?.share, Share::Declared(_)) {
            return Ok(ask.requested);
        }
        if ask.requested > SMALL_MAX {
            return Ok(ask.requested.round_up_to(PAGE));
        }
        Ok(before.saturating_sub(self.card_free(ask.rank)?).min(PAGE))
    }

    fn keep(&mut self, segment: Segment) -> Result<SegmentId, BackendError> {
        match segment.place {
            Place::Device => {
                self.rank_mut(segment.rank)?.accounts.charge(segment.account, segment.charged);
            }
            Place::Host => {
                let pinned = segment.pinned();
                self.host.charge(segment.charged, pinned);
            }
        }
        let id = SegmentId(self.name());
        self.segments.insert(id, segment);
        Ok(id)
    }

    fn take_device(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let ask = self.ask(rank, account, size)?;
        let (mut holding, mut charged) = (Holding::Nothing, Bytes::ZERO);
        if ask.requested > Bytes::ZERO {
            let buffer =
                self.take(ask, ask.requested, |state| Buffer::take(&state.card, ask.requested))?;
            charged = self.charge_of(ask, ask.free)?;
            holding = Holding::Device(buffer);
        }
        self.keep(Segment { rank, account, place: Place::Device, charged, holding })
    }

    fn take_host(
        &mut self,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let card = Rc::clone(&self.card(rank)?.card);
        let (requested, capacity) = (size, self.host.capacity()?);
        if requested > capacity {
            return Err(BackendError::TooLarge { rank, account, requested, capacity });
        }
        let (limit, free) = (HostLimit::Host, self.host.available()?);
        let refused = |failure| match failure {
            Failure::OutOfMemory(_) => {
                BackendError::HostOutOfMemory { rank, account, limit, requested, free }
            }
            other => other.plain(),
        };
        if requested > free {
            return Err(refused(REFUSED));
        }
        let holding = if size > Bytes::ZERO && self.host.may_pin(size) {
            Holding::Host(Pinned::take(&card, size).map_err(refused)?)
        } else {
            Holding::Nothing
        };
        self.keep(Segment { rank, account, place: Place::Host, charged: size, holding })
    }

    fn take_graph(
        &mut self,
        rank: Rank,
        batch: u64,
        planned: Bytes,
    ) -> Result<SegmentId, BackendError> {
        let ask = self.ask(rank, Account::Graphs, planned)?;
        let before = self.card_free(rank)?;
        let graph = self.take(ask, PAGE, |state| state.exercise.graph(batch))?;
        // The filler may have given way meanwhile: then the cost reads as nothing, not negative.
        let cost = before.saturating_sub(self.card_free(rank)?);
        let rest = planned.saturating_sub(cost);
        let ballast = self.take(ask, rest, |state| {
            let mut ballast = Ballast::default();
            ballast.set(&state.card, rest).map(|()| ballast)
        })?;
        let charged = match self.rank(rank)?.share {
            Share::Whole => cost + ballast.size(),
            Share::Declared(_) => ask.requested,
        };
        self.counters.graphs += 1;
        self.counters.graph_cost += cost;
        let holding = Holding::Graph(graph, ballast);
        self.keep(Segment {
            rank,
            account: Account::Graphs,
            place: Place::Device,
            charged,
            holding,
        })
    }

    /// The rows of a whole card, closed on what the driver says.
    fn whole_rows(&self, rank: Rank) -> Result<BTreeMap<Account, Bytes>, BackendError> {
        let facts = self.card(rank)?.card.facts();
        let state = self.rank(rank)?;
        let mut rows = state.accounts.rows();
        let foreign = facts.foreign.unwrap_or_default();
        *rows.entry(Account::OtherPrograms).or_default() += foreign + state.ballast.size();
        *rows.entry(Account::Context).or_default() += facts.context;
        *rows.entry(Account::Free).or_default() += self.card_free(rank)?;
        close(&mut rows, facts.total);
        let reserve = facts.tool_total.unwrap_or_default().saturating_sub(facts.total);
        *rows.entry(Account::DriverReserve).or_default() += reserve;
        Ok(rows)
    }

    /// Live activation memory on a card, the latest first: both ends of each piece.
    fn live_activations(&self, card: usize) -> Vec<DevicePointer> {
        let here = |rank: Rank| self.ranks.get(rank.0 as usize).is_some_and(|r| r.card == card);
        let wanted = |rank: Rank, account: Account| account == Account::Activations && here(rank);
        let segments = self.segments.values().rev().filter(|s| wanted(s.rank, s.account));
        let buffers = segments.filter_map(|segment| match &segment.holding {
            Holding::Device(buffer) => Some(buffer.pointer()),
            _ => None,
        });
        let ranges = self.ranges.values().rev().filter(|r| wanted(r.rank, r.account));
        let pieces = buffers.chain(ranges.flat_map(Range::pieces)).take(TOUCHED_MAX);
        pieces
            .flat_map(|piece| {
                let tail = piece.size().saturating_sub(TOUCH).max(TOUCH);
                [piece.part(0, TOUCH), piece.part(tail, TOUCH)]
            })
            .filter(|piece| piece.size() > 0)
            .collect()
    }
}

impl Segment {
    const fn pinned(&self) -> Bytes {
        match self.holding {
            Holding::Host(_) => self.charged,
            _ => Bytes::ZERO,
        }
    }
}
