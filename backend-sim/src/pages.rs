//! Units that the driver opens for small segments, several in each.

use plimsoll_core::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A unit that small segments are carved out of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PageId(u64);

/// Open units and the room in them.
///
/// A segment goes into the unit with the least room that holds it, the oldest of those. Offsets inside a
/// unit are not kept: its room is one amount (simplified; the driver keeps sizes of one class together).
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    room: BTreeMap<PageId, Bytes>,
    by_room: BTreeSet<(Bytes, PageId)>,
    next: u64,
}

impl Pages {
    /// The open unit that has room for `size`.
    pub(crate) fn fitting(&self, size: Bytes) -> Option<PageId> {
        self.by_room.range((size, PageId(0))..).next().map(|(_, page)| *page)
    }

    /// Opens a unit of `size`.
    pub(crate) fn open(&mut self, size: Bytes) -> PageId {
        let page = PageId(self.next);
        self.next += 1;
        self.set(page, size);
        page
    }

    /// Takes `size` out of an open unit that has room for it.
    pub(crate) fn carve(&mut self, page: PageId, size: Bytes) {
        let room = self.room.get(&page).copied().unwrap_or_default();
        self.set(page, room.saturating_sub(size));
    }

    /// Gives `size` back; true when the unit of `whole` is empty now, and closed.
    pub(crate) fn give_back(&mut self, page: PageId, size: Bytes, whole: Bytes) -> Emptied {
        let room = self.room.get(&page).copied().unwrap_or_default().saturating_add(size);
        if room < whole {
            self.set(page, room);
            return Emptied::No;
        }
        if let Some(old) = self.room.remove(&page) {
            self.by_room.remove(&(old, page));
        }
        Emptied::Closed
    }

    fn set(&mut self, page: PageId, room: Bytes) {
        if let Some(old) = self.room.insert(page, room) {
            self.by_room.remove(&(old, page));
        }
        self.by_room.insert((room, page));
    }
}

/// Whether a unit went back to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptied {
    /// It still holds something.
    No,
    /// It did.
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_unit_is_chosen_and_an_empty_one_closes() {
        let mut pages = Pages::default();
        let (first, second) = (pages.open(Bytes(100)), pages.open(Bytes(100)));
        pages.carve(first, Bytes(30));
        pages.carve(second, Bytes(60));
        assert_eq!(pages.fitting(Bytes(40)), Some(second));
        assert_eq!(pages.fitting(Bytes(41)), Some(first));
        assert_eq!(pages.fitting(Bytes(71)), None);
        assert_eq!(pages.give_back(second, Bytes(20), Bytes(100)), Emptied::No);
        assert_eq!(pages.give_back(second, Bytes(40), Bytes(100)), Emptied::Closed);
        assert_eq!(pages.fitting(Bytes(71)), None);
    }
}
