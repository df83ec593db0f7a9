//! Growing ranges (`expandable_segments`): one virtual range a pool and stream, backed by handles.

use super::{
    Action, CachingAllocator, MallocError, SMALL_SEGMENT, SegmentSource, SizeClass, SourceError,
    StreamId,
    block::{Block, State},
    malloc::{Attempt, Request, lost},
    size::round_up,
};

impl CachingAllocator {
    /// Maps just enough of a range to serve the request.
    ///
    /// Source: torch `try_allocate_expandable_block`.
    pub(super) fn grow_range(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &Request,
    ) -> Result<Attempt, MallocError> {
        let Some(mut at) = self.find_room(request) else {
            return self.new_range(source, request);
        };
        if self.blocks[at].state == State::Unmapped {
            let size = self.blocks[at].size.min(request.rounded);
            match self.map(source, at, size)? {
                Attempt::Block(mapped) => at = mapped,
                Attempt::Refused => return Ok(Attempt::Refused),
            }
        }
        // Free, then unmapped, then anything: what `find_room` promised.
        while self.blocks[at].size < request.rounded {
            let next = self.blocks[at].next;
            let Some(behind) = self.blocks.get(next).filter(|b| b.state == State::Unmapped) else {
                return Ok(Attempt::Refused);
            };
            let size = behind.size.min(request.rounded - self.blocks[at].size);
            match self.map(source, next, size)? {
                Attempt::Block(mapped) => at = mapped,
                Attempt::Refused => return Ok(Attempt::Refused),
            }
        }
        self.take_out(at);
        Ok(Attempt::Block(at))
    }

    /// The first run of free and unmapped blocks, from an unmapped one or its free predecessor on,
    /// that is large enough.
    fn find_room(&self, request: &Request) -> Option<u32> {
        let unmapped = &self.pools[request.pool as usize].unmapped;
        let from = (request.stream, 0);
        let to = (request.stream, u64::MAX);
        unmapped.range(from..=to).map(|(_, index)| *index).find_map(|index| {
            let before = self.blocks[index].prev;
            let free = self.blocks.get(before).is_some_and(|b| b.state == State::Free);
            let start = if free { before } else { index };
            let (mut at, mut sum) = (start, 0);
            while sum < request.rounded
                && let Some(block) = self.blocks.get(at)
                && matches!(block.state, State::Free | State::Unmapped)
            {
                sum += block.size;
                at = block.next;
            }
            (sum >= request.rounded).then_some(start)
        })
    }

    /// A range of 9/8 of the device, then the request from its start.
    fn new_range(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &Request,
    ) -> Result<Attempt, MallocError> {
        let handle = match self.pools[request.pool as usize].class {
            SizeClass::Small => SMALL_SEGMENT,
            SizeClass::Large => self.options.large_segment_size,
        };
        let wanted = self.device_total.saturating_add(self.device_total / 8);
        let size = round_up(wanted, handle).ok_or(MallocError::TooLarge(request.requested))?;
        if size < request.rounded {
            return Ok(Attempt::Refused);
        }
        let address = match source.reserve(size) {
            Ok(address) => address,
            Err(SourceError::OutOfMemory) => return Ok(Attempt::Refused),
            Err(error) => return Err(lost(error)),
        };
        let index = match self.add_segment(address, request, size, handle) {
            Ok(index) => index,
            Err(error) => {
                source.unreserve(address, size).map_err(lost)?;
                return Err(error);
            }
        };
        self.insert_unmapped(index);
        match self.map(source, index, request.rounded)? {
            Attempt::Block(mapped) => {
                self.take_out(mapped);
                Ok(Attempt::Block(mapped))
            }
            Attempt::Refused => Ok(Attempt::Refused),
        }
    }

    fn insert_unmapped(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        block.state = State::Unmapped;
        let key = (block.stream, block.address);
        self.pools[block.pool as usize].unmapped.insert(key, index);
    }

    /// Backs the first `size` bytes of an unmapped block, rounded up to handles; the mapped part joins
    /// free neighbours and enters the free set.
    fn map(
        &mut self,
        source: &mut dyn SegmentSource,
        index: u32,
        size: u64,
    ) -> Result<Attempt, MallocError> {
        let block = self.blocks[index];
        let Some(range) = self.segments.get(block.segment).copied() else {
            return Ok(Attempt::Refused);
        };
        // An unmapped block begins and ends at handles.
        let mapped = size.div_ceil(range.handle) * range.handle;
        match source.map(range.source, block.address - range.base, mapped) {
            Ok(()) => {}
            Err(SourceError::OutOfMemory) => return Ok(Attempt::Refused),
            Err(error) => return Err(lost(error)),
        }
        self.take_out(index);
        if mapped < block.size {
            let rest = self.cut(index, mapped);
            self.insert_unmapped(rest);
        }
        let (low, _) = self.join(index, State::Free);
        self.insert_free(low);
        self.stats.reserved.grow(mapped);
        self.stats.num_device_alloc += 1;
        self.trace.push(Action::SegmentMap, block.address, mapped, block.stream);
        Ok(Attempt::Block(low))
    }

    /// Takes the memory behind the handles that lie wholly in a free block; a range with nothing left
    /// goes back.
    ///
    /// Source: torch `unmap_block`, `release_expandable_segment`.
    pub(super) fn unmap(
        &mut self,
        source: &mut dyn SegmentSource,
        index: u32,
    ) -> Result<(), SourceError> {
        let block = self.blocks[index];
        let Some(range) = self.segments.get(block.segment).copied() else { return Ok(()) };
        let first = (block.address - range.base).div_ceil(range.handle) * range.handle;
        let end = block.address - range.base + block.size;
        let last = end / range.handle * range.handle;
        if first >= last {
            return Ok(());
        }
        source.unmap(range.source, first, last - first)?;
        self.take_out(index);
        let inner = self.trim(index, range.base + first, last - first);
        let (low, _) = self.join(inner, State::Unmapped);
        self.insert_unmapped(low);
        self.stats.reserved.shrink(last - first);
        self.stats.num_device_free += 1;
        self.trace.push(Action::SegmentUnmap, range.base + first, last - first, block.stream);
        if !self.blocks[low].is_split() {
            source.unreserve(range.source, range.size)?;
            self.take_out(low);
            self.forget_segment(low);
        }
        Ok(())
    }

    /// Cuts a block that is in no set down to `[from, from + size)`; what is left on either side
    /// becomes free. Answers the inner block.
    fn trim(&mut self, index: u32, from: u64, size: u64) -> u32 {
        let Block { address, .. } = self.blocks[index];
        let mut inner = index;
        if from > address {
            inner = self.cut(index, from - address);
            self.insert_free(index);
        }
        if self.blocks[inner].size > size {
            let after = self.cut(inner, size);
            self.insert_free(after);
        }
        inner
    }

    /// Unmapped blocks of a stream in a pool, by address.
    pub(super) fn unmapped_of(&self, pool: u32, stream: StreamId) -> impl Iterator<Item = u32> {
        let set = &self.pools[pool as usize].unmapped;
        set.range((stream, 0)..=(stream, u64::MAX)).map(|(_, index)| *index)
    }
}
