//! A run over time, read from its log: memory of the tightest rank, the pool, the queues, the crash.

mod columns;
mod plot;
mod read;
mod svg;

pub use columns::{Column, columns};
pub use plot::{Glyphs, Ink, Line, plot};
pub use svg::{escape, svg};

use crate::wire::Log;
use plimsoll_core::memory::ledger::Account;

/// What a stretch of time was spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A prefill or mixed pass.
    Prefill,
    /// Decode passes.
    Decode,
    /// Nothing, or an event without duration.
    Idle,
}

/// What moves on a device while a server runs, in bytes; from the bottom up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// What other programs hold beyond the least that they held.
    pub others: u64,
    /// What the server lost.
    pub leaked: u64,
    /// Most that the caching allocator had live.
    pub live: u64,
    /// What it held of the device beyond that.
    pub cached: u64,
}

impl Layers {
    /// All of them.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.others
            .saturating_add(self.leaked)
            .saturating_add(self.live)
            .saturating_add(self.cached)
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            others: self.others.max(other.others),
            leaked: self.leaked.max(other.leaked),
            live: self.live.max(other.live),
            cached: self.cached.max(other.cached),
        }
    }
}

/// A stretch of time in which nothing else happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Nanoseconds since the server was ready.
    pub from_ns: u64,
    /// Its end; the same for an event.
    pub to_ns: u64,
    /// What was done.
    pub doing: Doing,
    /// Memory that moved, at its most.
    pub layers: Layers,
    /// Bytes free on the rank at the least.
    pub free: u64,
    /// Slots of the pool in use.
    pub used: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// By an allocation that failed, or a scheduler that died.
    Crash(Crash),
    /// By itself: the outcome.
    Over(String),
    /// Nobody knows: the log was cut off or interrupted.
    Cut,
}

/// What failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Crash {
    /// Nanoseconds since the server was ready.
    pub at_ns: u64,
    /// The rank; `None` for the host or the scheduler.
    pub rank: Option<u32>,
    /// The pass that failed.
    pub step: u64,
    /// Its kind: `prefill`, `decode`, `mixed`; empty when the log does not say.
    pub mode: String,
    /// Its new tokens.
    pub tokens: u64,
    /// Its requests.
    pub requests: u64,
    /// Bytes that were asked of the device.
    pub requested: u64,
    /// Bytes that were free.
    pub free: u64,
    /// Bytes that were live in the allocator.
    pub allocated: u64,
    /// The buffer, or what died.
    pub buffer: String,
    /// The engine's words.
    pub message: String,
}

/// A run over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// Name of the scenario.
    pub name: String,
    /// Rank whose memory is shown: the one that failed, or the one with the least free at any time.
    pub rank: u32,
    /// Ranks of the server.
    pub ranks: u32,
    /// Bytes of the rank's device.
    pub capacity: u64,
    /// What does not move while the server runs, in printing order.
    pub fixed: Vec<(Account, u64)>,
    /// Slots of the pool.
    pub pool_tokens: u64,
    /// In the order of time.
    pub points: Vec<Point>,
    /// When the last record was, in nanoseconds.
    pub end_ns: u64,
    /// How it ended.
    pub end: End,
}

impl Timeline {
    /// Reads a log, whole or cut off. `None` when the server never served: a start has no time.
    #[must_use]
    pub fn of(log: &Log) -> Option<Self> {
        read::timeline(log)
    }

    /// Bytes that do not move.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.fixed.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Least that was free at any time, in bytes.
    #[must_use]
    pub fn least_free(&self) -> u64 {
        self.points.iter().map(|point| point.free).min().unwrap_or(0)
    }

    /// Most that the allocator had live at any time, in bytes.
    #[must_use]
    pub fn peak_live(&self) -> u64 {
        self.points.iter().map(|point| point.layers.live).max().unwrap_or(0)
    }

    /// Most slots in use at any time.
    #[must_use]
    pub fn peak_used(&self) -> u64 {
        self.points.iter().map(|point| point.used).max().unwrap_or(0)
    }
}

/// A time as people read it: `340 ms`, `12.4 s`, `3 min 20 s`, `16 d 15 h`; rounded down.
#[must_use]
pub fn time(ns: u64) -> String {
    let ms = ns / 1_000_000;
    match ms {
        0 if ns > 0 => format!("{} us", ns / 1000),
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        120_000..7_200_000 => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
        7_200_000..172_800_000 => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
        _ => format!("{} d {} h", ms / 86_400_000, ms / 3_600_000 % 24),
    }
}

/// GiB with two decimals, without the unit; to the nearest.
fn gib(bytes: u64) -> String {
    let hundredths = (u128::from(bytes) * 100 + (1 << 29)) >> 30;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
