//! Who held which memory at one moment of a run, read from its log.

use crate::{
    accounts::{Accounts, RankAccounts, number},
    record::Record,
    wire::Log,
};
use std::{fmt, str::FromStr};

/// A moment of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// When the server was ready.
    Ready,
    /// After the pass of that number, from 0.
    Step(u64),
    /// When an allocation failed, or the scheduler died.
    Crash,
    /// After the last record.
    End,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("when ready"),
            Self::Step(step) => write!(f, "after step {step}"),
            Self::Crash => f.write_str("at the crash"),
            Self::End => f.write_str("at the end"),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    /// `ready`, `crash`, `end`, or the number of a step.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "ready" => Ok(Self::Ready),
            "crash" => Ok(Self::Crash),
            "end" => Ok(Self::End),
            number => number.parse().map(Self::Step).map_err(|_| {
                format!("`{text}` is no moment; give a step's number, `ready`, `crash` or `end`")
            }),
        }
    }
}

/// Use of the pool and the queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolUse {
    /// Slots of the pool.
    pub pool: u64,
    /// Slots in use.
    pub used: u64,
    /// Slots of the prefix cache that nobody uses.
    pub evictable: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// The accounts of every rank at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerAt {
    /// Which.
    pub moment: Moment,
    /// The last pass that was over, if any.
    pub step: Option<u64>,
    /// Nanoseconds since the server was ready; `None` before.
    pub at_ns: Option<u64>,
    /// In rank order.
    pub ranks: Vec<RankAccounts>,
    /// After the last pass, with what arrived since; `None` before the first.
    pub pool: Option<PoolUse>,
}

/// A moment that the log does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoMoment {
    /// No such step.
    #[error("there is no step {step}: {}", match last {
        Some(last) => format!("the last is step {last}"),
        None => "the log has none".to_owned(),
    })]
    Step {
        /// Asked for.
        step: u64,
        /// Last step of the log.
        last: Option<u64>,
    },
    /// Nothing failed.
    #[error("nothing failed in this run")]
    Crash,
    /// The server never was ready.
    #[error("the server never was ready")]
    Ready,
}

#[derive(Default)]
struct Reader {
    accounts: Accounts,
    step: Option<u64>,
    at_ns: Option<u64>,
    pool_tokens: u64,
    pool: Option<PoolUse>,
}

impl Reader {
    fn take(&mut self, record: &Record) {
        self.accounts.take(record);
        if record.kind == "serving_started" {
            self.at_ns = Some(0);
            self.pool_tokens = number(record, "pool_tokens").unwrap_or(0);
        }
        match (record.kind.as_str(), &mut self.pool) {
            ("request_arrived", Some(pool)) => pool.waiting += 1,
            ("request_refused", Some(pool)) => pool.waiting = pool.waiting.saturating_sub(1),
            _ => {}
        }
        let at = number(record, "at_ns");
        let lasted = number(record, "elapsed_ns").unwrap_or(0);
        self.at_ns = self.at_ns.max(at.map(|at| at.saturating_add(lasted)));
        if let Some(last) = last_step(record) {
            self.step = Some(last);
            let count = |name: &str| number(record, name).unwrap_or(0);
            self.pool = Some(PoolUse {
                pool: self.pool_tokens,
                used: count("used_tokens"),
                evictable: count("evictable_tokens"),
                running: count("running"),
                waiting: count("waiting"),
            });
        }
    }

    /// What the end says of the pool and the queues when the failure came.
    fn died(&mut self, rest: &[Record]) {
        let end = rest.iter().find(|record| record.kind == "run_ended");
        let Some((end, pool)) = end.zip(self.pool.as_mut()) else { return };
        let count = |name: &str, before: u64| number(end, name).unwrap_or(before);
        pool.used = count("used_tokens", pool.used);
        pool.running = count("running", pool.running);
        pool.waiting = count("waiting", pool.waiting);
    }

    fn at(self, moment: Moment) -> LedgerAt {
        let Self { accounts, step, at_ns, pool, .. } = self;
        LedgerAt { moment, step, at_ns, ranks: accounts.ranks().to_vec(), pool }
    }
}

/// The last step of a record of passes.
fn last_step(record: &Record) -> Option<u64> {
    match record.kind.as_str() {
        "step" => number(record, "step"),
        "decode_run" => {
            let steps = number(record, "steps")?.checked_sub(1)?;
            number(record, "first_step")?.checked_add(steps)
        }
        _ => None,
    }
}

/// The accounts at a moment. A step that failed is the crash; a step in a run of decode passes has the
/// state after that run, in which no memory moved.
///
/// # Errors
///
/// [`NoMoment`] when the log does not have it.
pub fn ledger_at(log: &Log, moment: Moment) -> Result<LedgerAt, NoMoment> {
    let mut reader = Reader::default();
    for (index, record) in log.records.iter().enumerate() {
        reader.take(record);
        let here = match moment {
            Moment::Ready => record.kind == "ready",
            Moment::Crash => is_failure(record),
            Moment::Step(step) => {
                last_step(record).is_some_and(|last| last >= step)
                    || (is_failure(record) && number(record, "step") == Some(step))
            }
            Moment::End => false,
        };
        if here {
            if is_failure(record) {
                reader.died(&log.records[index..]);
            }
            return Ok(reader.at(moment));
        }
    }
    match moment {
        Moment::End => Ok(reader.at(moment)),
        Moment::Ready => Err(NoMoment::Ready),
        Moment::Crash => Err(NoMoment::Crash),
        Moment::Step(step) => Err(NoMoment::Step { step, last: reader.step }),
    }
}

fn is_failure(record: &Record) -> bool {
    matches!(record.kind.as_str(), "out_of_memory" | "scheduler_fatal" | "device_lost")
}
