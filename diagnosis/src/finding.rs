//! A finding: what is wrong, the lines that show it, the arithmetic, what to set and what it will give.

use plimsoll_ingest::log::Event;

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

impl Evidence {
    /// A line of the log.
    #[must_use]
    pub fn line(event: &Event) -> Self {
        Self { file: event.file, line: event.line, text: event.text.to_string() }
    }

    /// What the launch command says.
    #[must_use]
    pub fn command(text: impl Into<String>) -> Self {
        Self { file: 0, line: 0, text: text.into() }
    }
}

impl Lever {
    /// A flag and which way to move it.
    #[must_use]
    pub fn new(flag: impl Into<String>, change: Move) -> Self {
        Self { flag: flag.into(), change, value: None, gives: None }
    }

    /// The value, as it would be typed.
    #[must_use]
    pub fn to(mut self, value: impl ToString) -> Self {
        self.value = Some(value.to_string());
        self
    }

    /// What it will give.
    #[must_use]
    pub fn gives(mut self, text: impl Into<String>) -> Self {
        self.gives = Some(text.into());
        self
    }
}

/// How a rule writes a finding: what it found, then the rest in the order of the screen.
impl Finding {
    /// A likely error of this code; no value of the fraction is the answer until [`Finding::fraction`] says so.
    #[must_use]
    pub fn new(
        code: &'static str,
        cause: Cause,
        phase: Phase,
        headline: impl Into<String>,
    ) -> Self {
        Self {
            code,
            level: Level::Error,
            cause,
            also: Vec::new(),
            phase,
            confidence: Confidence::Likely,
            weight: 50,
            headline: headline.into(),
            because: String::new(),
            arithmetic: Vec::new(),
            evidence: Vec::new(),
            numbers: Vec::new(),
            fraction: Direction::NoEffect,
            feasible: None,
            help: Vec::new(),
            no_help: Vec::new(),
        }
    }

    /// How bad.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Other causes that the lines allow; the cause itself and repeats are left out.
    #[must_use]
    pub fn also(mut self, causes: &[Cause]) -> Self {
        for &cause in causes {
            if cause != self.cause && !self.also.contains(&cause) {
                self.also.push(cause);
            }
        }
        self
    }

    /// How sure, and how specific the lines are (0 to 100).
    #[must_use]
    pub fn sure(mut self, confidence: Confidence, weight: u8) -> Self {
        self.confidence = confidence;
        self.weight = weight;
        self
    }

    /// Why, a sentence or two.
    #[must_use]
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.because = text.into();
        self
    }

    /// A line of the arithmetic.
    #[must_use]
    pub fn sum(mut self, line: impl Into<String>) -> Self {
        self.arithmetic.push(line.into());
        self
    }

    /// A line that it rests on; one that is already there is not repeated.
    #[must_use]
    pub fn seen(mut self, event: &Event) -> Self {
        let line = Evidence::line(event);
        if !self.evidence.contains(&line) {
            self.evidence.push(line);
        }
        self
    }

    /// What the launch command says.
    #[must_use]
    pub fn command(mut self, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence::command(text));
        self
    }

    /// An integer for machines: bytes, tokens, counts.
    #[must_use]
    pub fn int(mut self, name: &'static str, value: i64) -> Self {
        self.numbers.push(Number { name, value: Value::Int(value) });
        self
    }

    /// A fraction for machines.
    #[must_use]
    pub fn float(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push(Number { name, value: Value::Float(value) });
        self
    }

    /// What to do with the fraction.
    #[must_use]
    pub fn fraction(mut self, direction: Direction) -> Self {
        self.fraction = direction;
        self
    }

    /// Fractions that work, both ends exclusive.
    #[must_use]
    pub fn window(mut self, above: f64, below: f64) -> Self {
        self.feasible = Some((above, below));
        self
    }

    /// A flag to change.
    #[must_use]
    pub fn set(mut self, lever: Lever) -> Self {
        self.help.push(lever);
        self
    }

    /// A flag that will not help; `None` for any change of it.
    #[must_use]
    pub fn useless(
        mut self,
        flag: impl Into<String>,
        change: Option<Move>,
        why: impl Into<String>,
    ) -> Self {
        self.no_help.push(NoHelp { flag: flag.into(), change, why: why.into() });
        self
    }
}
