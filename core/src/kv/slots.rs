//! Allocators of token slots: one by one, or by page.

use super::{
    free_list::FreeList,
    runs::{Run, Runs},
    slot_trace::{SlotChange, SlotTrace},
};

/// In which order freed pages return. They always go before the pages that are free already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFree {
    /// Ascending and without repeats, by call.
    Ascending,
    /// As the freed slots stand in their request.
    InPlace,
}

/// Slots that a request needs for its tokens `have..want`.
#[derive(Clone, Copy, Debug)]
pub struct Extend {
    /// Tokens that have a slot.
    pub have: u64,
    /// Tokens after.
    pub want: u64,
    /// Slot of the last token that has one.
    pub last: Option<u64>,
}

/// Free pages: which, or only how many.
#[derive(Clone, Debug)]
enum FreePages {
    Known(FreeList),
    Counted(u64),
}

/// Slots of one pool. Slot ids begin at `page_size`: page 0 is a dummy that is never handed out.
///
/// Page size 1: a queue; freed slots go to the end and wait for their turn. Larger pages: a stack of page
/// numbers; a request fills its last page before it takes another.
///
/// No decision of a scheduler reads which slots are free, only how many. After [`Self::count_only`] the pool
/// keeps that number alone, and the slot of a token is its position in its sequence: the slots of a request,
/// of a cached prefix and of both together are one run each, whatever went on before.
///
/// Source: SGLang `TokenToKVPoolAllocator`, `PagedTokenToKVPoolAllocator`.
#[derive(Clone, Debug)]
pub struct SlotAllocator {
    page_size: u64,
    pages: u64,
    free: FreePages,
    order: PageFree,
    group: Option<Runs>,
    trace: SlotTrace,
}

impl SlotAllocator {
    /// A pool of `tokens`, rounded down to whole pages.
    #[must_use]
    pub fn new(tokens: u64, page_size: u64, order: PageFree) -> Self {
        let page_size = page_size.max(1);
        let pages = tokens / page_size;
        let free = FreePages::Known(FreeList::new(1, pages));
        Self { page_size, pages, free, order, group: None, trace: SlotTrace::default() }
    }

    /// From here on only the number of free slots is kept. Answers whether that is so: a pool of which slots
    /// are handed out already goes on as it was.
    pub fn count_only(&mut self) -> bool {
        if self.available() == self.pages * self.page_size {
            self.free = FreePages::Counted(self.pages);
        }
        self.counts_only()
    }

    /// Whether only the number of free slots is kept.
    #[must_use]
    pub const fn counts_only(&self) -> bool {
        matches!(self.free, FreePages::Counted(_))
    }

    /// From here on every change is kept for [`Self::take_trace`].
    pub fn keep_trace(&mut self) {
        self.trace.keep();
    }

    /// What changed since the last call, in order; nothing unless [`Self::keep_trace`] was called.
    pub fn take_trace(&mut self) -> Vec<SlotChange> {
        self.trace.take()
    }

    /// Free slots.
    #[must_use]
    pub const fn available(&self) -> u64 {
        let pages = match &self.free {
            FreePages::Known(list) => list.len(),
            FreePages::Counted(pages) => *pages,
        };
        pages * self.page_size
    }

    /// The free pages (slots where a page is one slot), in the order of being taken; `None` where they are
    /// only counted.
    #[must_use]
    pub const fn free_list(&self) -> Option<&FreeList> {
        match &self.free {
            FreePages::Known(list) => Some(list),
            FreePages::Counted(_) => None,
        }
    }

    /// Takes up to `most` free pages out of the pool, those that would be handed out last. Their numbers; of
    /// a counted pool none.
    pub fn lend(&mut self, most: u64) -> Runs {
        let FreePages::Known(free) = &mut self.free else { return Runs::new() };
        free.take_back(most.min(free.len())).unwrap_or_default()
    }

    /// Pages that were lent are free again, behind all others.
    pub fn take_back(&mut self, pages: &Runs) {
        if let FreePages::Known(free) = &mut self.free {
            free.push_back(pages);
        }
    }

    /// Takes `count` of a counted pool's pages; says whether there were as many.
    pub const fn take_counted(&mut self, count: u64) -> bool {
        match &mut self.free {
            FreePages::Counted(pages) if count <= *pages => {
                *pages -= count;
                true
            }
            FreePages::Counted(_) | FreePages::Known(_) => false,
        }
    }

    /// Slots for the new tokens of each part, in order; `None` (and nothing taken) where they do not fit.
    pub fn extend(&mut self, parts: &[Extend]) -> Option<Vec<Runs>> {
        let page = self.page_size;
        let pages = |tokens: u64| tokens.div_ceil(page);
        let counts = parts.iter().map(|part| pages(part.want) - pages(part.have));
        let FreePages::Known(free) = &mut self.free else {
            let slots = |part: &Extend| Runs::of(part.have, part.want - part.have);
            return self.take_counted(counts.sum()).then(|| parts.iter().map(slots).collect());
        };
        let taken = free.take_front(counts.clone().sum())?;
        self.trace.taken(&taken, page, counts);
        let mut fresh = taken.cursor();
        let fill = |part: &Extend| {
            let mut out = Runs::new();
            let count = part.want - part.have;
            let in_page = (part.have.next_multiple_of(page) - part.have).min(count);
            if let Some(last) = part.last.filter(|_| in_page > 0) {
                out.push(Run { first: last + 1, len: in_page });
            }
            let mut left = count - in_page;
            while let Some(run) = fresh.head().filter(|_| left > 0) {
                let whole = run.len.min(left.div_ceil(page));
                let len = left.min(whole * page);
                out.push(Run { first: run.first * page, len });
                fresh.advance(whole);
                left -= len;
            }
            out
        };
        Some(parts.iter().map(fill).collect())
    }

    /// One more slot for each request of a decode batch, given as (tokens that have a slot, last slot), in
    /// batch order; `None` (and nothing taken) where they do not fit.
    pub fn decode(&mut self, requests: &[(u64, u64)]) -> Option<Runs> {
        let page = self.page_size;
        let fresh = |have: u64| have.is_multiple_of(page);
        let counts = requests.iter().map(|(have, _)| u64::from(fresh(*have)));
        let FreePages::Known(free) = &mut self.free else {
            let slots = || requests.iter().map(|(have, _)| *have).collect();
            return self.take_counted(counts.sum()).then(slots);
        };
        let taken = free.take_front(counts.clone().sum())?;
        self.trace.taken(&taken, page, counts);
        if page == 1 {
            return Some(taken);
        }
        let mut pages = taken.values();
        let slots = requests.iter().map(|(have, last)| match fresh(*have) {
            true => pages.next().map_or(0, |number| number * page),
            false => last + 1,
        });
        Some(slots.collect())
    }

    /// Returns slots. Where pages hold more than one slot, `slots` must be whole pages but for the end of
    /// a request's last one.
    pub fn free(&mut self, slots: &Runs) {
        if slots.is_empty() {
            return;
        }
        if let FreePages::Counted(pages) = &mut self.free {
            let page = self.page_size;
            let of = |run: &Run| (run.first + run.len).div_ceil(page) - run.first / page;
            *pages += slots.runs().iter().map(of).sum::<u64>();
            return;
        }
        let by_place = self.page_size > 1 && self.order == PageFree::InPlace;
        let placed = by_place.then(|| pages_in_place(slots, self.page_size));
        let freed = placed.as_ref().unwrap_or(slots);
        match &mut self.group {
            Some(group) => group.extend(freed),
            None if self.page_size == 1 || by_place => self.give_back(freed),
            None => self.give_back(&pages_ascending(freed, self.page_size)),
        }
    }

    /// Puts pages at their end of the free list.
    fn give_back(&mut self, pages: &Runs) {
        self.trace.freed(pages, self.page_size);
        let FreePages::Known(free) = &mut self.free else { return };
        match self.page_size {
            1 => free.push_back(pages),
            _ => free.push_front(pages),
        }
    }

    /// From here on frees are collected.
    pub fn begin_group(&mut self) {
        self.group = Some(Runs::new());
    }

    /// Frees what was collected, in one call.
    pub fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        if self.page_size > 1 && self.order == PageFree::InPlace {
            self.give_back(&group);
        } else {
            self.free(&group);
        }
    }
}

/// The distinct pages of `slots`, ascending.
fn pages_ascending(slots: &Runs, page: u64) -> Runs {
    let ends = |run: &Run| (run.first / page, (run.first + run.len - 1) / page);
    let mut spans: Vec<(u64, u64)> = slots.runs().iter().map(ends).collect();
    spans.sort_unstable();
    let mut next = 0;
    let mut out = Runs::new();
    for (first, last) in spans {
        let first = first.max(next);
        if first <= last {
            out.push(Run { first, len: last - first + 1 });
            next = last + 1;
        }
    }
    out
}

/// The page of every `page`-th slot, in order.
fn pages_in_place(slots: &Runs, page: u64) -> Runs {
    let (mut out, mut at) = (Runs::new(), 0_u64);
    for run in slots.runs() {
        let skip = at.next_multiple_of(page) - at;
        at += run.len;
        if skip < run.len {
            let count = (run.len - skip).div_ceil(page);
            out.push(Run { first: (run.first + skip) / page, len: count });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(have: u64, want: u64, last: Option<u64>) -> Extend {
        Extend { have, want, last }
    }

    #[test]
    fn slots_of_one_are_a_queue() {
        let mut pool = SlotAllocator::new(6, 1, PageFree::Ascending);
        let got = pool.extend(&[part(0, 2, None), part(5, 7, Some(99))]).unwrap();
        assert_eq!(got, [Runs::of(1, 2), Runs::of(3, 2)]);
        pool.free(&Runs::of(1, 2));
        assert_eq!(
            pool.decode(&[(2, 9), (3, 9), (4, 9)]).unwrap(),
            [5, 6, 1].into_iter().collect()
        );
        assert_eq!(pool.decode(&[(2, 9), (3, 9)]), None);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn the_last_page_is_filled_before_another_is_taken() {
        let mut pool = SlotAllocator::new(64, 16, PageFree::Ascending);
        let got = pool.extend(&[part(0, 20, None), part(0, 3, None)]).unwrap();
        assert_eq!(got, [Runs::of(16, 20), Runs::of(48, 3)]);
        assert_eq!(
            pool.extend(&[part(20, 40, Some(35))]).unwrap(),
            [[Run { first: 36, len: 12 }, Run { first: 64, len: 8 }].into_iter().collect()]
        );
        assert_eq!(pool.available(), 0);
        // A stack: the pages of a call ascend, and stand before the others.
        pool.free(&[Run { first: 48, len: 3 }, Run { first: 16, len: 2 }].into_iter().collect());
        assert_eq!(pool.decode(&[(32, 9), (5, 70)]).unwrap(), [16, 71].into_iter().collect());
    }

    #[test]
    fn pages_return_in_place_where_the_release_says_so() {
        let mut pool = SlotAllocator::new(64, 16, PageFree::InPlace);
        assert!(pool.extend(&[part(0, 64, None)]).is_some());
        pool.free(&[Run { first: 48, len: 16 }, Run { first: 16, len: 9 }].into_iter().collect());
        let order: Vec<u64> = pool.free_list().unwrap().runs().map(|run| run.first).collect();
        assert_eq!(order, [3, 1]);
    }

    #[test]
    fn a_large_pool_is_one_run() {
        let pool = SlotAllocator::new(10_000_000_000, 64, PageFree::Ascending);
        assert_eq!(pool.free_list().unwrap().runs().count(), 1);
    }

    #[test]
    fn a_trace_tells_pages_as_they_change_hands() {
        let mut pool = SlotAllocator::new(64, 16, PageFree::InPlace);
        assert!(pool.extend(&[part(0, 3, None)]).is_some());
        assert_eq!(pool.take_trace(), [], "none is kept unless it is asked for");
        pool.keep_trace();
        // The first part has room in its page, the second takes two pages, the decode batch one.
        assert!(pool.extend(&[part(3, 9, Some(18)), part(0, 17, None)]).is_some());
        assert!(pool.decode(&[(9, 24), (32, 63)]).is_some());
        let taken = |part, first, len| SlotChange::Taken { part, slots: Runs::of(first, len) };
        assert_eq!(pool.take_trace(), [taken(1, 32, 32), taken(1, 64, 16)]);
        pool.begin_group();
        pool.free(&Runs::of(16, 10));
        pool.free(&Runs::of(64, 1));
        assert_eq!(pool.take_trace(), [], "a group gives back when it ends");
        pool.end_group();
        let slots = [Run { first: 16, len: 16 }, Run { first: 64, len: 16 }].into_iter().collect();
        assert_eq!(pool.take_trace(), [SlotChange::Freed { slots }]);
    }

    proptest! {
        /// A counted pool has as many slots as one that knows them, at every moment.
        #[test]
        fn counting_is_enough(
            page in prop_oneof![Just(1_u64), Just(4), Just(16)],
            order in prop_oneof![Just(PageFree::Ascending), Just(PageFree::InPlace)],
            lens in proptest::collection::vec((1_u64..60, any::<bool>()), 1..30),
        ) {
            let mut known = SlotAllocator::new(400, page, order);
            let mut counted = known.clone();
            prop_assert!(counted.count_only());
            let mut rows: Vec<(Runs, Runs)> = Vec::new();
            for (len, frees) in lens {
                let (a, b) = (known.extend(&[part(0, len, None)]), counted.extend(&[part(0, len, None)]));
                prop_assert_eq!(a.is_some(), b.is_some());
                rows.extend(a.into_iter().flatten().zip(b.into_iter().flatten()));
                let ends = |of: &dyn Fn(&(Runs, Runs)) -> Runs| -> Vec<(u64, u64)> {
                    rows.iter().map(of).map(|row| (row.len(), row.last().unwrap())).collect()
                };
                let (a, b) = (ends(&|row| row.0.clone()), ends(&|row| row.1.clone()));
                let (a, b) = (known.decode(&a), counted.decode(&b));
                prop_assert_eq!(a.is_some(), b.is_some());
                for ((row, a), b) in rows.iter_mut().zip(a.iter().flat_map(Runs::values)).zip(b.iter().flat_map(Runs::values)) {
                    row.0.push_value(a);
                    row.1.push_value(b);
                    prop_assert_eq!(row.1.runs().len(), 1);
                }
                if frees && !rows.is_empty() {
                    let (a, b) = rows.remove(0);
                    let cut = a.len() / 2 / page * page;
                    for (from, to) in [(0, cut), (cut, a.len())] {
                        known.free(&a.slice(from, to));
                        counted.free(&b.slice(from, to));
                    }
                }
                prop_assert_eq!(known.available(), counted.available());
            }
        }

        /// What the trace says is held is what the pool says is not free.
        #[test]
        fn a_trace_adds_up(
            page in prop_oneof![Just(1_u64), Just(4), Just(16)],
            order in prop_oneof![Just(PageFree::Ascending), Just(PageFree::InPlace)],
            lens in proptest::collection::vec((1_u64..40, any::<bool>()), 1..20),
        ) {
            let mut pool = SlotAllocator::new(400, page, order);
            pool.keep_trace();
            let mut rows: Vec<Runs> = Vec::new();
            let mut held = std::collections::BTreeSet::new();
            for (len, frees) in lens {
                if let Some(got) = pool.extend(&[part(0, len, None)]) {
                    rows.extend(got);
                }
                let ends: Vec<_> =
                    rows.iter().map(|row| (row.len(), row.last().unwrap())).collect();
                if let Some(slots) = pool.decode(&ends) {
                    rows.iter_mut().zip(slots.values()).for_each(|(row, slot)| row.push_value(slot));
                }
                if frees && !rows.is_empty() {
                    pool.begin_group();
                    pool.free(&rows.remove(0));
                    pool.end_group();
                }
                for change in pool.take_trace() {
                    match change {
                        SlotChange::Taken { slots, .. } => {
                            prop_assert!(slots.values().all(|slot| held.insert(slot)));
                        }
                        SlotChange::Freed { slots } => {
                            prop_assert!(slots.values().all(|slot| held.remove(&slot)));
                        }
                    }
                }
                prop_assert_eq!(held.len() as u64 + pool.available(), 400 / page * page);
                prop_assert!(rows.iter().flat_map(Runs::values).all(|slot| held.contains(&slot)));
            }
        }

        #[test]
        fn no_slot_is_handed_out_twice(
            page in prop_oneof![Just(1_u64), Just(4), Just(16)],
            lens in proptest::collection::vec((1_u64..40, 1_u64..40), 1..12),
        ) {
            let mut pool = SlotAllocator::new(400, page, PageFree::Ascending);
            let mut held: Vec<Runs> = Vec::new();
            for (first, more) in lens {
                if held.len() > 4 {
                    pool.free(&held.remove(0));
                }
                let Some(mut got) = pool.extend(&[part(0, first, None)]) else { continue };
                let mut row = got.remove(0);
                if let Some(got) = pool.extend(&[part(first, first + more, row.last())]) {
                    row.extend(&got[0]);
                    prop_assert_eq!(row.len(), first + more);
                }
                held.push(row);
                let mut all: Vec<u64> = held.iter().flat_map(Runs::values).collect();
                prop_assert!(all.iter().all(|slot| (page..400 / page * page + page).contains(slot)));
                let pages: u64 = held.iter().map(|row| row.len().div_ceil(page)).sum();
                prop_assert_eq!(pool.available() + pages * page, 400 / page * page);
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
            }
        }
    }
}
