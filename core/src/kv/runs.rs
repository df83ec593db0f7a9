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

    /// Adds a run at the end; an empty one adds nothing.
    pub fn push(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        self.len += run.len;
        match self.runs.last_mut() {
            Some(last) if last.first + last.len == run.first => last.len += run.len,
            _ => self.runs.push(run),
        }
    }

    /// Adds all of `other` at the end.
    pub fn extend(&mut self, other: &Self) {
        for run in &other.runs {
            self.push(*run);
        }
    }
}
