//! What was planned against what the log shows, phase by phase, and where reality first left the plan.

mod logged_side;
mod planned;
mod says;

use crate::Case;
pub use planned::PlanError;
use plimsoll_core::{
    pyfloat,
    units::{Bytes, group_thousands},
};
use std::fmt;

/// A file to compare with: its name in messages, and its text.
#[derive(Clone, Copy, Debug)]
pub struct PlanFile<'a> {
    /// Name.
    pub name: &'a str,
    /// Text: the JSON of `plan`, a scenario, or the decision log of `run`.
    pub text: &'a str,
}

/// The comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// What the file is: `plan`, `scenario`, `recording`.
    pub kind: &'static str,
    /// One row a figure, in the order of a start; figures that neither side has are left out.
    pub rows: Vec<Row>,
    /// The first row outside of the plan, with what that says; `None` where all that both sides have agrees.
    pub departure: Option<Departure>,
}

/// Phase of a start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The launch and its settings.
    Launch,
    /// Free memory before loading.
    BeforeLoad,
    /// Weights.
    AfterLoad,
    /// The pool.
    Pool,
    /// Graphs and workspaces.
    Graphs,
    /// What is left, and how it ended.
    End,
}

impl Stage {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::BeforeLoad => "before_load",
            Self::AfterLoad => "after_load",
            Self::Pool => "pool",
            Self::Graphs => "graphs",
            Self::End => "end",
        }
    }
}

/// A figure of either side.
#[derive(Clone, PartialEq, Debug)]
pub enum Quantity {
    /// Bytes; below zero where a budget is.
    Bytes(i64),
    /// Tokens, requests, blocks, ranks.
    Count(i64),
    /// A fraction or a ratio.
    Number(f64),
    /// A release, a name, an ending.
    Text(String),
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                let sign = if *bytes < 0 { "-" } else { "" };
                write!(f, "{sign}{}", Bytes(bytes.unsigned_abs()))
            }
            Self::Count(n) => {
                let sign = if *n < 0 { "-" } else { "" };
                write!(f, "{sign}{}", group_thousands(n.unsigned_abs()))
            }
            Self::Number(x) => f.write_str(&pyfloat::repr(*x)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Quantity {
    const fn number(&self) -> Option<f64> {
        match self {
            Self::Bytes(n) | Self::Count(n) => Some(*n as f64),
            Self::Number(x) => Some(*x),
            Self::Text(_) => None,
        }
    }

    /// The same kind of figure with another value.
    fn like(&self, value: f64) -> Option<Self> {
        Some(match self {
            Self::Bytes(_) => Self::Bytes(value.round() as i64),
            Self::Count(_) => Self::Count(value.round() as i64),
            Self::Number(_) => Self::Number(value),
            Self::Text(_) => return None,
        })
    }
}

/// A figure and the interval it may have: what is uncertain of a plan, or the rounding of a print.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// Lowest.
    pub low: Quantity,
    /// As planned, or as printed.
    pub mid: Quantity,
    /// Highest.
    pub high: Quantity,
}

impl Span {
    fn exact(value: Quantity) -> Self {
        Self { low: value.clone(), mid: value.clone(), high: value }
    }

    /// Whether the two can be the same figure.
    fn meets(&self, other: &Self) -> bool {
        let ends = |span: &Self| Some((span.low.number()?, span.high.number()?));
        match (ends(self), ends(other)) {
            (Some((low, high)), Some((least, most))) => least <= high && low <= most,
            _ => self.mid == other.mid,
        }
    }
}

/// A figure of the log with its place.
#[derive(Clone, PartialEq, Debug)]
pub struct FromLog {
    /// Its value and its rounding.
    pub span: Span,
    /// `line 12`; `the command` for what no line prints.
    pub place: String,
}

/// Whether the log lies within the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agrees {
    /// Within the plan's interval.
    Within,
    /// Outside.
    Outside,
    /// One side does not have it.
    Unknown,
}

impl Agrees {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Outside => "outside",
            Self::Unknown => "unknown",
        }
    }
}

/// One figure, planned and logged.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// snake_case name for machines: `free_before_load`, `weights`, `pool_tokens` …
    pub name: &'static str,
    /// Phase.
    pub stage: Stage,
    /// Planned.
    pub planned: Option<Span>,
    /// Logged.
    pub logged: Option<FromLog>,
    /// Logged less planned, for figures with a value.
    pub difference: Option<Quantity>,
    /// Whether they agree.
    pub agrees: Agrees,
}

impl Row {
    fn new(
        name: &'static str,
        stage: Stage,
        planned: Option<Span>,
        logged: Option<FromLog>,
    ) -> Self {
        let both = planned.as_ref().zip(logged.as_ref());
        let agrees = both.map_or(Agrees::Unknown, |(planned, logged)| {
            if planned.meets(&logged.span) { Agrees::Within } else { Agrees::Outside }
        });
        let difference = both.and_then(|(planned, logged)| {
            let (a, b) = (planned.mid.number()?, logged.span.mid.number()?);
            logged.span.mid.like(b - a)
        });
        Self { name, stage, planned, logged, difference, agrees }
    }
}

/// Where reality left the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Departure {
    /// The row.
    pub name: &'static str,
    /// Its phase.
    pub stage: Stage,
    /// What it says, in a sentence.
    pub says: String,
}

/// Compares the last start of a log with a plan.
///
/// # Errors
///
/// [`PlanError`]: a file that is none of the three, of another schema, or broken.
pub fn against(case: &Case, file: &PlanFile<'_>) -> Result<Comparison, PlanError> {
    let mut planned = planned::read(file)?;
    let mut logged = logged_side::read(case);
    let mut rows = Vec::new();
    for (name, stage) in ROWS {
        let (planned, logged) = (planned.spans.remove(name), logged.remove(name));
        if planned.is_some() || logged.is_some() {
            rows.push(Row::new(name, *stage, planned, logged));
        }
    }
    let first = rows.iter().find(|row| row.agrees == Agrees::Outside);
    let departure =
        first.map(|row| Departure { name: row.name, stage: row.stage, says: says::of(row, &rows) });
    Ok(Comparison { kind: planned.kind, rows, departure })
}

/// Every row in the order of a start. A cause stands before what follows from it.
const ROWS: &[(&str, Stage)] = &[
    ("engine", Stage::Launch),
    ("version", Stage::Launch),
    ("model", Stage::Launch),
    ("ranks", Stage::Launch),
    ("fraction", Stage::Launch),
    ("context_len", Stage::Launch),
    ("chunked_prefill_size", Stage::Launch),
    ("total", Stage::BeforeLoad),
    ("free_before_load", Stage::BeforeLoad),
    ("weights", Stage::AfterLoad),
    ("free_after_load", Stage::AfterLoad),
    ("kv_bytes_per_token", Stage::Pool),
    ("available_kv_cache_memory", Stage::Pool),
    ("pool_tokens", Stage::Pool),
    ("num_gpu_blocks", Stage::Pool),
    ("max_running_requests", Stage::Pool),
    ("free_after_pool", Stage::Pool),
    ("graphs", Stage::Graphs),
    ("free_after_graphs", Stage::End),
    ("outcome", Stage::End),
];
