//! Reserved addresses and what is mapped into them, to the byte.

use plimsoll_core::{
    backend::{BackendError, Rank},
    memory::ledger::Account,
    units::Bytes,
};
use std::collections::BTreeMap;

/// A range of addresses. Mapped parts are kept as disjoint spans that do not touch.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) rank: Rank,
    pub(crate) account: Account,
    size: u64,
    /// Start → end.
    mapped: BTreeMap<u64, u64>,
}

impl Range {
    pub(crate) const fn new(rank: Rank, account: Account, size: Bytes) -> Self {
        Self { rank, account, size: size.0, mapped: BTreeMap::new() }
    }

    pub(crate) const fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    pub(crate) fn is_unmapped(&self) -> bool {
        self.mapped.is_empty()
    }

    /// Start and end of a part that can be mapped.
    ///
    /// # Errors
    ///
    /// `Unknown` for a part that is empty, outside, not a multiple of `unit`, or mapped already.
    pub(crate) fn unmapped_part(
        &self,
        offset: Bytes,
        size: Bytes,
        unit: Bytes,
    ) -> Result<(u64, u64), BackendError> {
        let (start, end) = self.part(offset, size, unit)?;
        match self.mapped.range(..end).next_back() {
            Some((_, mapped_end)) if *mapped_end > start => {
                Err(BackendError::Unknown("unmapped part of a range: it is mapped"))
            }
            _ => Ok((start, end)),
        }
    }

    /// Start and end of a part that is mapped, all of it.
    ///
    /// # Errors
    ///
    /// `Unknown` for a part that is empty, outside, not a multiple of `unit`, or not mapped.
    pub(crate) fn mapped_part(
        &self,
        offset: Bytes,
        size: Bytes,
        unit: Bytes,
    ) -> Result<(u64, u64), BackendError> {
        let (start, end) = self.part(offset, size, unit)?;
        match self.mapped.range(..=start).next_back() {
            Some((_, mapped_end)) if *mapped_end >= end => Ok((start, end)),
            _ => Err(BackendError::Unknown("mapped part of a range")),
        }
    }

    fn part(&self, offset: Bytes, size: Bytes, unit: Bytes) -> Result<(u64, u64), BackendError> {
        let end = offset.0.checked_add(size.0).filter(|end| *end <= self.size);
        let end = end.ok_or(BackendError::Unknown("part of a range"))?;
        let unit = unit.0.max(1);
        let whole = offset.0.is_multiple_of(unit) && size.0.is_multiple_of(unit);
        if size == Bytes::ZERO || !whole {
            return Err(BackendError::Unknown("part of a range in whole units"));
        }
        Ok((offset.0, end))
    }

    /// Marks a part that [`Self::unmapped_part`] answered.
    pub(crate) fn map(&mut self, (mut start, mut end): (u64, u64)) {
        if let Some((before, touching)) = self.mapped.range(..start).next_back()
            && *touching == start
        {
            start = *before;
        }
        if let Some(after) = self.mapped.remove(&end) {
            end = after;
        }
        self.mapped.insert(start, end);
    }

    /// Clears a part that [`Self::mapped_part`] answered.
    pub(crate) fn unmap(&mut self, (start, end): (u64, u64)) {
        let Some((span, span_end)) = self.mapped.range(..=start).next_back().map(|(s, e)| (*s, *e))
        else {
            return;
        };
        self.mapped.remove(&span);
        if span < start {
            self.mapped.insert(span, start);
        }
        if end < span_end {
            self.mapped.insert(end, span_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(range: &Range) -> Vec<(u64, u64)> {
        range.mapped.iter().map(|(s, e)| (*s, *e)).collect()
    }

    #[test]
    fn spans_join_and_split() {
        let mut range = Range::new(Rank(0), Account::KvPool, Bytes(100));
        let unit = Bytes(10);
        for offset in [40, 60, 50] {
            let part = range.unmapped_part(Bytes(offset), unit, unit).unwrap();
            range.map(part);
        }
        assert_eq!(spans(&range), [(40, 70)]);
        assert!(range.unmapped_part(Bytes(30), Bytes(20), unit).is_err());
        assert!(range.mapped_part(Bytes(30), Bytes(20), unit).is_err());
        let part = range.mapped_part(Bytes(50), unit, unit).unwrap();
        range.unmap(part);
        assert_eq!(spans(&range), [(40, 50), (60, 70)]);
        assert!(range.mapped_part(Bytes(40), Bytes(30), unit).is_err());
    }

    #[test]
    fn parts_are_whole_units_inside_the_range() {
        let range = Range::new(Rank(0), Account::KvPool, Bytes(100));
        for (offset, size) in [(0, 0), (5, 10), (0, 15), (100, 10), (u64::MAX, 10)] {
            assert!(range.unmapped_part(Bytes(offset), Bytes(size), Bytes(10)).is_err());
        }
        assert!(range.unmapped_part(Bytes(3), Bytes(4), Bytes::ZERO).is_ok());
    }
}
