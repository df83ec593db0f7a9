//! The two pools of a hybrid model, and slots that come from both.

use super::map::SlotMap;
use crate::kv::{Extend, PageFree, Runs, SlotAllocator, SlotChange};

/// A count for each pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerPool {
    /// Of the layers that see every token.
    pub full: u64,
    /// Of the layers that see the window.
    pub window: u64,
}

impl PerPool {
    /// The smaller of the two.
    #[must_use]
    pub fn least(self) -> u64 {
        self.full.min(self.window)
    }

    /// What each lacks of `count`.
    #[must_use]
    pub const fn missing(self, count: u64) -> Self {
        Self { full: count.saturating_sub(self.full), window: count.saturating_sub(self.window) }
    }
}

impl std::ops::Add for PerPool {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { full: self.full + other.full, window: self.window + other.window }
    }
}

/// Slots of two pools. Every token takes one of each; the full slot is the one that others know it by, and
/// the window slot can be given back before it.
///
/// Source: SGLang 0.5.8 `SWATokenToKVPoolAllocator`.
#[derive(Clone, Debug)]
pub struct SwaAllocator {
    page_size: u64,
    full: SlotAllocator,
    window: SlotAllocator,
    map: SlotMap,
}

impl SwaAllocator {
    /// Two pools of so many tokens, rounded down to whole pages.
    #[must_use]
    pub fn new(tokens: PerPool, page_size: u64, order: PageFree) -> Self {
        Self {
            page_size: page_size.max(1),
            full: SlotAllocator::new(tokens.full, page_size, order),
            window: SlotAllocator::new(tokens.window, page_size, order),
            map: SlotMap::default(),
        }
    }

    /// The pool that slot ids are of.
    #[must_use]
    pub const fn full(&self) -> &SlotAllocator {
        &self.full
    }

    /// Free slots.
    #[must_use]
    pub const fn available(&self) -> PerPool {
        PerPool { full: self.full.available(), window: self.window.available() }
    }

    /// From here on changes of the full pool are kept for [`Self::take_trace`].
    pub fn keep_trace(&mut self) {
        self.full.keep_trace();
    }

    /// Changes of the full pool since the last call.
    pub fn take_trace(&mut self) -> Vec<SlotChange> {
        self.full.take_trace()
    }

    /// Slots for the new tokens of each part; `None` (and nothing taken) where either pool is short. With
    /// pages, each part is counted a page more than it has tokens.
    pub fn extend(&mut self, parts: &[Extend]) -> Option<Vec<Runs>> {
        let tokens: u64 = parts.iter().map(|part| part.want - part.have).sum();
        let on_top = if self.page_size == 1 { 0 } else { parts.len() as u64 * self.page_size };
        if tokens + on_top > self.available().least() {
            return None;
        }
        let behind: Vec<Extend> = parts
            .iter()
            .map(|part| Extend { last: part.last.map(|last| self.behind(last)), ..*part })
            .collect();
        let (full, window) = (self.full.extend(parts)?, self.window.extend(&behind)?);
        for (full, window) in full.iter().zip(&window) {
            self.map.set(full, window);
        }
        Some(full)
    }

    /// One more slot for each request of a decode batch, as [`SlotAllocator::decode`] takes it; `None`
    /// where either pool is short. The engine dies of that, so what one pool gave is not returned.
    pub fn decode(&mut self, requests: &[(u64, u64)]) -> Option<Runs> {
        let behind: Vec<(u64, u64)> =
            requests.iter().map(|(have, last)| (*have, self.behind(*last))).collect();
        let (full, window) = (self.full.decode(requests)?, self.window.decode(&behind)?);
        self.map.set(&full, &window);
        Some(full)
    }

    /// Returns full slots, and the window slots that they still have.
    pub fn free(&mut self, slots: &Runs) {
        self.full.free(slots);
        self.free_window(slots);
    }

    /// Returns the window slots of `slots` alone.
    pub fn free_window(&mut self, slots: &Runs) {
        let window = self.map.take(slots);
        self.window.free(&window);
    }

    /// From here on frees are collected.
    pub fn begin_group(&mut self) {
        self.full.begin_group();
        self.window.begin_group();
    }

    /// Frees what was collected, in one call.
    pub fn end_group(&mut self) {
        self.full.end_group();
        self.window.end_group();
    }

    /// The window slot of a full one; 0, the dummy, where it has none.
    fn behind(&self, slot: u64) -> u64 {
        self.map.get(slot).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(full: u64, window: u64, page: u64) -> SwaAllocator {
        SwaAllocator::new(PerPool { full, window }, page, PageFree::Ascending)
    }

    fn part(have: u64, want: u64, last: Option<u64>) -> Extend {
        Extend { have, want, last }
    }

    #[test]
    fn the_smaller_pool_decides() {
        let mut pools = pools(10, 6, 1);
        assert_eq!(pools.extend(&[part(0, 7, None)]), None);
        assert_eq!(pools.extend(&[part(0, 6, None)]), Some(vec![Runs::of(1, 6)]));
        pools.free_window(&Runs::of(2, 2));
        assert_eq!(pools.available(), PerPool { full: 4, window: 2 });
        // The window slots come back in their own order, not in that of the full pool.
        assert_eq!(pools.decode(&[(6, 6)]), Some(Runs::of(7, 1)));
        assert_eq!((pools.behind(7), pools.behind(2), pools.behind(1)), (2, 0, 1));
        pools.free(&Runs::of(1, 7));
        assert_eq!(pools.available(), PerPool { full: 10, window: 6 });
    }

    #[test]
    fn with_pages_a_part_is_counted_a_page_more() {
        let mut pools = pools(64, 48, 16);
        assert_eq!(pools.extend(&[part(0, 33, None)]), None);
        assert_eq!(pools.extend(&[part(0, 20, None)]), Some(vec![Runs::of(16, 20)]));
        // The half-filled page goes on in both pools.
        assert_eq!(pools.decode(&[(20, 35)]), Some(Runs::of(36, 1)));
        assert_eq!(pools.behind(36), 36);
        pools.free_window(&Runs::of(16, 16));
        assert_eq!(pools.available(), PerPool { full: 32, window: 32 });
    }

    #[test]
    fn a_group_gives_back_when_it_ends() {
        let mut pools = pools(8, 8, 1);
        assert!(pools.extend(&[part(0, 8, None)]).is_some());
        pools.begin_group();
        pools.free(&Runs::of(3, 2));
        assert_eq!(pools.available(), PerPool::default());
        pools.end_group();
        assert_eq!(pools.available(), PerPool { full: 2, window: 2 });
    }
}
