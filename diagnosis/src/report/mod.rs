//! What `diagnose` shows: the verdict, the findings, the account of every byte, the capacity.

mod capacity;
mod facts;
mod missing;

use std::fmt;

use plimsoll_ingest::log::{Amount, Rank, Sglang, Vllm};

pub(crate) use missing::missing;

use crate::{
    Case, Finding, Level,
    reconstruct::{AtFraction, RankLedger},
    rules,
    study::Study,
};

/// The whole answer to a log.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// One sentence: what happened, with the number that decided.
    pub verdict: String,
    /// All findings, worst and most specific first; the first one is the answer.
    pub findings: Vec<Finding>,
    /// The ledgers of every rank, the one that decides first.
    pub ledgers: Vec<RankLedger>,
    /// What the pool holds against what was used, and what other fractions would give.
    pub capacity: Option<Capacity>,
    /// What to wait for and look at before the server is started again.
    pub relaunch: Option<Relaunch>,
    /// Version, devices, model, flags: what the answer is about, in printing order.
    pub facts: Vec<Fact>,
    /// What the log does not have and would have helped, a sentence each.
    pub missing: Vec<String>,
}

impl Report {
    /// The level of the worst finding; decides the exit code: 1 for an error, else 0.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        self.findings.iter().map(|finding| finding.level).max()
    }
}

/// A fact about the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// snake_case: `server`, `version`, `device`, `ranks`, `model`, or the name of an argument.
    pub name: String,
    /// The value, as printed or typed.
    pub value: String,
    /// Where it is from: `log`, `command`, `line 12`, `assumed`.
    pub source: String,
}

/// Held against used.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Capacity {
    /// Token slots of the pool.
    pub pool_tokens: Option<u64>,
    /// Its bytes on one rank.
    pub pool: Option<Amount>,
    /// Largest share of the pool in use, 0 to 1.
    pub peak_usage: Option<f64>,
    /// Most tokens held at once.
    pub peak_tokens: Option<u64>,
    /// Most requests at once.
    pub peak_running: Option<u64>,
    /// Largest prefill pass, new tokens.
    pub largest_prefill: Option<u64>,
    /// Requests thrown out of the pool.
    pub retractions: u64,
    /// Free when the server was ready.
    pub left: Option<Amount>,
    /// What the heaviest pass of plain requests needs, where the model is known.
    pub need: Option<Amount>,
    /// The flag that moves the pool.
    pub flag: Option<&'static str>,
    /// The fraction in force.
    pub fraction: Option<f64>,
    /// Below it there is no pool.
    pub floor: Option<f64>,
    /// Above it the heaviest pass does not fit.
    pub ceiling: Option<f64>,
    /// What the next 0.02 would give.
    pub next: Option<AtFraction>,
    /// Whether the operating rules allow to raise the fraction.
    pub raising: Raising,
}

/// Whether to raise: only when the pool is full and requests are thrown out of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Raising {
    /// The log does not say how full the pool gets.
    #[default]
    Unknown,
    /// The pool is never full: a larger one buys nothing.
    NoReason,
    /// Full, but no request is thrown out: requests wait, none is computed twice.
    FullOnly,
    /// Full, and requests are thrown out: in steps of 0.02, as far as the ceiling.
    Allowed,
}

impl Raising {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NoReason => "no_reason",
            Self::FullOnly => "full_only",
            Self::Allowed => "allowed",
        }
    }
}

/// Before the server is started again.
#[derive(Clone, PartialEq, Debug)]
pub struct Relaunch {
    /// Free memory to wait for on each device.
    pub baseline: Amount,
    /// Line of the log that prints it.
    pub line: u64,
    /// Ranks of the server, one device each.
    pub ranks: Vec<Rank>,
}

impl fmt::Display for Relaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wait until {} are free again on every device of the server", self.baseline)
    }
}

/// Diagnoses a log: reads nothing but the case, except model files where [`crate::Asked::places`] names them.
#[must_use]
pub fn diagnose(case: &Case) -> Report {
    let study = Study::of(case);
    let findings = rules::of_study(&study);
    let verdict = findings.first().map_or_else(
        || "nothing in this log says what happened to memory".to_owned(),
        |finding| finding.headline.clone(),
    );
    Report {
        verdict,
        findings,
        capacity: capacity::capacity(&study),
        relaunch: relaunch(case),
        facts: facts::facts(&study),
        missing: missing(case, study.rank()),
        ledgers: study.ledgers,
    }
}

/// The baseline is what the last start found free before its weights.
fn relaunch(case: &Case) -> Option<Relaunch> {
    // Once a pool stands, what loads is a draft.
    let target = case.sglang().take_while(|(_, line)| !matches!(line, Sglang::PoolEnd { .. }));
    let readings = target.filter_map(|(event, line)| match line {
        Sglang::LoadBegin { avail } => Some((event, *avail)),
        _ => None,
    });
    let mut readings = readings.chain(case.vllm().filter_map(|(event, line)| match line {
        Vllm::FreeAtStart { free, .. } => Some((event, *free)),
        _ => None,
    }));
    let (event, baseline) = readings.next()?;
    let rest = readings.map(|(event, _)| event.rank);
    let mut ranks: Vec<Rank> = std::iter::once(event.rank).chain(rest).collect();
    ranks.sort_unstable();
    ranks.dedup();
    Some(Relaunch { baseline, line: event.line, ranks })
}
