//! Free blocks in their order. A pool has a few dozen of them, rarely thousands, and takes one out and puts
//! one in with every request: sorted pieces of bounded size are quicker at that than a tree of nodes.

use super::pool::FreeKey;

/// Most blocks of a piece; a full one is cut in two.
const PIECE: usize = 64;

/// Blocks by their place in the order of being handed out.
#[derive(Debug, Default)]
pub(super) struct FreeSet {
    /// Each ascending, and all of one before all of the next. Only the first may be empty, when it is alone.
    pieces: Vec<Vec<(FreeKey, u32)>>,
    len: usize,
}

impl FreeSet {
    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The piece in which a key lies or would, and where in it.
    fn place(&self, key: &FreeKey) -> (usize, Result<usize, usize>) {
        let before = |piece: &Vec<(FreeKey, u32)>| piece.last().is_some_and(|(last, _)| last < key);
        let at = match self.pieces.len() {
            0 | 1 => 0,
            pieces => self.pieces.partition_point(before).min(pieces - 1),
        };
        let found =
            |piece: &Vec<(FreeKey, u32)>| piece.binary_search_by(|(other, _)| other.cmp(key));
        (at, self.pieces.get(at).map_or(Err(0), found))
    }

    /// The block with this key.
    pub(super) fn get(&self, key: &FreeKey) -> Option<u32> {
        let (piece, at) = self.place(key);
        self.pieces.get(piece)?.get(at.ok()?).map(|(_, block)| *block)
    }

    /// Puts a block in, in place of one with the same key.
    pub(super) fn insert(&mut self, key: FreeKey, block: u32) {
        let (piece, at) = self.place(&key);
        if self.pieces.is_empty() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let Some(blocks) = self.pieces.get_mut(piece) else { return };
        match at {
            Ok(at) => blocks[at].1 = block,
            Err(at) => {
                blocks.insert(at, (key, block));
                self.len += 1;
            }
        }
        if blocks.len() >= PIECE {
            let mut upper = Vec::with_capacity(PIECE);
            upper.extend(blocks.drain(PIECE / 2..));
            self.pieces.insert(piece + 1, upper);
        }
    }

    /// Takes a block out, if it is there.
    pub(super) fn remove(&mut self, key: &FreeKey) {
        let (piece, at) = self.place(key);
        let (Ok(at), Some(blocks)) = (at, self.pieces.get_mut(piece)) else { return };
        blocks.remove(at);
        self.len -= 1;
        if blocks.is_empty() && self.pieces.len() > 1 {
            self.pieces.remove(piece);
        }
    }

    /// All in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FreeKey, u32)> + '_ {
        self.pieces.iter().flatten().copied()
    }

    /// Those from a key on, in their order.
    pub(super) fn from(&self, key: &FreeKey) -> impl Iterator<Item = (FreeKey, u32)> + '_ {
        let (piece, at) = self.place(key);
        let at = at.unwrap_or_else(|at| at);
        let first = self.pieces.get(piece).and_then(|blocks| blocks.get(at..)).unwrap_or_default();
        let later = self.pieces.get(piece + 1..).unwrap_or_default();
        first.iter().chain(later.iter().flatten()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::caching_allocator::StreamId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_set_behaves_like_a_map(
            ops in proptest::collection::vec((any::<bool>(), 0_u64..3, 0_u64..40, 0_u64..8), 0..900),
        ) {
            let (mut set, mut map) = (FreeSet::default(), BTreeMap::new());
            for (nth, (puts, stream, size, address)) in (0_u32..).zip(ops) {
                let key = FreeKey { stream: StreamId(stream), size, address };
                // Mostly more and more, so that pieces are cut.
                if puts || nth % 3 == 0 {
                    set.insert(key, nth);
                    map.insert(key, nth);
                } else {
                    set.remove(&key);
                    map.remove(&key);
                }
                prop_assert_eq!(set.get(&key), map.get(&key).copied());
                prop_assert_eq!(set.len(), map.len());
                let from = set.from(&key).collect::<Vec<_>>();
                prop_assert_eq!(from, map.range(key..).map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
            }
            prop_assert!(set.iter().eq(map.into_iter()));
        }
    }
}
