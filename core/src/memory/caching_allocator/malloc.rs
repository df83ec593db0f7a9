//! A request: search, new memory, what is tried before it fails, the split.

use super::{
    Action, BlockId, CachingAllocator, ExpandableSegments, LARGE_POOL, MallocError, OutOfMemory,
    ROUND_LARGE, SMALL_POOL, SegmentAddress, SegmentSource, SizeClass, SourceError, StreamId,
    block::{Block, NIL, Segment, State},
    options::Options,
    pool::FreeKey,
    rounded_size, segment_size,
    size::{MIN_BLOCK, SMALL_MAX, round_up},
};

/// One request under way.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) requested: u64,
    pub(super) rounded: u64,
    pub(super) segment: u64,
    pub(super) stream: StreamId,
    pub(super) pool: u32,
}

/// An attempt to get new memory that may go on with the next one.
pub(super) enum Attempt {
    Block(u32),
    Refused,
}

impl CachingAllocator {
    /// Serves a request of `requested` bytes on `stream`.
    ///
    /// Tried in this order: the smallest free block that is large enough; after a miss garbage
    /// collection; a new segment; the same after oversize blocks were released; the same after
    /// everything cached was released (never during a capture); pools that lend.
    ///
    /// # Errors
    ///
    /// [`MallocError`].
    ///
    /// Source: torch `DeviceCachingAllocator::malloc`.
    pub fn malloc(
        &mut self,
        source: &mut dyn SegmentSource,
        requested: u64,
        stream: StreamId,
    ) -> Result<BlockId, MallocError> {
        if requested == 0 {
            return Err(MallocError::Zero);
        }
        if self.captures.is_empty() {
            self.finish_events();
        }
        let mut request =
            self.request(requested, stream).ok_or(MallocError::TooLarge(requested))?;
        let found = match self.search(&request) {
            Some(index) => index,
            None => self.miss(source, &mut request)?,
        };
        Ok(self.hand_out(found, &request))
    }

    fn request(&self, requested: u64, stream: StreamId) -> Option<Request> {
        let rounded = rounded_size(requested, &self.options)?;
        let segment = segment_size(rounded, &self.options)?;
        let pool = self.pool_for(SizeClass::of(rounded), stream);
        Some(Request { requested, rounded, segment, stream, pool })
    }

    fn pool_for(&self, class: SizeClass, stream: StreamId) -> u32 {
        let private = self.capturing_pool(stream).and_then(|id| self.private.get(&id));
        match (class, private) {
            (SizeClass::Small, None) => SMALL_POOL,
            (SizeClass::Large, None) => LARGE_POOL,
            (SizeClass::Small, Some(pair)) => pair.small,
            (SizeClass::Large, Some(pair)) => pair.large,
        }
    }

    /// Takes the candidate out of the free set. Only one candidate is looked at: when the limits on
    /// splitting refuse it, that is a miss.
    fn search(&mut self, request: &Request) -> Option<u32> {
        if self.collects() {
            self.pools[request.pool as usize].searches += 1;
        }
        let (key, index) = self.candidate(request)?;
        if self.refuses_to_split(request.rounded, key.size) {
            return None;
        }
        self.pools[request.pool as usize].free.remove(&key);
        Some(index)
    }

    /// The smallest free block that is large enough.
    fn candidate(&self, request: &Request) -> Option<(FreeKey, u32)> {
        let free = &self.pools[request.pool as usize].free;
        let mut range = free.from(&FreeKey::least(request.stream, request.rounded));
        let (mut key, mut index) = range.next()?;
        if key.stream != request.stream {
            return None;
        }
        if self.blocks[index].grows {
            let mut rest = range.take_while(|(k, _)| k.stream == request.stream);
            match self.options.expandable_segments {
                ExpandableSegments::On => {
                    // A plain hole beats the tail that can grow.
                    while self.blocks[index].grows
                        && let Some((k, i)) = rest.next()
                        && self.room(i) < self.room(index)
                    {
                        (key, index) = (k, i);
                    }
                }
                ExpandableSegments::Off => {
                    (key, index) = rest.find(|(_, i)| !self.blocks[*i].grows)?;
                }
            }
        }
        Some((key, index))
    }

    /// Bytes of a block with the addresses behind it that could be mapped.
    fn room(&self, index: u32) -> u64 {
        let block = &self.blocks[index];
        let behind = self.blocks.get(block.next).filter(|next| next.state == State::Unmapped);
        block.size + behind.map_or(0, |next| next.size)
    }

    fn refuses_to_split(&self, rounded: u64, block: u64) -> bool {
        match self.options.max_split_size {
            None => false,
            Some(max) if rounded < max => block >= max,
            Some(_) => block >= rounded.saturating_add(self.options.max_non_split_rounding),
        }
    }

    #[cold]
    fn miss(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &mut Request,
    ) -> Result<u32, MallocError> {
        if self.collects() {
            self.collect_garbage(source).map_err(lost)?;
        }
        if let Attempt::Block(index) = self.new_memory(source, request)? {
            return Ok(index);
        }
        if self.release_oversize(source, request).map_err(lost)?
            && let Attempt::Block(index) = self.new_memory(source, request)?
        {
            return Ok(index);
        }
        if self.captures.is_empty() {
            self.release_cached(source).map_err(lost)?;
            self.stats.num_alloc_retries += 1;
            if let Attempt::Block(index) = self.new_memory(source, request)? {
                return Ok(index);
            }
        }
        if let Some(index) = self.borrow_from_pools(request) {
            return Ok(index);
        }
        Err(self.out_of_memory(source, request))
    }

    /// Free blocks of pools that lend serve a request of the default pool.
    fn borrow_from_pools(&mut self, request: &mut Request) -> Option<u32> {
        let class = self.pools[request.pool as usize].class;
        if request.pool != SMALL_POOL && request.pool != LARGE_POOL {
            return None;
        }
        let lenders: Vec<u32> = self
            .private
            .values()
            .filter(|pair| pair.lends)
            .map(|pair| if class == SizeClass::Small { pair.small } else { pair.large })
            .collect();
        lenders.into_iter().find_map(|pool| {
            let asked = Request { pool, ..*request };
            let index = self.search(&asked)?;
            *request = asked;
            Some(index)
        })
    }

    fn out_of_memory(&mut self, source: &mut dyn SegmentSource, request: &Request) -> MallocError {
        let device_free = match source.free_bytes() {
            Ok(free) => free,
            Err(error) => return lost(error),
        };
        self.stats.num_ooms += 1;
        self.trace.push(Action::Oom, device_free, request.rounded, request.stream);
        MallocError::OutOfMemory(Box::new(OutOfMemory {
            requested: request.requested,
            rounded: request.rounded,
            segment: request.segment,
            grows: self.options.expandable_segments == ExpandableSegments::On,
            device_total: self.device_total,
            device_free,
            limit: self.limit,
            allocated: self.stats.allocated.current,
            private_free: self.private_free(),
            reserved: self.stats.reserved.current,
        }))
    }

    /// Bytes of free blocks inside private pools.
    #[must_use]
    pub fn private_free(&self) -> u64 {
        let pools = self.private.values().flat_map(|pair| [pair.small, pair.large]);
        pools.flat_map(|pool| self.pools[pool as usize].free.iter()).map(|(key, _)| key.size).sum()
    }

    /// One attempt: refused at once above the limit, else by the device.
    fn new_memory(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &Request,
    ) -> Result<Attempt, MallocError> {
        let after = self.stats.reserved.current.checked_add(request.segment);
        if after.is_none_or(|after| self.limit.is_some_and(|limit| after > limit)) {
            return Ok(Attempt::Refused);
        }
        match self.options.expandable_segments {
            ExpandableSegments::On => self.grow_range(source, request),
            ExpandableSegments::Off => self.new_segment(source, request),
        }
    }

    fn new_segment(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &Request,
    ) -> Result<Attempt, MallocError> {
        let address = match source.allocate(request.segment) {
            Ok(address) => address,
            Err(SourceError::OutOfMemory) => return Ok(Attempt::Refused),
            Err(error) => return Err(lost(error)),
        };
        let added = self.add_segment(address, request, request.segment, 0);
        let index = match added {
            Ok(index) => index,
            Err(error) => {
                source.release(address, request.segment).map_err(lost)?;
                return Err(error);
            }
        };
        self.stats.reserved.grow(request.segment);
        self.stats.segments.grow(1);
        self.stats.num_device_alloc += 1;
        let base = self.blocks[index].address;
        self.trace.push(Action::SegmentAlloc, base, request.segment, request.stream);
        Ok(Attempt::Block(index))
    }

    /// Enters a segment with one block that covers it, in no set.
    pub(super) fn add_segment(
        &mut self,
        source: SegmentAddress,
        request: &Request,
        size: u64,
        handle: u64,
    ) -> Result<u32, MallocError> {
        let base = match self.order {
            super::AddressOrder::Source => source.0,
            super::AddressOrder::Logical => self.next_address,
        };
        let end = round_up(size, ROUND_LARGE).and_then(|size| base.checked_add(size));
        let end = end.ok_or(MallocError::TooLarge(request.requested))?;
        self.next_address = self.next_address.max(end);
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let segment = self.segments.add(Segment { ordinal, base, size, source, handle, head: NIL });
        let index = self.blocks.add(Block {
            address: base,
            size,
            requested: 0,
            searches: 0,
            prev: NIL,
            next: NIL,
            segment,
            pool: request.pool,
            generation: 0,
            events: 0,
            stream: request.stream,
            state: State::Free,
            foreign: false,
            grows: handle > 0,
        });
        self.segments.set_head(segment, index);
        self.pools[request.pool as usize].segments += 1;
        Ok(index)
    }

    /// Splits when the rest is worth keeping and marks the low part as held.
    fn hand_out(&mut self, index: u32, request: &Request) -> BlockId {
        let Block { size, grows, .. } = self.blocks[index];
        let was_split = self.blocks[index].is_split();
        let rest = size - request.rounded;
        if should_split(
            &self.options,
            self.pools[request.pool as usize].class,
            request.rounded,
            rest,
        ) {
            let remainder = self.cut(index, request.rounded);
            self.insert_free(remainder);
            if !grows {
                if was_split {
                    self.stats.inactive_split.shrink(request.rounded);
                } else {
                    self.stats.inactive_split.grow(rest);
                }
            }
        } else if was_split && !grows {
            self.stats.inactive_split.shrink(size);
        }
        let block = &mut self.blocks[index];
        block.state = State::Allocated;
        block.requested = request.requested;
        let (address, size, generation) = (block.address, block.size, block.generation);
        self.trace.push(Action::Alloc, address, request.requested, request.stream);
        self.stats.allocated.grow(size);
        self.stats.active.grow(size);
        self.stats.requested.grow(request.requested);
        self.stats.allocations.grow(1);
        BlockId { index, generation }
    }
}

/// Whether the rest of a block returns to the free set. A rest of exactly 1 MiB in the large pool
/// is not split off: the whole block is handed out.
///
/// Source: torch `should_split`.
const fn should_split(options: &Options, class: SizeClass, rounded: u64, rest: u64) -> bool {
    if matches!(class, SizeClass::Small)
        || matches!(options.expandable_segments, ExpandableSegments::On)
    {
        return rest >= MIN_BLOCK;
    }
    let may = match options.max_split_size {
        Some(max) => rounded < max,
        None => true,
    };
    may && rest > SMALL_MAX
}

pub(super) fn lost(error: SourceError) -> MallocError {
    match error {
        SourceError::Lost(why) => MallocError::Lost(why),
        SourceError::OutOfMemory => MallocError::Lost("no memory to give memory back".to_owned()),
    }
}
