//! Rows of the request table (`req_to_token`): one for each request that holds slots.

use super::free_list::FreeList;

/// Which rows are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOrder {
    /// Rows from 0; the first of the list.
    FromFront,
    /// Rows from 1 (0 is padding); the last of the list, in list order.
    FromBack,
}

/// The free rows. Returned rows go to the end of the list.
///
/// Source: SGLang `ReqToTokenPool.alloc`, `free`.
#[derive(Clone, Debug)]
pub struct RequestRows {
    free: FreeList,
    total: u64,
    order: RowOrder,
}

impl RequestRows {
    /// `total` free rows.
    #[must_use]
    pub fn new(total: u64, order: RowOrder) -> Self {
        let first = u64::from(order == RowOrder::FromBack);
        Self { free: FreeList::new(first, total), total, order }
    }

    /// Rows in all.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Rows that nobody holds.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.len()
    }

    /// `count` rows; `None` where there are fewer.
    pub fn take(&mut self, count: u64) -> Option<Vec<u64>> {
        let rows = match self.order {
            RowOrder::FromFront => self.free.take_front(count),
            RowOrder::FromBack => self.free.take_back(count),
        };
        rows.map(|rows| rows.values().collect())
    }

    /// Returns a row.
    pub fn give_back(&mut self, row: u64) {
        self.free.push_back(&std::iter::once(row).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_from_the_end_that_the_order_names() {
        let mut early = RequestRows::new(4, RowOrder::FromFront);
        assert_eq!(early.take(2), Some(vec![0, 1]));
        early.give_back(0);
        assert_eq!(early.take(3), Some(vec![2, 3, 0]));
        assert_eq!(early.take(1), None);
        let mut late = RequestRows::new(4, RowOrder::FromBack);
        assert_eq!(late.take(2), Some(vec![3, 4]));
        late.give_back(3);
        assert_eq!(late.take(2), Some(vec![2, 3]));
        assert_eq!(late.available(), 1);
    }
}
