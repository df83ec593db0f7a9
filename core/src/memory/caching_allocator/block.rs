//! Blocks and segments: what the allocator's sets point into, by index.

use super::{StreamId, source::SegmentAddress};

/// No neighbour.
pub(super) const NIL: u32 = u32::MAX;

/// What a block is right now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The slot holds no block.
    Vacant,
    /// In the free set of its pool.
    Free,
    /// Held by the program.
    Allocated,
    /// Given back, but another stream may still use it.
    Awaiting,
    /// Addresses of a growing range without memory; in the unmapped set of its pool.
    Unmapped,
}

/// A piece of a segment. Neighbours of the same segment are linked; there are never two `Free` or
/// two `Unmapped` ones side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    /// Searches of the pool when the block became free: its age for garbage collection.
    pub(super) searches: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) segment: u32,
    pub(super) pool: u32,
    pub(super) generation: u32,
    /// Events of other streams that are outstanding.
    pub(super) events: u32,
    pub(super) stream: StreamId,
    pub(super) state: State,
    /// Whether other streams were recorded.
    pub(super) foreign: bool,
    /// Whether it belongs to a growing range.
    pub(super) grows: bool,
}

impl Block {
    /// Whether the segment holds other blocks.
    #[inline]
    pub(super) const fn is_split(&self) -> bool {
        self.prev != NIL || self.next != NIL
    }
}

/// Slots with reuse; an index stays valid until its block is merged away or released.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<u32>,
}

impl Blocks {
    #[inline]
    pub(super) fn add(&mut self, mut block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            let slot = &mut self.slots[index as usize];
            block.generation = slot.generation;
            *slot = block;
            return index;
        }
        let index = self.slots.len() as u32;
        self.slots.push(block);
        index
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(index);
    }

    pub(super) fn get(&self, index: u32) -> Option<&Block> {
        self.slots.get(index as usize)
    }

    pub(super) fn occupied(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0..).zip(&self.slots).filter(|(_, block)| block.state != State::Vacant)
    }
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.slots[index as usize]
    }
}

/// A segment, or a growing range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Number in the order of creation; never used twice.
    pub(super) ordinal: u64,
    /// Address of its first byte, in the allocator's own order.
    pub(super) base: u64,
    /// Bytes; of a growing range its addresses, mapped or not.
    pub(super) size: u64,
    /// Name that the source gave it.
    pub(super) source: SegmentAddress,
    /// Bytes of one handle of a growing range; 0 for a plain segment.
    pub(super) handle: u64,
    /// Its first block.
    pub(super) head: u32,
}

/// Segments by slot, with reuse.
#[derive(Debug, Default)]
pub(super) struct Segments {
    slots: Vec<Option<Segment>>,
    vacant: Vec<u32>,
}

impl Segments {
    pub(super) fn add(&mut self, segment: Segment) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = Some(segment);
            return index;
        }
        let index = self.slots.len() as u32;
        self.slots.push(Some(segment));
        index
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.slots[index as usize] = None;
        self.vacant.push(index);
    }

    pub(super) fn get(&self, index: u32) -> Option<&Segment> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(super) fn set_head(&mut self, index: u32, head: u32) {
        if let Some(segment) = &mut self.slots[index as usize] {
            segment.head = head;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.slots.iter().flatten()
    }
}
