//! Addresses of a device with memory mapped into parts of them.
//!
//! One mapping of the driver can only be taken away whole, and an engine unmaps what it pleases
//! (PyTorch's expandable segments do so across the pieces of several calls). So a mapping of which
//! a part stays is taken away and what stays is mapped anew: ballast has no contents to lose.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::memory::{AddressRange, Mapped};
use plimsoll_core::{backend::Rank, memory::ledger::Account, units::Bytes};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A reserved range.
pub(crate) struct Range {
    /// Whose.
    pub(crate) rank: Rank,
    /// For whom what is mapped is held.
    pub(crate) account: Account,
    size: Bytes,
    page: Bytes,
    // By offset; dropped before the addresses.
    parts: BTreeMap<Bytes, Mapped>,
    addresses: AddressRange,
}

impl Range {
    /// Reserves `size` bytes of addresses, rounded up to whole pages.
    pub(crate) fn reserve(
        card: &Rc<Card>,
        rank: Rank,
        account: Account,
        size: Bytes,
    ) -> Result<Self, Failure> {
        let page = card.facts().page;
        // A size near 2^64 has no multiple above it, and no addresses.
        let pages = size.0.max(1).checked_next_multiple_of(page.0.max(1));
        let size = Bytes(pages.ok_or(Failure::OutOfMemory("cuMemAddressReserve"))?);
        let addresses = AddressRange::reserve(card, size)?;
        Ok(Self { rank, account, size, page, parts: BTreeMap::new(), addresses })
    }

    /// Whether nothing is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The mapped parts, the last first.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = DevicePointer> {
        self.parts.values().rev().map(Mapped::pointer)
    }

    /// Whether `size` bytes at `offset` are whole pages of the range.
    pub(crate) fn fits(&self, offset: Bytes, size: Bytes) -> bool {
        let whole = |bytes: Bytes| bytes.0.is_multiple_of(self.page.0);
        let end = offset.saturating_add(size);
        size > Bytes::ZERO && whole(offset) && whole(size) && end <= self.size
    }

    /// Whether anything is mapped between `offset` and `offset + size`.
    pub(crate) fn touches(&self, offset: Bytes, size: Bytes) -> bool {
        let before_end = self.parts.range(..offset.saturating_add(size)).next_back();
        before_end.is_some_and(|(at, part)| *at + part.size() > offset)
    }

    /// Backs a part, which fits and is not mapped.
    pub(crate) fn map(&mut self, offset: Bytes, size: Bytes) -> Result<(), Failure> {
        let mapped = self.addresses.map(offset, size)?;
        self.parts.insert(offset, mapped);
        Ok(())
    }

    /// Whether all of `offset` to `offset + size` is mapped.
    pub(crate) fn covers(&self, offset: Bytes, size: Bytes) -> bool {
        let end = offset.saturating_add(size);
        let mut reached = offset;
        let first = self.parts.range(..=offset).next_back().map(|(at, _)| *at);
        for (at, part) in self.parts.range(first.unwrap_or(offset)..end) {
            if *at > reached {
                return false;
            }
            reached = reached.max(*at + part.size());
        }
        size > Bytes::ZERO && reached >= end
    }

    /// Takes the memory behind a covered part away. What it held besides is mapped again; if the
    /// driver refuses that (another program was faster), it is missing, and the answer says how
    /// much more than `size` was given back.
    pub(crate) fn unmap(&mut self, offset: Bytes, size: Bytes) -> (Bytes, Result<(), Failure>) {
        let end = offset.saturating_add(size);
        let first = self.parts.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        let hit: Vec<Bytes> = self.parts.range(first..end).map(|(at, _)| *at).collect();
        let mut keep = Vec::new();
        for at in hit {
            let Some(part) = self.parts.remove(&at) else { continue };
            let part_end = at + part.size();
            if at < offset {
                keep.push((at, offset.saturating_sub(at)));
            }
            if part_end > end {
                keep.push((end, part_end.saturating_sub(end)));
            }
        }
        let (mut lost, mut answer) = (Bytes::ZERO, Ok(()));
        for (at, size) in keep {
            if let Err(failure) = self.map(at, size) {
                lost += size;
                answer = Err(failure);
            }
        }
        (lost, answer)
    }
}
