//! What a slot allocator handed out and got back, in order: for logs and checks.

use super::runs::{Run, Runs};

/// One change of a pool's free slots. Where a page holds more than one slot, pages change hands whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotChange {
    /// Handed out.
    Taken {
        /// For which part of the call, or which request of a decode batch, counted from 0.
        part: usize,
        /// The slots, in the order of being taken.
        slots: Runs,
    },
    /// Returned to the free list, in its order; what a group collects, when the group ends.
    Freed {
        /// The slots.
        slots: Runs,
    },
}

/// Changes since they were last asked for; keeps nothing until it is told to.
#[derive(Clone, Default, Debug)]
pub(super) struct SlotTrace(Option<Vec<SlotChange>>);

impl SlotTrace {
    /// From here on changes are kept.
    pub(super) fn keep(&mut self) {
        self.0.get_or_insert_default();
    }

    /// The changes since the last call; nothing where none are kept.
    pub(super) fn take(&mut self) -> Vec<SlotChange> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes `pages`, of which each part takes the next `counts`.
    pub(super) fn taken(&mut self, pages: &Runs, page: u64, counts: impl Iterator<Item = u64>) {
        let Some(changes) = &mut self.0 else { return };
        let mut from = 0;
        for (part, count) in counts.enumerate().filter(|(_, count)| *count > 0) {
            let slots = whole(&pages.slice(from, from + count), page);
            from += count;
            changes.push(SlotChange::Taken { part, slots });
        }
    }

    /// Notes `pages` that went back.
    pub(super) fn freed(&mut self, pages: &Runs, page: u64) {
        let Some(changes) = self.0.as_mut().filter(|_| !pages.is_empty()) else { return };
        changes.push(SlotChange::Freed { slots: whole(pages, page) });
    }
}

/// All slots of `pages`.
fn whole(pages: &Runs, page: u64) -> Runs {
    let slots = |run: &Run| Run { first: run.first * page, len: run.len * page };
    pages.runs().iter().map(slots).collect()
}
