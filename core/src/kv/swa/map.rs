//! Which window slot stands behind a full slot.

use std::collections::BTreeMap;

use crate::kv::{Run, Runs};

/// The window slot of every full slot that has one, by runs: where both go up by one together, they are
/// one entry.
///
/// Source: SGLang `SWATokenToKVPoolAllocator.full_to_swa_index_mapping`.
#[derive(Clone, Default, Debug)]
pub(super) struct SlotMap {
    /// First full slot → its window slots.
    runs: BTreeMap<u64, Run>,
}

impl SlotMap {
    /// The window slot of a full slot.
    pub(super) fn get(&self, slot: u64) -> Option<u64> {
        let (first, run) = self.runs.range(..=slot).next_back()?;
        let offset = slot - first;
        (offset < run.len).then_some(run.first + offset)
    }

    /// Pairs slots in order; what the full slots had before is forgotten.
    pub(super) fn set(&mut self, full: &Runs, window: &Runs) {
        let (mut full, mut window) = (full.cursor(), window.cursor());
        while let (Some(a), Some(b)) = (full.head(), window.head()) {
            let len = a.len.min(b.len);
            self.take_run(Run { first: a.first, len }, &mut Runs::new());
            self.put(a.first, Run { first: b.first, len });
            full.advance(len);
            window.advance(len);
        }
    }

    /// The window slots of `full`, in order; from here on those have none.
    pub(super) fn take(&mut self, full: &Runs) -> Runs {
        let mut out = Runs::new();
        for run in full.runs() {
            self.take_run(*run, &mut out);
        }
        out
    }

    /// Joins an entry to the one before it where it continues that.
    fn put(&mut self, first: u64, run: Run) {
        if let Some((start, before)) = self.runs.range_mut(..first).next_back()
            && start + before.len == first
            && before.first + before.len == run.first
        {
            before.len += run.len;
            return;
        }
        self.runs.insert(first, run);
    }

    fn take_run(&mut self, run: Run, out: &mut Runs) {
        let end = run.first + run.len;
        self.cut(run.first);
        self.cut(end);
        while let Some((&first, &window)) = self.runs.range(run.first..end).next() {
            out.push(window);
            self.runs.remove(&first);
        }
    }

    /// Makes an entry begin at `slot`, if one reaches across it.
    fn cut(&mut self, slot: u64) {
        let Some((&first, run)) = self.runs.range_mut(..slot).next_back() else { return };
        let head = slot - first;
        if head < run.len {
            let tail = Run { first: run.first + head, len: run.len - head };
            run.len = head;
            self.runs.insert(slot, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_that_go_up_together_are_one_entry() {
        let mut map = SlotMap::default();
        map.set(&Runs::of(10, 5), &Runs::of(100, 5));
        map.set(&Runs::of(15, 5), &Runs::of(105, 5));
        assert_eq!(map.runs.len(), 1);
        assert_eq!((map.get(19), map.get(20)), (Some(109), None));
        assert_eq!(map.take(&Runs::of(12, 4)), Runs::of(102, 4));
        assert_eq!((map.get(11), map.get(12), map.get(16)), (Some(101), None, Some(106)));
    }

    proptest! {
        #[test]
        fn a_map_behaves_like_an_array(
            ops in proptest::collection::vec((any::<bool>(), 0_u64..30, 1_u64..8, 1_u64..40), 0..60),
        ) {
            let (mut map, mut array) = (SlotMap::default(), vec![0_u64; 64]);
            for (set, first, len, window) in ops {
                let full = Runs::of(first, len);
                if set {
                    map.set(&full, &Runs::of(window, len));
                } else {
                    let before: Vec<u64> =
                        full.values().map(|slot| array[slot as usize]).filter(|w| *w > 0).collect();
                    prop_assert_eq!(map.take(&full).values().collect::<Vec<_>>(), before);
                }
                for (slot, next) in full.values().zip(window..) {
                    array[slot as usize] = if set { next } else { 0 };
                }
                for (slot, window) in (0..).zip(&array) {
                    prop_assert_eq!(map.get(slot).unwrap_or(0), *window);
                }
            }
        }
    }
}
