//! The queue of free blocks: taken from the front, returned to either end, and a block that is found
//! again leaves it from wherever it stands.

use super::BlockId;
use crate::kv::Run;

/// Neighbours in the queue; a place that is in no queue points to itself.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// Place whose neighbours are the queue's last and first.
const ENDS: u32 = 0;
/// Place that stands for all blocks that were never taken: they have no places of their own.
const FRESH: u32 = 1;

/// Free blocks in the order in which they will be taken. Blocks that were never taken cost nothing.
#[derive(Clone, Debug)]
pub struct FreeQueue {
    /// Of the ends, of the fresh blocks, and of block `id` at `id + 1`.
    places: Vec<Links>,
    /// First block that was never taken.
    fresh: BlockId,
    /// Blocks in all, the null block included.
    total: BlockId,
    len: u32,
}

impl FreeQueue {
    /// Blocks 1, 2, … of `total`; block 0 is never free.
    #[must_use]
    pub fn new(total: BlockId) -> Self {
        let alone = |place| Links { before: place, after: place };
        let len = total.saturating_sub(1);
        let mut queue = Self { places: vec![alone(ENDS), alone(FRESH)], fresh: 1, total, len };
        if len > 0 {
            queue.link(FRESH, ENDS, ENDS);
        }
        queue
    }

    /// How many are free.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether none is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the first.
    pub fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.places[ENDS as usize].after;
        if first == ENDS {
            return None;
        }
        self.len -= 1;
        if first != FRESH {
            self.unlink(first);
            return Some(first - 1);
        }
        let id = self.fresh;
        self.fresh += 1;
        let place = id + 1;
        self.places.push(Links { before: place, after: place });
        if self.fresh == self.total {
            self.unlink(FRESH);
        }
        Some(id)
    }

    /// Returns a block behind the last.
    pub fn push_back(&mut self, id: BlockId) {
        let last = self.places[ENDS as usize].before;
        self.link(id + 1, last, ENDS);
        self.len += 1;
    }

    /// Returns a block before the first.
    pub fn push_front(&mut self, id: BlockId) {
        let first = self.places[ENDS as usize].after;
        self.link(id + 1, ENDS, first);
        self.len += 1;
    }

    /// Takes a block out that was returned.
    pub fn remove(&mut self, id: BlockId) {
        self.unlink(id + 1);
        self.len -= 1;
    }

    /// The free blocks in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mut place = self.places[ENDS as usize].after;
        std::iter::from_fn(move || {
            let here = place;
            place = self.places[here as usize].after;
            match here {
                ENDS => None,
                FRESH => {
                    let len = u64::from(self.total - self.fresh);
                    Some(Run { first: u64::from(self.fresh), len })
                }
                _ => Some(Run { first: u64::from(here - 1), len: 1 }),
            }
        })
    }

    /// The last free block.
    #[must_use]
    pub fn last(&self) -> Option<BlockId> {
        match self.places[ENDS as usize].before {
            ENDS => None,
            FRESH => Some(self.total - 1),
            place => Some(place - 1),
        }
    }

    fn link(&mut self, place: u32, before: u32, after: u32) {
        self.places[place as usize] = Links { before, after };
        self.places[before as usize].after = place;
        self.places[after as usize].before = place;
    }

    fn unlink(&mut self, place: u32) {
        let Links { before, after } = self.places[place as usize];
        self.places[before as usize].after = after;
        self.places[after as usize].before = before;
        self.places[place as usize] = Links { before: place, after: place };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn values(queue: &FreeQueue) -> Vec<u32> {
        let one = |run: Run| (run.first..run.first + run.len).map(|id| id as u32);
        queue.runs().flat_map(one).collect()
    }

    proptest! {
        #[test]
        fn a_queue_behaves_like_a_deque(
            total in 0_u32..12,
            ops in proptest::collection::vec((0_u8..5, 0_usize..12), 0..80),
        ) {
            let mut queue = FreeQueue::new(total);
            let mut model: VecDeque<u32> = (1..total).collect();
            let mut held: Vec<u32> = Vec::new();
            let mut taken = 0;
            for (op, at) in ops {
                match op {
                    0 | 1 => {
                        let got = queue.pop_front();
                        prop_assert_eq!(got, model.pop_front());
                        held.extend(got);
                        taken = taken.max(got.unwrap_or(0));
                    }
                    2 if !held.is_empty() => {
                        let id = held.swap_remove(at % held.len());
                        queue.push_back(id);
                        model.push_back(id);
                    }
                    3 if !held.is_empty() => {
                        let id = held.swap_remove(at % held.len());
                        queue.push_front(id);
                        model.push_front(id);
                    }
                    4 if !model.is_empty() => {
                        let at = at % model.len();
                        // Only a block that was taken once can be found again.
                        if model[at] <= taken {
                            let id = model.remove(at).unwrap();
                            queue.remove(id);
                            held.push(id);
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(values(&queue), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(queue.len() as usize, model.len());
                prop_assert_eq!(queue.last(), model.back().copied());
            }
        }
    }
}
