//! What a run produced, and whether the claims about it hold.

use crate::{
    path::KeyPath,
    scenario::{
        expect::{Ending, Expect, FIGURES, Test},
        time,
    },
};
use plimsoll_core::{
    pyfloat,
    units::{Bytes, Nanos},
};
use std::{collections::BTreeMap, fmt};

/// Kinds of figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FigureKind {
    /// An amount of memory.
    Bytes,
    /// Tokens, requests, blocks, rows: an integer of -1 or more.
    Count,
    /// A fraction or a ratio.
    Number,
    /// A time.
    Duration,
    /// A word or a name.
    Text,
}

/// One figure.
#[derive(Clone, PartialEq, Debug)]
pub enum Figure {
    /// Bytes.
    Bytes(u64),
    /// Tokens, requests, blocks, rows.
    Count(i64),
    /// A fraction or a ratio.
    Number(f64),
    /// A time.
    Duration(Nanos),
    /// A word or a name.
    Text(String),
}

impl Figure {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> FigureKind {
        match self {
            Self::Bytes(_) => FigureKind::Bytes,
            Self::Count(_) => FigureKind::Count,
            Self::Number(_) => FigureKind::Number,
            Self::Duration(_) => FigureKind::Duration,
            Self::Text(_) => FigureKind::Text,
        }
    }

    /// As a double; exact below 2^53, a time in nanoseconds. A text has none: NaN.
    #[must_use]
    pub const fn as_f64(&self) -> f64 {
        match self {
            Self::Bytes(v) | Self::Duration(Nanos(v)) => *v as f64,
            Self::Count(v) => *v as f64,
            Self::Number(v) => *v,
            Self::Text(_) => f64::NAN,
        }
    }

    /// Order within one kind, of texts that of their characters; `None` across kinds and for NaN.
    fn compare(&self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Count(a), Self::Count(b)) => Some(a.cmp(b)),
            (Self::Number(a), Self::Number(b)) => a.partial_cmp(b),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }

    fn is_within(&self, value: &Self, within: &Self) -> bool {
        match (self, value, within) {
            (Self::Bytes(a), Self::Bytes(b), Self::Bytes(w))
            | (Self::Duration(Nanos(a)), Self::Duration(Nanos(b)), Self::Duration(Nanos(w))) => {
                a.abs_diff(*b) <= *w
            }
            (Self::Count(a), Self::Count(b), Self::Count(w)) => {
                u64::try_from(*w).is_ok_and(|w| a.abs_diff(*b) <= w)
            }
            // Decimal ends are not exact in binary: 2.315 - 2.31 may exceed 0.005 by an ulp.
            (Self::Number(a), Self::Number(b), Self::Number(w)) => {
                (a - b).abs() <= w + 4.0 * f64::EPSILON * a.abs().max(b.abs())
            }
            _ => false,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(v) if *v < 1024 => write!(f, "{v} B"),
            Self::Bytes(v) => write!(f, "{v} B ({})", Bytes(*v)),
            Self::Count(v) => write!(f, "{v}"),
            Self::Number(v) => f.write_str(&pyfloat::repr(*v)),
            Self::Duration(v) => f.write_str(&time::show(*v)),
            Self::Text(v) => f.write_str(v),
        }
    }
}

/// What a run produced: how it ended, and its figures by their names in
/// [`FIGURES`].
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// How the run ended.
    pub ending: Ending,
    /// Stable code of the refusal.
    pub refusal: Option<String>,
    figures: BTreeMap<&'static str, Figure>,
}

/// A figure that no scenario could claim.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("`{name}` is no figure of kind {kind:?} that a scenario can claim")]
pub struct UnknownFigure {
    /// Name that was given.
    pub name: String,
    /// Kind of the value that was given.
    pub kind: FigureKind,
}

impl Outcome {
    /// A run that ended so, without figures yet.
    #[must_use]
    pub const fn ended(ending: Ending) -> Self {
        Self { ending, refusal: None, figures: BTreeMap::new() }
    }

    /// A start that succeeded, without figures yet.
    #[must_use]
    pub const fn started() -> Self {
        Self::ended(Ending::Started)
    }

    /// A start that the machine had no memory for.
    #[must_use]
    pub const fn out_of_memory() -> Self {
        Self::ended(Ending::OutOfMemory)
    }

    /// A start that the engine refused with the stable code `refusal`.
    #[must_use]
    pub fn refused(refusal: impl Into<String>) -> Self {
        Self { ending: Ending::Refused, refusal: Some(refusal.into()), figures: BTreeMap::new() }
    }

    /// Adds or replaces one figure.
    ///
    /// # Errors
    /// When no scenario could claim it: another name or kind than in the list of figures.
    pub fn insert(&mut self, name: &str, figure: Figure) -> Result<(), UnknownFigure> {
        match FIGURES.iter().find(|spec| spec.name == name && spec.kind == figure.kind()) {
            Some(spec) => {
                self.figures.insert(spec.name, figure);
                Ok(())
            }
            None => Err(UnknownFigure { name: name.to_owned(), kind: figure.kind() }),
        }
    }

    /// The figure of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Figure> {
        self.figures.get(name).cloned()
    }

    /// All figures by name.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, &Figure)> + '_ {
        self.figures.iter().map(|(name, figure)| (*name, figure))
    }
}

/// Whether a claim holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// The run produced another value.
    Fails,
    /// The run produced no such value: nothing is proved, so this is an error and no pass.
    NotProduced,
}

/// One claim and what became of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// Path in the scenario, `expect.…`.
    pub path: KeyPath,
    /// What was claimed.
    pub expected: String,
    /// What the run produced; `nothing` when it produced no such value.
    pub got: String,
    /// Whether it holds.
    pub verdict: Verdict,
}

impl Claim {
    /// Whether it holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.verdict == Verdict::Holds
    }
}

/// Compares every claim with what the run produced, in the order of the file.
#[must_use]
pub fn evaluate(expect: &Expect, outcome: &Outcome) -> Vec<Claim> {
    let mut claims = Vec::new();
    if let Some(ending) = expect.outcome {
        let got = Some(outcome.ending.as_str().to_owned());
        claims.push(word("outcome", ending.as_str(), got));
    }
    if let Some(code) = &expect.refusal {
        claims.push(word("refusal", code, outcome.refusal.clone()));
    }
    claims.extend(
        expect
            .figures
            .iter()
            .map(|(spec, test)| figure(spec.name, test, outcome.figures.get(spec.name))),
    );
    claims
}

fn claim_path(name: &str) -> KeyPath {
    KeyPath::of("expect").key(name)
}

fn word(name: &str, expected: &str, got: Option<String>) -> Claim {
    let verdict = match &got {
        None => Verdict::NotProduced,
        Some(got) if got == expected => Verdict::Holds,
        Some(_) => Verdict::Fails,
    };
    Claim {
        path: claim_path(name),
        expected: expected.to_owned(),
        got: got.unwrap_or_else(|| "nothing".to_owned()),
        verdict,
    }
}

fn figure(name: &str, test: &Test, got: Option<&Figure>) -> Claim {
    let verdict = match got {
        None => Verdict::NotProduced,
        Some(got) if holds(test, got) => Verdict::Holds,
        Some(_) => Verdict::Fails,
    };
    Claim {
        path: claim_path(name),
        expected: test.to_string(),
        got: got.map_or_else(|| "nothing".to_owned(), ToString::to_string),
        verdict,
    }
}

fn holds(test: &Test, got: &Figure) -> bool {
    use std::cmp::Ordering;
    let order = |other: &Figure| got.compare(other);
    match test {
        Test::Is(value) => order(value).is_some_and(Ordering::is_eq),
        Test::AnyOf(values) => values.iter().any(|v| order(v).is_some_and(Ordering::is_eq)),
        Test::Contains(part) => matches!(got, Figure::Text(text) if text.contains(part.as_str())),
        Test::Within { value, within } => got.is_within(value, within),
        Test::Between { at_least, at_most } => {
            let above = |low| order(low).is_some_and(Ordering::is_ge);
            let below = |high| order(high).is_some_and(Ordering::is_le);
            at_least.as_ref().is_none_or(above) && at_most.as_ref().is_none_or(below)
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => write!(f, "{value}"),
            Self::AnyOf(values) => {
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { " or " } else { "" })?;
                }
                Ok(())
            }
            Self::Contains(part) => write!(f, "contains {part}"),
            Self::Within { value, within } => write!(f, "{value} ± {within}"),
            Self::Between { at_least: Some(low), at_most: Some(high) } => {
                write!(f, "{low} to {high}")
            }
            Self::Between { at_least: Some(low), at_most: None } => write!(f, "at least {low}"),
            Self::Between { at_least: None, at_most: Some(high) } => write!(f, "at most {high}"),
            Self::Between { at_least: None, at_most: None } => f.write_str("anything"),
        }
    }
}
