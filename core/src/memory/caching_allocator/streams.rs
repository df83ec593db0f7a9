//! Frees, and blocks that other streams still use.

use super::{Action, BlockId, CachingAllocator, Misuse, StreamId, block::State};

/// A point in the work of a stream: everything that was freed on it so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EventMark(u64);

impl CachingAllocator {
    /// Says that `stream` uses the block too; it stays active after its free until that stream has
    /// reached the event that the free records. The block's own stream changes nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAllocated`].
    pub fn record_stream(&mut self, id: BlockId, stream: StreamId) -> Result<(), Misuse> {
        let index = self.live(id)?;
        if self.blocks[index].stream == stream {
            return Ok(());
        }
        self.blocks[index].foreign = true;
        let streams = self.foreign.entry(index).or_default();
        if let Err(at) = streams.binary_search(&stream) {
            streams.insert(at, stream);
        }
        Ok(())
    }

    /// Gives a block back. `allocated` falls at once; the block can be used again at once, or when the
    /// other streams recorded on it are done. Memory never goes back to the device here.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAllocated`], also for a second free.
    ///
    /// Source: torch `DeviceCachingAllocator::free`.
    pub fn free(&mut self, id: BlockId) -> Result<(), Misuse> {
        let index = self.live(id)?;
        let block = &mut self.blocks[index];
        block.generation = block.generation.wrapping_add(1);
        block.state = State::Awaiting;
        let block = *block;
        self.stats.allocated.shrink(block.size);
        self.stats.allocations.shrink(1);
        self.trace.push(Action::FreeRequested, block.address, block.requested, block.stream);
        if !block.foreign {
            self.complete(index);
        } else if self.captures.is_empty() {
            self.record_events(index);
        } else {
            self.deferred.push(index);
        }
        Ok(())
    }

    fn record_events(&mut self, index: u32) {
        for stream in self.foreign.remove(&index).unwrap_or_default() {
            self.last_event += 1;
            self.events.entry(stream).or_default().push_back((self.last_event, index));
            self.blocks[index].events += 1;
        }
        self.blocks[index].foreign = false;
    }

    /// The block joins its free neighbours.
    fn complete(&mut self, index: u32) {
        let block = self.blocks[index];
        self.trace.push(Action::FreeCompleted, block.address, block.requested, block.stream);
        self.stats.active.shrink(block.size);
        self.stats.requested.shrink(block.requested);
        self.blocks[index].requested = 0;
        let (low, merged) = self.join(index, State::Free);
        if !block.grows {
            self.stats.inactive_split.shrink(merged);
            if self.blocks[low].is_split() {
                self.stats.inactive_split.grow(self.blocks[low].size);
            }
        }
        self.insert_free(low);
    }

    /// The last event recorded on any stream; `None` before the first.
    #[must_use]
    pub const fn last_event(&self) -> Option<EventMark> {
        if self.last_event == 0 { None } else { Some(EventMark(self.last_event)) }
    }

    /// Says that `stream` has done everything up to `mark`. Blocks come free at the next request
    /// outside a capture, as torch asks its events only then.
    pub fn stream_reached(&mut self, stream: StreamId, mark: EventMark) {
        let reached = self.reached.entry(stream).or_default();
        *reached = mark.0.max(*reached);
    }

    /// Bytes that were freed and wait for other streams.
    #[must_use]
    pub const fn awaiting(&self) -> u64 {
        self.stats.active.current - self.stats.allocated.current
    }

    /// Frees what waited for events that are done: each stream in order, up to its first that is not.
    #[inline]
    pub(super) fn finish_events(&mut self) {
        if !self.deferred.is_empty() || !self.events.is_empty() {
            self.record_deferred();
            let reached = std::mem::take(&mut self.reached);
            self.finish_up_to(|stream| reached.get(&stream).copied().unwrap_or(0));
            self.reached = reached;
        }
    }

    /// Waits for every event.
    pub(super) fn finish_all_events(&mut self) {
        self.record_deferred();
        self.finish_up_to(|_| u64::MAX);
    }

    fn record_deferred(&mut self) {
        for index in std::mem::take(&mut self.deferred) {
            self.record_events(index);
        }
    }

    fn finish_up_to(&mut self, reached: impl Fn(StreamId) -> u64) {
        let mut waiting = std::mem::take(&mut self.events);
        for (stream, queue) in &mut waiting {
            let until = reached(*stream);
            while let Some((event, index)) = queue.front().copied()
                && event <= until
            {
                queue.pop_front();
                self.blocks[index].events -= 1;
                if self.blocks[index].events == 0 {
                    self.complete(index);
                }
            }
        }
        waiting.retain(|_, queue| !queue.is_empty());
        self.events = waiting;
    }
}
