//! What the allocator holds, as a snapshot shows it.

use super::{
    BlockId, CachingAllocator, Misuse, SizeClass, StreamId,
    block::{Block, NIL, Segment, State},
};
use crate::memory::snapshot::{self, BlockState, Entry, EntryAction, Snapshot, StackId};

/// Where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Number of its segment (or growing range) in the order of creation, from 0.
    pub segment: u64,
    /// Bytes from the start of the segment.
    pub offset: u64,
    /// Address in the allocator's own order.
    pub address: u64,
    /// Bytes that it takes, slack included.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// Its stream.
    pub stream: StreamId,
    /// Its pool.
    pub class: SizeClass,
}

impl CachingAllocator {
    /// Where a held block lies.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotAllocated`].
    pub fn place(&self, id: BlockId) -> Result<Place, Misuse> {
        let block = &self.blocks[self.live(id)?];
        let segment = self.segments.get(block.segment).ok_or(Misuse::NotAllocated)?;
        Ok(Place {
            segment: segment.ordinal,
            offset: block.address - segment.base,
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            class: self.pools[block.pool as usize].class,
        })
    }

    /// Every segment with its blocks, by address; a growing range shows as one segment for each run
    /// that is mapped.
    #[must_use]
    pub fn segments(&self, device: u32) -> Vec<snapshot::Segment> {
        let mut all = Vec::new();
        for segment in self.segments.iter() {
            let mut at = segment.head;
            while at != NIL {
                at = self.run(device, segment, at, &mut all);
            }
        }
        all.sort_by_key(|segment| segment.address);
        all
    }

    /// Adds the mapped run that begins at `at`; answers where to go on.
    fn run(
        &self,
        device: u32,
        segment: &Segment,
        at: u32,
        all: &mut Vec<snapshot::Segment>,
    ) -> u32 {
        let first = &self.blocks[at];
        if first.state == State::Unmapped {
            return first.next;
        }
        let pool = &self.pools[first.pool as usize];
        let mut view = snapshot::Segment {
            device,
            address: first.address,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: first.stream,
            class: pool.class,
            pool: pool.owner,
            is_expandable: segment.handle > 0,
            stack: StackId::EMPTY,
            blocks: Vec::new(),
        };
        let mut at = at;
        while at != NIL && self.blocks[at].state != State::Unmapped {
            let block = &self.blocks[at];
            let state = state_of(block);
            view.total_size += block.size;
            if state == BlockState::ActiveAllocated {
                view.allocated_size += block.size;
            }
            if state != BlockState::Inactive {
                view.active_size += block.size;
                view.requested_size += block.requested;
            }
            view.blocks.push(snapshot::Block {
                address: block.address,
                size: block.size,
                requested_size: block.requested,
                state,
                stack: StackId::EMPTY,
            });
            at = block.next;
        }
        all.push(view);
        at
    }

    /// Segments, history and settings, as `torch.cuda.memory._snapshot()` answers them; the history
    /// stands at index `device`.
    #[must_use]
    pub fn snapshot(&self, device: u32) -> Snapshot {
        let entries = self.history().map(|event| Entry {
            action: EntryAction::Allocator(event.action),
            address: event.address,
            size: event.size,
            stream: event.stream,
            time_us: event.time_us,
            stack: StackId::EMPTY,
            user_metadata: String::new(),
        });
        let mut device_traces = vec![Vec::new(); device.min(1024) as usize];
        device_traces.push(entries.collect());
        Snapshot {
            segments: self.segments(device),
            device_traces,
            allocator_settings: Some(snapshot::settings_of(&self.options)),
            ..Snapshot::default()
        }
    }
}

const fn state_of(block: &Block) -> BlockState {
    match block.state {
        State::Allocated => BlockState::ActiveAllocated,
        State::Awaiting => BlockState::ActiveAwaitingFree,
        State::Vacant | State::Free | State::Unmapped => BlockState::Inactive,
    }
}
