//! The account of every byte of one rank at one stage of its start, as far as the lines give it.

use plimsoll_core::memory::ledger::Account;
use plimsoll_ingest::log::Amount;

/// A line of the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Index of the file.
    pub file: u16,
    /// Line, from 1.
    pub line: u64,
}

/// Where a server stands when a ledger is drawn up, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Before the weights.
    BeforeLoad,
    /// Weights are there.
    AfterLoad,
    /// Pools and tables are there.
    AfterPools,
    /// Graphs are captured.
    AfterGraphs,
    /// The scheduler starts.
    Ready,
    /// The allocation that failed.
    Death,
}

impl Stage {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeLoad => "before_load",
            Self::AfterLoad => "after_load",
            Self::AfterPools => "after_pools",
            Self::AfterGraphs => "after_graphs",
            Self::Ready => "ready",
            Self::Death => "death",
        }
    }

    /// In words, after "free" or "left".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::BeforeLoad => "before loading",
            Self::AfterLoad => "after loading",
            Self::AfterPools => "after the pools",
            Self::AfterGraphs => "after graph capture",
            Self::Ready => "when the server was ready",
            Self::Death => "when the allocation failed",
        }
    }
}

/// What an amount of the ledger rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A line prints it.
    Printed(Place),
    /// It follows from other lines or an exact rule of the engine: the arithmetic.
    Solved(String),
    /// Only a bound follows: it is at most this.
    AtMost(String),
    /// No line gives it, and it does not follow.
    NotPrinted,
}

/// One account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Whose memory it is.
    pub account: Account,
    /// What of the account, where its name says too little (`LoRA`, `sliding-window pool`).
    pub detail: Option<&'static str>,
    /// How much; `None` when it is not printed and does not follow.
    pub bytes: Option<Amount>,
    /// Where it is from.
    pub source: Source,
}

impl Row {
    /// A row without detail.
    #[must_use]
    pub const fn new(account: Account, bytes: Amount, source: Source) -> Self {
        Self { account, detail: None, bytes: Some(bytes), source }
    }

    /// A row that no line gives.
    #[must_use]
    pub const fn unknown(account: Account) -> Self {
        Self { account, detail: None, bytes: None, source: Source::NotPrinted }
    }
}

/// What the rows of a ledger add up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// The memory of the device.
    Capacity,
    /// What was free before the weights loaded: context and other programs stand outside.
    FreeBeforeLoad,
    /// What vLLM's utilization asks for.
    Budget,
    /// What a machine with one memory has available while the pool is sized.
    Available,
}

impl Whole {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::FreeBeforeLoad => "free_before_load",
            Self::Budget => "budget",
            Self::Available => "available",
        }
    }
}

/// One stage of one rank. The rows, what is free and what is unaccounted add up to the whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageLedger {
    /// When.
    pub stage: Stage,
    /// What the rows add up to.
    pub whole: Whole,
    /// How much that is.
    pub bytes: Amount,
    /// The accounts in printing order; what is free last.
    pub rows: Vec<Row>,
    /// Whole minus all rows, before an `unaccounted` row took it up: how well the lines close. `None` when
    /// a row is missing, so that nothing can be checked.
    pub closes_to: Option<Amount>,
}

impl StageLedger {
    /// The rows of an account, added up; `None` when there is none or one of them is not known.
    #[must_use]
    pub fn sum(&self, account: Account) -> Option<Amount> {
        let mut rows = self.rows.iter().filter(|row| row.account == account).peekable();
        rows.peek()?;
        rows.try_fold(Amount::default(), |sum, row| row.bytes.map(|bytes| sum + bytes))
    }
}

/// Draws up a stage: a single missing row is solved from the others, what is over becomes `unaccounted`.
#[must_use]
pub(super) fn close(stage: Stage, whole: (Whole, Amount), mut rows: Vec<Row>) -> StageLedger {
    let (whole, bytes) = whole;
    let known = rows.iter().filter_map(|row| row.bytes);
    let rest = known.fold(bytes, |rest, taken| rest - taken);
    let mut missing = rows.iter_mut().filter(|row| row.bytes.is_none());
    let (first, more) = (missing.next(), missing.next().is_some());
    let mut closes_to = None;
    match first {
        Some(row) if !more => {
            row.bytes = Some(rest);
            row.source = Source::Solved("the whole less all other rows".to_owned());
        }
        Some(_) => rows
            .push(Row { detail: Some("of the rows above without a figure"), ..unaccounted(rest) }),
        None => {
            closes_to = Some(rest);
            // What rounding explains is no account.
            if rest.least() > 0 || rest.most() < 0 {
                rows.push(unaccounted(rest));
            }
        }
    }
    rows.sort_by_key(|row| row.account);
    StageLedger { stage, whole, bytes, rows, closes_to }
}

fn unaccounted(rest: Amount) -> Row {
    Row::new(Account::Unaccounted, rest, Source::Solved("the whole less all other rows".to_owned()))
}
