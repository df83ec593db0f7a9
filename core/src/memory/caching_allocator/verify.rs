//! The invariants, checked from the blocks alone: what a checker runs after every step.

use super::{
    CachingAllocator, Stats,
    block::{NIL, Segment, State},
    pool::FreeKey,
};

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("allocator: {what} at {address:#x}")]
pub struct Broken {
    /// Which.
    pub what: &'static str,
    /// Where.
    pub address: u64,
}

#[derive(Default)]
struct Sums {
    reserved: u64,
    allocated: u64,
    active: u64,
    requested: u64,
    inactive_split: u64,
    held: u64,
    plain: u64,
    free: usize,
    unmapped: usize,
    blocks: usize,
}

impl CachingAllocator {
    /// Checks everything that must always hold: blocks tile their segments, segments do not overlap,
    /// no two free or unmapped neighbours, sets hold exactly the blocks of their state, counters equal
    /// the sums of blocks. Costs a walk over every block.
    ///
    /// # Errors
    ///
    /// [`Broken`], the first invariant that does not hold.
    pub fn verify(&self) -> Result<(), Broken> {
        let mut ordered: Vec<&Segment> = self.segments.iter().collect();
        ordered.sort_by_key(|segment| segment.base);
        for pair in ordered.windows(2) {
            holds(
                pair[0].base + pair[0].size <= pair[1].base,
                "overlapping segments",
                pair[1].base,
            )?;
        }
        let mut sums = Sums::default();
        for segment in ordered {
            self.verify_segment(segment, &mut sums)?;
        }
        let free: usize = self.pools.iter().map(|pool| pool.free.len()).sum();
        let unmapped: usize = self.pools.iter().map(|pool| pool.unmapped.len()).sum();
        holds(free == sums.free, "free set and free blocks differ", 0)?;
        holds(unmapped == sums.unmapped, "unmapped set and blocks differ", 0)?;
        holds(self.blocks.occupied().count() == sums.blocks, "a block outside every segment", 0)?;
        verify_sums(&self.stats, &sums)
    }

    fn verify_segment(&self, segment: &Segment, sums: &mut Sums) -> Result<(), Broken> {
        let (mut at, mut before, mut address) = (segment.head, NIL, segment.base);
        let mut last = State::Vacant;
        if segment.handle == 0 {
            sums.plain += 1;
        }
        while at != NIL {
            let block = &self.blocks[at];
            holds(block.address == address && block.size > 0, "a gap in a segment", block.address)?;
            holds(block.prev == before, "a broken link", block.address)?;
            let joinable = matches!(block.state, State::Free | State::Unmapped);
            holds(!(joinable && block.state == last), "neighbours not joined", block.address)?;
            let pool = &self.pools[block.pool as usize];
            let handle = segment.handle.max(1);
            sums.blocks += 1;
            match block.state {
                State::Vacant => return holds(false, "a vacant block in a segment", block.address),
                State::Free => {
                    let known = pool.free.get(&FreeKey::of(block)) == Some(at);
                    holds(known, "a free block outside its set", block.address)?;
                    sums.free += 1;
                    if segment.handle == 0 && block.is_split() {
                        sums.inactive_split += block.size;
                    }
                }
                State::Unmapped => {
                    let known = self.unmapped_of(block.pool, block.stream).any(|index| index == at);
                    holds(known, "an unmapped block outside its set", block.address)?;
                    let aligned = (address - segment.base).is_multiple_of(handle)
                        && block.size.is_multiple_of(handle);
                    holds(aligned, "an unmapped block off its handles", block.address)?;
                    sums.unmapped += 1;
                }
                State::Allocated | State::Awaiting => {
                    sums.active += block.size;
                    sums.requested += block.requested;
                    if block.state == State::Allocated {
                        sums.allocated += block.size;
                        sums.held += 1;
                    }
                }
            }
            if block.state != State::Unmapped {
                sums.reserved += block.size;
            }
            address += block.size;
            (last, before, at) = (block.state, at, block.next);
        }
        holds(address == segment.base + segment.size, "blocks do not fill a segment", segment.base)
    }
}

fn verify_sums(stats: &Stats, sums: &Sums) -> Result<(), Broken> {
    holds(stats.reserved.current == sums.reserved, "reserved is not the sum of segments", 0)?;
    holds(stats.allocated.current == sums.allocated, "allocated is not the sum of blocks", 0)?;
    holds(stats.active.current == sums.active, "active is not the sum of blocks", 0)?;
    holds(stats.requested.current == sums.requested, "requested is not the sum of blocks", 0)?;
    holds(stats.inactive_split.current == sums.inactive_split, "inactive split is off", 0)?;
    holds(stats.allocations.current == sums.held, "the count of blocks is off", 0)?;
    holds(stats.segments.current == sums.plain, "the count of segments is off", 0)
}

const fn holds(condition: bool, what: &'static str, address: u64) -> Result<(), Broken> {
    if condition { Ok(()) } else { Err(Broken { what, address }) }
}
