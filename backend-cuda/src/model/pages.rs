//! Pages of the pool over the chunks in which memory is mapped: which chunks a page touches, and which may
//! go when it is lent.
//!
//! A page and a chunk need not have a common size. A chunk has memory while any page that touches it is
//! here; so what is lent frees memory only when its neighbours are lent too, and a page that comes back
//! brings every chunk it touches.

use plimsoll_core::units::Bytes;
use std::ops::Range;

/// Why a page is not lent or taken back. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageError {
    /// No such page.
    #[error("page {page} is not one of the pool's {pages}")]
    NoPage {
        /// As given.
        page: u32,
        /// Pages of the pool.
        pages: usize,
    },
    /// It is lent already.
    #[error("page {page} is lent already")]
    Lent {
        /// As given.
        page: u32,
    },
    /// It is not lent.
    #[error("page {page} is here already")]
    Here {
        /// As given.
        page: u32,
    },
    /// Memory that cannot be given back: this device has no virtual memory.
    #[error("page {page} cannot be lent: the device's memory is one plain allocation")]
    Fixed {
        /// As given.
        page: u32,
    },
}

/// Which pages are here, and how many pages keep each chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    page: u64,
    chunk: u64,
    here: Vec<bool>,
    lent: usize,
    users: Vec<u32>,
}

impl Pages {
    /// Pages of `page` bytes over chunks of `chunk` bytes, all here.
    pub(crate) fn new(page: Bytes, chunk: Bytes, pages: usize) -> Self {
        let (page, chunk) = (page.0.max(1), chunk.0.max(1));
        let chunks = (page * pages as u64).div_ceil(chunk) as usize;
        let mut all = Self { page, chunk, here: Vec::new(), lent: 0, users: vec![0; chunks] };
        all.here = vec![true; pages];
        for page in 0..pages as u64 {
            for chunk in all.touched(page) {
                all.users[chunk] += 1;
            }
        }
        all
    }

    /// Chunks that a page touches.
    fn touched(&self, page: u64) -> Range<usize> {
        let (start, end) = (page * self.page, (page + 1) * self.page);
        (start / self.chunk) as usize..end.div_ceil(self.chunk) as usize
    }

    /// Pages, lent ones included.
    pub(crate) const fn count(&self) -> usize {
        self.here.len()
    }

    /// Pages that are lent.
    pub(crate) const fn lent(&self) -> usize {
        self.lent
    }

    /// Whether a page is there and not lent.
    pub(crate) fn is_here(&self, page: u32) -> bool {
        self.here.get(page as usize).is_some_and(|here| *here)
    }

    fn state(&self, page: u32) -> Result<bool, PageError> {
        let pages = self.here.len();
        self.here.get(page as usize).copied().ok_or(PageError::NoPage { page, pages })
    }

    /// Chunks that nobody needs once this page is lent; they stand side by side.
    pub(crate) fn would_free(&self, page: u32) -> Result<Range<usize>, PageError> {
        if !self.state(page)? {
            return Err(PageError::Lent { page });
        }
        Ok(self.those(page, 1))
    }

    /// Chunks that this page needs and that have no memory.
    pub(crate) fn would_need(&self, page: u32) -> Result<Range<usize>, PageError> {
        if self.state(page)? {
            return Err(PageError::Here { page });
        }
        Ok(self.those(page, 0))
    }

    /// Of the touched chunks, those with so many users. Only the first and the last are shared with other
    /// pages, so these are a range.
    fn those(&self, page: u32, users: u32) -> Range<usize> {
        let touched = self.touched(u64::from(page));
        let is = |chunk: &usize| self.users.get(*chunk) == Some(&users);
        let first = touched.clone().find(is).unwrap_or(touched.start);
        let end = touched.clone().rev().find(is).map_or(first, |last| last + 1);
        first..end
    }

    /// Notes that a page is lent.
    pub(crate) fn lend(&mut self, page: u32) {
        self.change(page, false);
    }

    /// Notes that a page is here again.
    pub(crate) fn take_back(&mut self, page: u32) {
        self.change(page, true);
    }

    fn change(&mut self, page: u32, to: bool) {
        let touched = self.touched(u64::from(page));
        let Some(here) = self.here.get_mut(page as usize).filter(|here| **here != to) else {
            return;
        };
        *here = to;
        self.lent = if to { self.lent.saturating_sub(1) } else { self.lent + 1 };
        for users in self.users.get_mut(touched).into_iter().flatten() {
            *users = if to { *users + 1 } else { users.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn mapped(pages: &Pages) -> u64 {
        pages.users.iter().filter(|users| **users > 0).count() as u64 * pages.chunk
    }

    #[test]
    fn small_pages_share_a_chunk() {
        let mut pages = Pages::new(Bytes(3), Bytes(8), 6);
        // 18 bytes: chunks 0-7, 8-15, 16-23. Page 2 is bytes 6 to 8.
        assert_eq!(mapped(&pages), 24);
        for page in [0, 1] {
            assert!(pages.would_free(page).unwrap().is_empty());
            pages.lend(page);
        }
        assert_eq!(pages.would_free(2).unwrap(), 0..1);
        pages.lend(2);
        assert_eq!((mapped(&pages), pages.lent()), (16, 3));
        assert_eq!(pages.would_free(2), Err(PageError::Lent { page: 2 }));
        assert_eq!(pages.would_need(5), Err(PageError::Here { page: 5 }));
        assert_eq!(pages.would_need(6), Err(PageError::NoPage { page: 6, pages: 6 }));
        assert_eq!(pages.would_need(2).unwrap(), 0..1);
    }

    proptest! {
        /// A chunk has memory exactly while a page that is here touches it.
        #[test]
        fn chunks_have_memory_while_they_are_needed(
            page in 1_u64..40, chunk in 1_u64..40, count in 1_usize..30,
            moves in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
        ) {
            let mut pages = Pages::new(Bytes(page), Bytes(chunk), count);
            let mut backed: BTreeSet<usize> = (0..pages.users.len()).collect();
            for index in moves {
                let one = index.index(count) as u32;
                if pages.is_here(one) {
                    for chunk in pages.would_free(one).unwrap() {
                        prop_assert!(backed.remove(&chunk));
                    }
                    pages.lend(one);
                } else {
                    for chunk in pages.would_need(one).unwrap() {
                        prop_assert!(backed.insert(chunk));
                    }
                    pages.take_back(one);
                }
                let needed: BTreeSet<usize> = (0..count as u64)
                    .filter(|p| pages.is_here(*p as u32))
                    .flat_map(|p| (p * page..(p + 1) * page).map(|byte| (byte / chunk) as usize))
                    .collect();
                prop_assert_eq!(&needed, &backed);
                prop_assert_eq!(mapped(&pages), backed.len() as u64 * chunk);
                let here = (0..count as u32).filter(|p| pages.is_here(*p)).count();
                prop_assert_eq!(pages.lent(), count - here);
            }
        }
    }
}
