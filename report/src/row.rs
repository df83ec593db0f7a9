//! One stretch of a run's time: a pass with its exact figures, or several passes with the least and the
//! most of each.

use crate::items::Item;

/// What a stretch was spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A prefill pass.
    Prefill,
    /// A pass of prefill and decode together.
    Mixed,
    /// Decode passes with nothing between them.
    Decode,
    /// Something else than a pass: other programs, a leak.
    Change,
    /// The failure.
    Crash,
    /// The end of the run.
    End,
    /// Several of these.
    Several,
}

impl Doing {
    /// Its number on the page.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::Prefill => 0,
            Self::Mixed => 1,
            Self::Decode => 2,
            Self::Change => 3,
            Self::Crash => 4,
            Self::End => 5,
            Self::Several => 6,
        }
    }
}

/// The least and the most of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl Span {
    /// One value.
    #[must_use]
    pub const fn of(value: u64) -> Self {
        Self { min: value, max: value }
    }

    /// Takes one more value in.
    pub fn add(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Memory of one rank that moves while a server runs, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RankLevels {
    /// What other programs hold.
    pub others: Span,
    /// What no account explains.
    pub leaked: Span,
    /// What the caching allocator holds of the device.
    pub reserved: Span,
    /// What nobody holds.
    pub free: Span,
}

impl RankLevels {
    /// Of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            others: self.others.with(other.others),
            leaked: self.leaked.with(other.leaked),
            reserved: self.reserved.with(other.reserved),
            free: self.free.with(other.free),
        }
    }
}

/// What happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that joined a batch; a chunked one each time.
    pub admitted: u64,
    /// Times that a request could not join.
    pub deferred: u64,
    /// Requests that gave their slots back.
    pub retracted: u64,
    /// Requests that gave way to a higher priority.
    pub preempted: u64,
    /// Times that the prefix cache gave slots back.
    pub evicted: u64,
    /// Requests that came to their end.
    pub finished: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// Requests that were turned away.
    pub refused: u64,
    /// Changes of other programs, leaks and faults.
    pub changes: u64,
}

impl Counts {
    /// Each of them, in the order of the fields.
    #[must_use]
    pub const fn all(&self) -> [u64; 10] {
        [
            self.arrived,
            self.admitted,
            self.deferred,
            self.retracted,
            self.preempted,
            self.evicted,
            self.finished,
            self.aborted,
            self.refused,
            self.changes,
        ]
    }

    fn add(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.admitted += other.admitted;
        self.deferred += other.deferred;
        self.retracted += other.retracted;
        self.preempted += other.preempted;
        self.evicted += other.evicted;
        self.finished += other.finished;
        self.aborted += other.aborted;
        self.refused += other.refused;
        self.changes += other.changes;
    }
}

/// A stretch of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Nanoseconds since the server was ready.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// What was done.
    pub doing: Doing,
    /// Rows that were made one; 1 is exact.
    pub merged: u64,
    /// Whether it stays exact.
    pub pinned: bool,
    /// The first pass.
    pub first_step: u64,
    /// Passes.
    pub steps: u64,
    /// Prefill and mixed passes.
    pub prefills: u64,
    /// Their new tokens.
    pub prefill_tokens: u64,
    /// The new tokens of the largest.
    pub prefill_most: u64,
    /// Tokens that they found in the prefix cache.
    pub prefix_tokens: u64,
    /// Time that they took, in nanoseconds.
    pub prefill_ns: u64,
    /// Tokens that decode passes made.
    pub decode_tokens: u64,
    /// Time that they took, in nanoseconds.
    pub decode_ns: u64,
    /// Requests of the largest batch.
    pub requests: u64,
    /// Bytes that the allocator had live at the most, on the rank that had most.
    pub live: Span,
    /// Slots of the pool in use.
    pub used: Span,
    /// Slots of the prefix cache that nobody uses.
    pub evictable: Span,
    /// Requests that run.
    pub running: Span,
    /// Requests that wait.
    pub waiting: Span,
    /// Memory of every rank; one entry when all have the same.
    pub ranks: Vec<RankLevels>,
    /// What happened how often.
    pub counts: Counts,
    /// The decisions themselves.
    pub items: Vec<Item>,
    /// Decisions that are not kept.
    pub dropped: u64,
}

impl Row {
    /// Nothing yet, at a moment.
    #[must_use]
    pub const fn at(doing: Doing, from_ns: u64, to_ns: u64) -> Self {
        const NONE: Span = Span::of(0);
        Self {
            from_ns,
            to_ns,
            doing,
            merged: 1,
            pinned: false,
            first_step: 0,
            steps: 0,
            prefills: 0,
            prefill_tokens: 0,
            prefill_most: 0,
            prefix_tokens: 0,
            prefill_ns: 0,
            decode_tokens: 0,
            decode_ns: 0,
            requests: 0,
            live: NONE,
            used: NONE,
            evictable: NONE,
            running: NONE,
            waiting: NONE,
            ranks: Vec::new(),
            counts: Counts {
                arrived: 0,
                admitted: 0,
                deferred: 0,
                retracted: 0,
                preempted: 0,
                evicted: 0,
                finished: 0,
                aborted: 0,
                refused: 0,
                changes: 0,
            },
            items: Vec::new(),
            dropped: 0,
        }
    }

    /// Memory of one rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> RankLevels {
        let levels = self.ranks.get(rank as usize).or_else(|| self.ranks.first());
        levels.copied().unwrap_or_default()
    }

    /// Takes the next row in: time, counts and the least and most of each level. Decisions are dropped.
    pub fn merge(&mut self, next: &Self) {
        if self.doing != next.doing {
            self.doing = Doing::Several;
        }
        if self.steps == 0 {
            self.first_step = next.first_step;
        }
        self.to_ns = self.to_ns.max(next.to_ns);
        self.merged += next.merged;
        self.steps += next.steps;
        self.prefills += next.prefills;
        self.prefill_tokens += next.prefill_tokens;
        self.prefill_most = self.prefill_most.max(next.prefill_most);
        self.prefix_tokens += next.prefix_tokens;
        self.prefill_ns += next.prefill_ns;
        self.decode_tokens += next.decode_tokens;
        self.decode_ns += next.decode_ns;
        self.requests = self.requests.max(next.requests);
        self.live = self.live.with(next.live);
        self.used = self.used.with(next.used);
        self.evictable = self.evictable.with(next.evictable);
        self.running = self.running.with(next.running);
        self.waiting = self.waiting.with(next.waiting);
        self.merge_ranks(next);
        self.counts.add(&next.counts);
        self.dropped += next.dropped + (self.items.len() + next.items.len()) as u64;
        self.items = Vec::new();
    }

    fn merge_ranks(&mut self, next: &Self) {
        let count = self.ranks.len().max(next.ranks.len());
        if self.ranks.len() < count {
            let all = self.rank(0);
            self.ranks.resize(count, all);
        }
        for (rank, levels) in (0..).zip(&mut self.ranks) {
            *levels = levels.with(next.rank(rank));
        }
    }
}
