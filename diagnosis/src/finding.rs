//! A finding: what is wrong, the lines that show it, the arithmetic, what to set and what it will give.

use crate::cause::{Cause, Confidence, Direction, Level, Move, Phase};

/// A line that a finding rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Index of the file.
    pub file: u16,
    /// Line, from 1; 0 stands for the launch command.
    pub line: u64,
    /// The line, redacted.
    pub text: String,
}

/// A flag to change.
#[derive(Clone, PartialEq, Debug)]
pub struct Lever {
    /// The flag, environment variable or setting, in the engine's spelling.
    pub flag: String,
    /// Which way.
    pub change: Move,
    /// The value, as it would be typed; `None` when the log cannot give one.
    pub value: Option<String>,
    /// What it will give: tokens, GiB left, in one phrase.
    pub gives: Option<String>,
}

/// A flag that people reach for and that will not help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoHelp {
    /// The flag.
    pub flag: String,
    /// The direction that does not help; `None` for any.
    pub change: Option<Move>,
    /// Why not, in one sentence.
    pub why: String,
}

/// A number that matters, with its unit in its name.
#[derive(Clone, PartialEq, Debug)]
pub struct Number {
    /// snake_case, unit last: `free_after_graphs_bytes`, `pool_tokens`, `mem_fraction_static`.
    pub name: &'static str,
    /// The value.
    pub value: Value,
}

/// A value: integers for amounts, doubles for fractions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// Bytes, tokens, counts.
    Int(i64),
    /// Fractions.
    Float(f64),
}

/// What a rule found.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// Stable code: an entry of [`crate::codes`].
    pub code: &'static str,
    /// How bad.
    pub level: Level,
    /// Cause.
    pub cause: Cause,
    /// Other causes that the same lines allow, most likely first.
    pub also: Vec<Cause>,
    /// When it happened.
    pub phase: Phase,
    /// How sure.
    pub confidence: Confidence,
    /// How specific the lines are: of two findings of the same level the larger comes first. 0 to 100.
    pub weight: u8,
    /// One sentence: what happened, with the number that was too small.
    pub headline: String,
    /// Why, a sentence or two; empty when the headline says it all.
    pub because: String,
    /// The arithmetic, a line each, closing to the printed digits.
    pub arithmetic: Vec<String>,
    /// The lines.
    pub evidence: Vec<Evidence>,
    /// The numbers of the arithmetic, for machines.
    pub numbers: Vec<Number>,
    /// What to do with the fraction.
    pub fraction: Direction,
    /// Fractions that work, both ends exclusive, where they can be computed.
    pub feasible: Option<(f64, f64)>,
    /// What to set, best first.
    pub help: Vec<Lever>,
    /// What will not help.
    pub no_help: Vec<NoHelp>,
}
