//! Reserved addresses with memory in parts of them.
//!
//! The addresses are numbers: only what is mapped is real. Each part has a mapping of its own, so that
//! giving a part back really unmaps it.

use crate::region::Region;
use plimsoll_core::{backend::Rank, memory::ledger::Account, units::Bytes};
use std::{collections::BTreeMap, io};

/// Touched parts are mapped in pieces that end at multiples of this: the handle of small pools, and a
/// divisor of that of large ones (PyTorch's expandable segments: 2 and 20 MiB). A piece that is unmapped
/// whole costs nothing else.
const PIECE: u64 = 2 << 20;

/// One range.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) rank: Rank,
    pub(crate) account: Account,
    size: Bytes,
    /// By offset; they do not overlap.
    parts: BTreeMap<u64, Region>,
}

/// What unmapping gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    pub(crate) mapped: Bytes,
    pub(crate) touched: Bytes,
}

impl Range {
    pub(crate) const fn new(rank: Rank, account: Account, size: Bytes) -> Self {
        Self { rank, account, size, parts: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The end of a part, if it lies in the range and has a size, in whole units; unit 0 is a byte.
    fn end(&self, offset: Bytes, size: Bytes, unit: Bytes) -> Option<u64> {
        let unit = unit.0.max(1);
        let whole = offset.0.is_multiple_of(unit) && size.0.is_multiple_of(unit) && size.0 > 0;
        offset.0.checked_add(size.0).filter(|end| whole && *end <= self.size.0)
    }

    /// First part that reaches beyond `offset`, by its own offset.
    fn first_beyond(&self, offset: u64) -> u64 {
        match self.parts.range(..=offset).next_back() {
            Some((at, region)) if at + region.size().0 > offset => *at,
            _ => offset,
        }
    }

    /// Whether the part lies in the range, in whole units, and nothing of it is mapped.
    pub(crate) fn is_vacant(&self, offset: Bytes, size: Bytes, unit: Bytes) -> bool {
        let Some(end) = self.end(offset, size, unit) else { return false };
        self.parts.range(self.first_beyond(offset.0)..end).next().is_none()
    }

    /// Whether all of the part is mapped, and it is one of whole units.
    pub(crate) fn is_mapped(&self, offset: Bytes, size: Bytes, unit: Bytes) -> bool {
        let Some(end) = self.end(offset, size, unit) else { return false };
        let mut reached = offset.0;
        for (at, region) in self.parts.range(self.first_beyond(offset.0)..end) {
            if *at > reached {
                return false;
            }
            reached = at + region.size().0;
        }
        reached >= end
    }

    /// Maps a vacant part and touches the first `touch` bytes of it.
    ///
    /// # Errors
    ///
    /// The kernel's, when it refuses a mapping; nothing is mapped then.
    pub(crate) fn map(&mut self, offset: Bytes, size: Bytes, touch: Bytes) -> io::Result<()> {
        let mut new = Vec::new();
        let (mut at, end) = (offset.0, offset.0.saturating_add(size.0));
        let touched_end = offset.0.saturating_add(touch.0.min(size.0));
        while at < end {
            let next = if at < touched_end {
                (at / PIECE + 1).saturating_mul(PIECE).min(end)
            } else {
                end
            };
            let touch = Bytes(touched_end.saturating_sub(at));
            new.push((at, Region::new(Bytes(next - at), touch)?));
            at = next;
        }
        self.parts.extend(new);
        Ok(())
    }

    /// Unmaps a part that is mapped. A mapping that it cuts is replaced by new ones for what stays.
    ///
    /// # Errors
    ///
    /// The kernel's, when it refuses those; nothing is unmapped then.
    pub(crate) fn unmap(&mut self, offset: Bytes, size: Bytes) -> io::Result<Given> {
        let (start, end) = (offset.0, offset.0.saturating_add(size.0));
        let mut gone = Vec::new();
        let mut stay = Vec::new();
        let mut given = Given::default();
        for (at, region) in self.parts.range(self.first_beyond(start)..end) {
            let (stop, touched) = (at + region.size().0, at + region.touched().0);
            gone.push(*at);
            given.mapped += region.size();
            given.touched += region.touched();
            for (from, to) in [(*at, start), (end, stop)] {
                if from < to {
                    let touch = Bytes(touched.saturating_sub(from));
                    stay.push((from, Region::new(Bytes(to - from), touch)?));
                }
            }
        }
        for at in gone {
            self.parts.remove(&at);
        }
        for (at, region) in stay {
            given.mapped = given.mapped.saturating_sub(region.size());
            given.touched = given.touched.saturating_sub(region.touched());
            self.parts.insert(at, region);
        }
        Ok(given)
    }

    pub(crate) fn regions(&mut self) -> impl Iterator<Item = &mut Region> {
        self.parts.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB4: u64 = 4096;

    fn pages(n: u64) -> Bytes {
        Bytes(n * KIB4)
    }

    #[test]
    fn a_touched_piece_in_the_middle_goes_and_the_rest_stays_touched() {
        let mut range = Range::new(Rank(0), Account::Activations, Bytes::mib(64));
        range.map(Bytes::ZERO, Bytes::mib(9), Bytes::mib(5)).unwrap();
        assert_eq!(range.parts.len(), 4, "three touched pieces and the rest");
        let given = range.unmap(Bytes::mib(1), Bytes::mib(5)).unwrap();
        assert_eq!(given, Given { mapped: Bytes::mib(5), touched: Bytes::mib(4) });
        let left: Bytes = range.regions().map(|r| r.touched()).sum();
        assert_eq!(left, Bytes::mib(1));
    }

    proptest! {
        /// Against a plain map of pages: what is vacant, what is mapped, and what comes back.
        #[test]
        fn parts_are_what_a_map_of_pages_says(
            calls in prop::collection::vec((any::<bool>(), 0..40_u64, 0..20_u64, 0..20_u64), 1..60)
        ) {
            let mut range = Range::new(Rank(0), Account::Activations, pages(48));
            let mut model = [false; 48];
            for (map, offset, size, touch) in calls {
                let (from, to) = (offset as usize, (offset + size) as usize);
                let inside = to <= 48 && size > 0;
                let part = model.get(from..to).unwrap_or_default();
                let vacant = inside && part.iter().all(|page| !page);
                let mapped = inside && part.iter().all(|page| *page);
                prop_assert_eq!(range.is_vacant(pages(offset), pages(size), pages(1)), vacant);
                prop_assert_eq!(range.is_mapped(pages(offset), pages(size), pages(1)), mapped);
                if map && vacant {
                    range.map(pages(offset), pages(size), pages(touch)).unwrap();
                    model[from..to].fill(true);
                } else if !map && mapped {
                    let given = range.unmap(pages(offset), pages(size)).unwrap();
                    prop_assert_eq!(given.mapped, pages(size));
                    model[from..to].fill(false);
                }
                let held: Bytes = range.regions().map(|r| r.size()).sum();
                prop_assert_eq!(held, pages(model.iter().filter(|page| **page).count() as u64));
            }
        }
    }
}
