//! Memory that grows and shrinks under one owner: what other programs hold.

use crate::{
    purse::{Owner, Purse},
    region::Region,
};
use plimsoll_core::{memory::ledger::Account, units::Bytes};
use std::io;

/// Touched memory is kept in regions of at most this size, so that it shrinks without being touched anew.
const CHUNK: u64 = 16 << 20;

/// Touched regions first, then one that is only mapped.
#[derive(Debug, Default)]
pub(crate) struct Pile {
    touched: Vec<Region>,
    rest: Region,
}

impl Pile {
    fn touched(&self) -> Bytes {
        self.touched.iter().map(Region::size).sum()
    }

    fn size(&self) -> Bytes {
        self.touched().saturating_add(self.rest.size())
    }

    /// Holds `to` bytes from now on. What is only mapped goes first; new memory is touched as far as the
    /// purse allows.
    ///
    /// # Errors
    ///
    /// The kernel's, when it refuses a mapping; the pile is as it was.
    pub(crate) fn resize(&mut self, to: Bytes, purse: &mut Purse) -> io::Result<()> {
        let (size, touched) = (self.size(), self.touched());
        let keep = match to.checked_sub(size) {
            Some(more) => touched.saturating_add(purse.leave(Account::OtherPrograms, more)),
            None => touched.min(to),
        };
        // All that is new is mapped before anything old is let go.
        let (whole, mut new) = self.chunks(keep)?;
        let rest = to.saturating_sub(keep);
        if rest != self.rest.size() {
            self.rest = Region::new(rest, Bytes::ZERO)?;
        }
        self.touched.truncate(whole);
        self.touched.append(&mut new);
        purse.refund(Owner::Neighbour, size, touched);
        purse.spend(Owner::Neighbour, to, keep);
        Ok(())
    }

    /// How many regions stay so that at most `keep` bytes are touched, and new ones for what they lack.
    fn chunks(&self, keep: Bytes) -> io::Result<(usize, Vec<Region>)> {
        let mut sum = Bytes::ZERO;
        let mut whole = 0;
        for region in &self.touched {
            let next = sum.saturating_add(region.size());
            if next > keep {
                break;
            }
            (sum, whole) = (next, whole + 1);
        }
        let mut new = Vec::new();
        let mut left = keep.saturating_sub(sum);
        while left > Bytes::ZERO {
            let size = left.min(Bytes(CHUNK));
            new.push(Region::new(size, size)?);
            left = left.saturating_sub(size);
        }
        Ok((whole, new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::TouchPolicy;

    #[test]
    fn a_pile_touches_what_its_purse_allows_and_gives_it_back() {
        let policy = TouchPolicy { neighbours: Bytes::mib(20), ..TouchPolicy::default() };
        let mut purse = Purse::new(&policy, Bytes::mib(64));
        let mut pile = Pile::default();
        for (to, touched) in [(8, 8), (30, 20), (21, 20), (17, 17), (3, 3), (100, 20), (0, 0)] {
            pile.resize(Bytes::mib(to), &mut purse).unwrap();
            assert_eq!(pile.size(), Bytes::mib(to));
            let print = purse.meter().read();
            assert_eq!((print.mapped, print.touched), (Bytes::mib(to), Bytes::mib(touched)));
        }
        assert_eq!(purse.meter().read().touched_peak, Bytes::mib(20));
        assert_eq!(purse.meter().read().spared, Bytes::mib(10 + 80));
    }

    #[test]
    fn a_refused_mapping_leaves_the_pile_as_it_was() {
        let mut purse = Purse::new(&TouchPolicy::default(), Bytes::ZERO);
        let mut pile = Pile::default();
        pile.resize(Bytes::mib(3), &mut purse).unwrap();
        let before = purse.meter().read();
        assert!(pile.resize(Bytes(1 << 60), &mut purse).is_err());
        assert_eq!(pile.size(), Bytes::mib(3));
        assert_eq!(purse.meter().read().mapped, before.mapped);
    }
}
