//! Rows of one combination of values, over all seeds.

use super::chance::Chance;
use crate::{
    question::Question,
    row::{Fate, Row},
};

/// All runs of one scenario at one combination of values.
#[derive(Clone, PartialEq, Debug)]
pub struct Group<'r> {
    /// Place of the scenario.
    pub scenario: usize,
    /// Places of the values, one an axis.
    pub at: Vec<usize>,
    /// Its rows, in the order of the seeds.
    pub rows: Vec<&'r Row>,
    /// Runs that lived.
    pub lived: u64,
    /// Runs that died.
    pub died: u64,
    /// Runs that did not start.
    pub not_started: u64,
}

impl<'r> Group<'r> {
    fn add(&mut self, row: &'r Row) {
        match row.fate() {
            Fate::Lived => self.lived += 1,
            Fate::Died => self.died += 1,
            Fate::NotStarted => self.not_started += 1,
        }
        self.rows.push(row);
    }

    /// Runs in all.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Whether a server comes up at all at these values, whatever the seed.
    #[must_use]
    pub const fn starts(&self) -> bool {
        self.lived + self.died > 0
    }

    /// The chance of a crash.
    #[must_use]
    pub fn chance(&self) -> Chance {
        Chance::of(self.died, self.runs())
    }

    /// Median of a column over the runs that lived, the lower one of two.
    #[must_use]
    pub fn median(&self, column: &str) -> Option<i64> {
        let lived = self.rows.iter().filter(|row| row.fate() == Fate::Lived);
        let mut values: Vec<i64> = lived.filter_map(|row| row.int(column)).collect();
        values.sort_unstable();
        values.get(values.len().checked_sub(1)? / 2).copied()
    }

    /// Least value of a column over all runs, and the row that has it.
    #[must_use]
    pub fn least(&self, column: &str) -> Option<(i64, &'r Row)> {
        let values = self.rows.iter().filter_map(|row| Some((row.int(column)?, *row)));
        values.min_by_key(|(value, row)| (*value, row.index))
    }

    /// Why it does not start, where it does not.
    #[must_use]
    pub fn reason(&self) -> Option<&'r str> {
        let not = self.rows.iter().filter(|row| row.fate() == Fate::NotStarted);
        not.filter_map(|row| row.get("reason").word()).next()
    }

    /// Its values in words, without those of one axis: `chunk 4096, tp 8`.
    #[must_use]
    pub fn words(&self, question: &Question, without: Option<usize>) -> String {
        let axes = question.axes.iter().zip(&self.at).enumerate();
        let shown = axes.filter(|(at, _)| Some(*at) != without);
        let one = |(axis, at): (&crate::question::Axis, &usize)| {
            let value = axis.values().get(*at).map_or("", String::as_str);
            format!("{} {value}", axis.name)
        };
        shown.map(|(_, pair)| one(pair)).collect::<Vec<_>>().join(", ")
    }
}

/// The rows by their values, in the order of the points.
#[must_use]
pub fn groups<'r>(question: &Question, rows: &'r [Row]) -> Vec<Group<'r>> {
    let mut all: Vec<Group<'r>> = Vec::new();
    for row in rows {
        let Some(point) = question.point(row.index) else { continue };
        let same =
            |group: &&mut Group<'_>| group.scenario == point.scenario && group.at == point.at;
        if let Some(group) = all.last_mut().filter(|group| same(group)) {
            group.add(row);
            continue;
        }
        let (scenario, at) = (point.scenario, point.at);
        let mut group = Group { scenario, at, rows: Vec::new(), lived: 0, died: 0, not_started: 0 };
        group.add(row);
        all.push(group);
    }
    all
}
