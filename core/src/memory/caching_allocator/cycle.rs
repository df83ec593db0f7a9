//! Equal layers of a tape: once a layer leaves the allocator as one of the few before it did, all that follow
//! do, and need not be played.

use super::{
    BlockId, CachingAllocator, ExpandableSegments, LARGE_POOL, SMALL_POOL, Stats, pool::FreeKey,
};
use crate::tape::Cycle;
use std::ops::RangeInclusive;

/// Layers after which the state may return: the output of one changes places with those before it, and with
/// blocks that were free.
const PERIODS: RangeInclusive<usize> = 1..=6;

/// What the rest of a tape depends on, between two layers.
#[derive(Debug)]
struct State {
    /// Free blocks of both pools.
    free: Vec<FreeKey>,
    /// Addresses of the buffers that live; those of layers by ids that count from the layer's own first.
    live: Vec<(i64, u64)>,
    stats: Stats,
}

impl State {
    fn returns_to(&self, before: &Self) -> bool {
        self.free == before.free
            && self.live == before.live
            && self.stats.num_device_alloc == before.stats.num_device_alloc
            && self.stats.num_device_free == before.stats.num_device_free
    }
}

/// Looks at the allocator between the layers of a tape.
pub(super) struct Layers {
    cycle: Cycle,
    /// First id of the first of them.
    first_id: usize,
    seen: Vec<State>,
    done: bool,
}

impl Layers {
    pub(super) const fn new(cycle: Cycle) -> Self {
        Self { cycle, first_id: 0, seen: Vec::new(), done: false }
    }

    /// Which layer begins at this event, counted from 0; after the last one their number.
    fn begins(&self, event: usize) -> Option<usize> {
        let offset = event.checked_sub(self.cycle.start).filter(|_| !self.done)?;
        let (layer, rest) = (offset / self.cycle.len, offset % self.cycle.len);
        (rest == 0 && layer <= self.cycle.times).then_some(layer)
    }

    /// Events that need not be played from this one on; `held` is as if they had been.
    pub(super) fn skip(
        &mut self,
        allocator: &mut CachingAllocator,
        event: usize,
        held: &mut Vec<Option<BlockId>>,
    ) -> usize {
        let Some(layer) = self.begins(event) else { return 0 };
        if layer == 0 {
            self.first_id = held.len();
        }
        let state = self.state(allocator, layer, held);
        let period = PERIODS.clone().find(|period| {
            let before = self.seen.len().checked_sub(*period).and_then(|at| self.seen.get(at));
            before.is_some_and(|before| state.returns_to(before))
        });
        let Some(period) = period else {
            self.seen.push(state);
            self.done = layer == self.cycle.times;
            return 0;
        };
        self.done = true;
        let rounds = (self.cycle.times - layer) / period;
        if let Some(before) = self.seen.get(self.seen.len() - period) {
            allocator.stats.repeat(&before.stats, rounds as u64);
        }
        let layers = rounds * period;
        self.move_on(layers * self.cycle.ids as usize, held);
        layers * self.cycle.len
    }

    fn state(&self, allocator: &CachingAllocator, layer: usize, held: &[Option<BlockId>]) -> State {
        let keys = |pool: u32| allocator.pools[pool as usize].free.iter().map(|(key, _)| key);
        let own = self.first_id as i64 + layer as i64 * i64::from(self.cycle.ids);
        let live = (0..).zip(held).filter_map(|(id, block)| {
            let address = allocator.blocks[(*block)?.index].address;
            // Negative ones are of layers; what was there before counts from 0.
            Some((if (id as usize) < self.first_id { id } else { id - own }, address))
        });
        State {
            free: keys(SMALL_POOL).chain(keys(LARGE_POOL)).collect(),
            live: live.collect(),
            stats: allocator.stats,
        }
    }

    /// What layers left becomes what later layers left.
    fn move_on(&self, ids: usize, held: &mut Vec<Option<BlockId>>) {
        let end = held.len();
        held.resize(end + ids, None);
        for id in (self.first_id..end).rev() {
            held.swap(id, id + ids);
        }
    }
}

impl CachingAllocator {
    /// Whether equal requests on equal free blocks have equal outcomes, and nobody records them.
    pub(super) fn repeats_exactly(&self) -> bool {
        !self.collects()
            && self.captures.is_empty()
            && self.events.is_empty()
            && self.options.expandable_segments == ExpandableSegments::Off
            && self.trace.is_off()
    }
}
