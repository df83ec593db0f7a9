//! A run of any length in as many rows as fit on a page: exact at its beginning, at its end and where
//! something changed, elsewhere the least and the most of equal stretches of time.

use crate::row::Row;
use std::collections::VecDeque;

/// How many rows are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Exact rows at the beginning.
    pub head: usize,
    /// Exact rows at the end: what led to a crash.
    pub tail: usize,
    /// Exact rows where something changed.
    pub pins: usize,
    /// Rows between, these included.
    pub body: usize,
    /// Decisions kept between.
    pub items: usize,
}

impl Default for Budget {
    /// Some 2 MB of a page.
    fn default() -> Self {
        Self { head: 500, tail: 3_000, pins: 3_000, body: 16_000, items: 30_000 }
    }
}

/// The shortest stretch into which passes are gathered: 1 ms.
const FINEST_NS: u64 = 1_000_000;

/// Rows as they come, thinned where there are too many.
#[derive(Debug)]
pub struct Thin {
    budget: Budget,
    body: Vec<Row>,
    tail: VecDeque<Row>,
    /// Length of the stretches, in nanoseconds; 0 while every row is exact.
    stretch_ns: u64,
    pushed: usize,
    pins: usize,
    items: usize,
}

impl Thin {
    /// None yet.
    #[must_use]
    pub const fn new(budget: Budget) -> Self {
        Self {
            budget,
            body: Vec::new(),
            tail: VecDeque::new(),
            stretch_ns: 0,
            pushed: 0,
            pins: 0,
            items: 0,
        }
    }

    /// The next row, in the order of time.
    pub fn push(&mut self, mut row: Row) {
        row.pinned = if self.pushed < self.budget.head {
            true
        } else {
            let keep = row.pinned && self.pins < self.budget.pins;
            self.pins += usize::from(keep);
            keep
        };
        self.pushed += 1;
        self.tail.push_back(row);
        if self.tail.len() > self.budget.tail.max(1)
            && let Some(oldest) = self.tail.pop_front()
        {
            self.settle(oldest);
        }
    }

    /// The latest row, which is exact.
    pub fn last_mut(&mut self) -> Option<&mut Row> {
        self.tail.back_mut()
    }

    /// Length of the stretches into which rows were gathered, in nanoseconds; 0 when every row is exact.
    #[must_use]
    pub const fn stretch_ns(&self) -> u64 {
        self.stretch_ns
    }

    /// All of them, in the order of time.
    #[must_use]
    pub fn finish(mut self) -> Vec<Row> {
        self.body.extend(self.tail);
        self.body
    }

    fn settle(&mut self, mut row: Row) {
        if !row.pinned && self.items + row.items.len() > self.budget.items {
            row.dropped += row.items.len() as u64;
            row.items = Vec::new();
        }
        self.items += row.items.len();
        gather(&mut self.body, row, self.stretch_ns);
        while self.body.len() > self.budget.body.max(1) {
            let before = self.body.len();
            self.stretch_ns = self.stretch_ns.saturating_mul(2).max(FINEST_NS);
            let rows = std::mem::take(&mut self.body);
            for row in rows {
                gather(&mut self.body, row, self.stretch_ns);
            }
            self.items = self.body.iter().map(|row| row.items.len()).sum();
            // Nothing is left to gather but what stays exact.
            if self.body.len() == before && self.stretch_ns > u64::MAX / 4 {
                break;
            }
        }
    }
}

/// Adds a row, to the last one where both lie in the same stretch.
fn gather(rows: &mut Vec<Row>, row: Row, stretch_ns: u64) {
    let same = |last: &Row| {
        let stretch = |ns: u64| ns.checked_div(stretch_ns);
        stretch_ns > 0
            && !last.pinned
            && !row.pinned
            && stretch(last.from_ns) == stretch(row.from_ns)
    };
    match rows.last_mut() {
        Some(last) if same(last) => last.merge(&row),
        _ => rows.push(row),
    }
}
