//! Sequences of integers kept as runs of consecutive ones: token ids and KV slots.
//!
//! A prompt of 64k generated tokens is one run, and so are its slots on a fresh pool: what is done with
//! them costs by run, never by token. Explicit ids, as a trace has them, are runs too, only shorter.

use std::fmt;

/// `first, first + 1, … first + len - 1`; never empty inside [`Runs`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First value.
    pub first: u64,
    /// How many values.
    pub len: u64,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.first, self.len)
    }
}

/// A sequence of integers in as few runs as they allow: neighbours that continue each other are joined.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Runs {
    runs: Vec<Run>,
    len: u64,
}

impl Runs {
    /// The empty sequence.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: Vec::new(), len: 0 }
    }

    /// One run.
    #[must_use]
    pub fn of(first: u64, len: u64) -> Self {
        let mut runs = Self::new();
        runs.push(Run { first, len });
        runs
    }

    /// Number of values.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runs, in order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The first value.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.runs.first().map(|run| run.first)
    }

    /// The last value.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.runs.last().map(|run| run.first + (run.len - 1))
    }

    /// Its values, one by one. For tests and displays: it costs by value.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| (0..run.len).map(|offset| run.first + offset))
    }

    /// A reader that stands at the first value.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { runs: &self.runs, skip: 0, left: self.len }
    }

    /// A reader of the values at `from..to`; both are cut to the length.
    #[must_use]
    pub fn range(&self, from: u64, to: u64) -> Cursor<'_> {
        let mut cursor = self.cursor().limit(to);
        cursor.advance(from);
        cursor
    }

    /// A copy of the values at `from..to`; both are cut to the length.
    #[must_use]
    pub fn slice(&self, from: u64, to: u64) -> Self {
        if from >= to {
            return Self::new();
        }
        self.range(from, to).rest()
    }

    /// Adds a run at the end; an empty one adds nothing.
    pub fn push(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        self.len += run.len;
        match self.runs.last_mut() {
            Some(last) if last.first.checked_add(last.len) == Some(run.first) => {
                last.len += run.len;
            }
            _ => self.runs.push(run),
        }
    }

    /// Adds one value at the end.
    pub fn push_value(&mut self, value: u64) {
        self.push(Run { first: value, len: 1 });
    }

    /// Adds all of `other` at the end.
    pub fn extend(&mut self, other: &Self) {
        for run in &other.runs {
            self.push(*run);
        }
    }

    /// The same values in ascending order, in as few runs as they allow. Runs must not overlap.
    #[must_use]
    pub fn ascending(&self) -> Self {
        let mut runs = self.runs.clone();
        runs.sort_unstable();
        runs.into_iter().collect()
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: u64) {
        while self.len > len {
            let Some(last) = self.runs.last_mut() else { return };
            let over = self.len - len;
            if last.len > over {
                last.len -= over;
                self.len = len;
            } else {
                self.len -= last.len;
                self.runs.pop();
            }
        }
    }

    /// Keeps the first `at` values and returns the others.
    #[must_use]
    pub fn split_off(&mut self, at: u64) -> Self {
        let tail = self.slice(at, self.len);
        self.truncate(at);
        tail
    }
}

impl FromIterator<u64> for Runs {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let mut runs = Self::new();
        for value in values {
            runs.push_value(value);
        }
        runs
    }
}

impl FromIterator<Run> for Runs {
    fn from_iter<I: IntoIterator<Item = Run>>(parts: I) -> Self {
        let mut runs = Self::new();
        for run in parts {
            runs.push(run);
        }
        runs
    }
}

/// A place in a [`Runs`] with an end: reads and compares without copying.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    runs: &'a [Run],
    /// Values of the first run that are behind the reader.
    skip: u64,
    left: u64,
}

impl Cursor<'_> {
    /// Values between here and the end.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The same place with an end after at most `len` values.
    #[must_use]
    pub fn limit(mut self, len: u64) -> Self {
        self.left = self.left.min(len);
        self
    }

    /// What is left of the run that the reader stands in; `None` at the end.
    #[must_use]
    pub fn head(&self) -> Option<Run> {
        let run = self.runs.first().filter(|_| self.left > 0)?;
        let len = (run.len - self.skip).min(self.left);
        Some(Run { first: run.first + self.skip, len })
    }

    /// Goes `count` values on, or to the end.
    pub fn advance(&mut self, count: u64) {
        let mut count = count.min(self.left);
        self.left -= count;
        while let Some(run) = self.runs.first() {
            let here = run.len - self.skip;
            if count < here {
                self.skip += count;
                return;
            }
            count -= here;
            self.runs = &self.runs[1..];
            self.skip = 0;
        }
    }

    /// A copy of what is left.
    #[must_use]
    pub fn rest(mut self) -> Runs {
        let mut out = Runs::new();
        while let Some(run) = self.head() {
            out.push(run);
            self.advance(run.len);
        }
        out
    }

    /// How many values from here on are equal in both.
    #[must_use]
    pub fn common_len(mut self, mut other: Self) -> u64 {
        let mut common = 0;
        while let (Some(a), Some(b)) = (self.head(), other.head()) {
            if a.first != b.first {
                break;
            }
            let len = a.len.min(b.len);
            common += len;
            self.advance(len);
            other.advance(len);
        }
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Vec<u64>> {
        // Few distinct values, so that neighbours continue each other often.
        proptest::collection::vec(0_u64..6, 0..40)
    }

    proptest! {
        #[test]
        fn a_sequence_behaves_like_its_values(a in values(), from in 0_usize..45, to in 0_usize..45) {
            let runs: Runs = a.iter().copied().collect();
            prop_assert_eq!(runs.values().collect::<Vec<_>>(), a.clone());
            prop_assert_eq!(runs.len(), a.len() as u64);
            prop_assert_eq!(runs.last(), a.last().copied());
            let (low, high) = (from.min(a.len()), to.min(a.len()));
            let slice = if low < high { a[low..high].to_vec() } else { Vec::new() };
            let cut = runs.slice(from as u64, to as u64);
            prop_assert_eq!(cut.values().collect::<Vec<_>>(), slice.clone());
            // Kept in as few runs as possible, so that equal values are equal sequences.
            prop_assert_eq!(cut, slice.into_iter().collect::<Runs>());
        }

        #[test]
        fn split_and_join_restore(a in values(), at in 0_usize..45) {
            let whole: Runs = a.iter().copied().collect();
            let mut head = whole.clone();
            let tail = head.split_off(at as u64);
            prop_assert_eq!(head.len(), at.min(a.len()) as u64);
            head.extend(&tail);
            prop_assert_eq!(head, whole);
        }

        #[test]
        fn common_prefix_is_that_of_the_values(a in values(), b in values(), skip in 0_usize..10) {
            let (x, y): (Runs, Runs) = (a.iter().copied().collect(), b.iter().copied().collect());
            let (a, b) = (&a[skip.min(a.len())..], &b[skip.min(b.len())..]);
            let expected = a.iter().zip(b).take_while(|(p, q)| p == q).count() as u64;
            let skip = skip as u64;
            prop_assert_eq!(x.range(skip, 99).common_len(y.range(skip, 99)), expected);
        }
    }
}
