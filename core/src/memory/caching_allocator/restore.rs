//! An allocator in the state of a snapshot.

use super::{
    BlockId, CachingAllocator, PoolId, SegmentAddress, Setup, SizeClass, StreamId,
    block::{Block, NIL, State},
    malloc::Request,
};
use crate::memory::snapshot::{BlockState, Segment};

/// Why segments cannot be the state of an allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("segment at {segment:#x}: {problem}")]
pub struct RestoreError {
    /// Its address.
    pub segment: u64,
    /// What is wrong.
    pub problem: &'static str,
}

impl CachingAllocator {
    /// An allocator that holds `segments`, and the blocks that are in use, by address. Names of
    /// segments at the source are their addresses. A private pool has one use. A block that waits for
    /// another stream waits until everything is waited for, as the stream is not in a snapshot.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]: blocks that do not tile their segment, segments that overlap, free neighbours,
    /// sizes that overflow, a growing range (where its virtual range begins is not in a snapshot).
    pub fn restore(
        setup: Setup,
        segments: &[Segment],
    ) -> Result<(Self, Vec<(u64, BlockId)>), RestoreError> {
        let mut ordered: Vec<&Segment> = segments.iter().collect();
        ordered.sort_by_key(|segment| segment.address);
        let mut end = 0;
        let mut allocator = Self::new(setup);
        let mut held = Vec::new();
        for segment in ordered {
            let bad = |problem| RestoreError { segment: segment.address, problem };
            check(segment).map_err(bad)?;
            if segment.address < end {
                return Err(bad("overlaps the one before"));
            }
            end = segment.address + segment.total_size;
            if allocator.stats.reserved.current.checked_add(segment.total_size).is_none() {
                return Err(bad("all sizes together overflow"));
            }
            allocator.restore_segment(segment, &mut held).map_err(bad)?;
        }
        allocator.stats.reset_peaks();
        Ok((allocator, held))
    }

    fn restore_segment(
        &mut self,
        segment: &Segment,
        held: &mut Vec<(u64, BlockId)>,
    ) -> Result<(), &'static str> {
        let pool = self.restored_pool(segment.pool, segment.class);
        let request = Request {
            requested: 0,
            rounded: segment.total_size,
            segment: segment.total_size,
            stream: segment.stream,
            pool,
        };
        let name = SegmentAddress(segment.address);
        let mut at = self
            .add_segment(name, &request, segment.total_size, 0)
            .map_err(|_| "beyond the addresses")?;
        self.stats.reserved.grow(segment.total_size);
        self.stats.segments.grow(1);
        let last = segment.blocks.len() - 1;
        for (nth, given) in segment.blocks.iter().enumerate() {
            let rest = if nth < last { self.cut(at, given.size) } else { NIL };
            if given.state == BlockState::Inactive {
                if segment.blocks.len() > 1 {
                    self.stats.inactive_split.grow(given.size);
                }
                self.insert_free(at);
            } else {
                held.extend(self.restore_held(
                    at,
                    given.address,
                    given.requested_size,
                    given.state,
                ));
            }
            at = rest;
        }
        Ok(())
    }

    fn restore_held(
        &mut self,
        index: u32,
        address: u64,
        requested: u64,
        state: BlockState,
    ) -> Option<(u64, BlockId)> {
        let block = &mut self.blocks[index];
        block.requested = requested;
        block.state = State::Allocated;
        let Block { size, generation, .. } = *block;
        self.stats.active.grow(size);
        self.stats.requested.grow(requested);
        if state == BlockState::ActiveAwaitingFree {
            let block = &mut self.blocks[index];
            block.state = State::Awaiting;
            block.events = 1;
            self.last_event += 1;
            let unknown = self.events.entry(StreamId(u64::MAX)).or_default();
            unknown.push_back((self.last_event, index));
            return None;
        }
        self.stats.allocated.grow(size);
        self.stats.allocations.grow(1);
        Some((address, BlockId { index, generation }))
    }

    fn restored_pool(&mut self, id: PoolId, class: SizeClass) -> u32 {
        let pair = if id == PoolId::DEFAULT {
            [super::SMALL_POOL, super::LARGE_POOL]
        } else {
            let pair = self.add_private(id);
            pair.uses = 1;
            [pair.small, pair.large]
        };
        pair[usize::from(class == SizeClass::Large)]
    }
}

fn check(segment: &Segment) -> Result<(), &'static str> {
    if segment.is_expandable {
        return Err("a growing range cannot be restored: its virtual range is not in a snapshot");
    }
    let mut address = segment.address;
    let mut last = BlockState::ActiveAllocated;
    for block in &segment.blocks {
        if block.address != address || block.size == 0 {
            return Err("its blocks leave a gap or overlap");
        }
        // A free block may still carry what its last owner asked for.
        if block.state != BlockState::Inactive && block.requested_size > block.size {
            return Err("a block is smaller than what was asked for");
        }
        if block.state == BlockState::Inactive && last == BlockState::Inactive {
            return Err("two free blocks side by side");
        }
        address = address.checked_add(block.size).ok_or("its blocks overflow the addresses")?;
        last = block.state;
    }
    if segment.blocks.is_empty() || address - segment.address != segment.total_size {
        return Err("its blocks do not sum up to its size");
    }
    Ok(())
}
