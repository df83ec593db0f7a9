//! Figures that say why: a value with its interval, its kind of evidence, its rule and its inputs.

use crate::units::Bytes;

/// What a figure rests on. Ordered from the firmest to the weakest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tag {
    /// Read from a log, a device or a flag.
    Measured,
    /// Follows from other figures by an exact rule.
    Computed,
    /// Back-solved or fitted on measurements of this or similar machines.
    Calibrated,
    /// General knowledge, unproved here.
    Assumed,
}

impl Tag {
    /// Lower-case name, as printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Computed => "computed",
            Self::Calibrated => "calibrated",
            Self::Assumed => "assumed",
        }
    }
}

/// An amount of memory with the interval that its evidence earns; `low <= mid <= high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// Smallest value that the evidence allows.
    pub low: Bytes,
    /// Best single value.
    pub mid: Bytes,
    /// Largest value that the evidence allows.
    pub high: Bytes,
}

impl Estimate {
    /// Nothing.
    pub const ZERO: Self = Self::exact(Bytes::ZERO);

    /// A value without doubt.
    #[must_use]
    pub const fn exact(value: Bytes) -> Self {
        Self { low: value, mid: value, high: value }
    }

    /// `mid` with an interval; ends are ordered around it.
    #[must_use]
    pub fn new(low: Bytes, mid: Bytes, high: Bytes) -> Self {
        Self { low: low.min(mid), mid, high: high.max(mid) }
    }

    /// Sum of independent accounts, ends added (no cancelling is assumed).
    #[must_use]
    pub fn plus(self, rhs: Self) -> Self {
        Self { low: self.low + rhs.low, mid: self.mid + rhs.mid, high: self.high + rhs.high }
    }

    /// Difference, ends crossed; clamped at zero.
    #[must_use]
    pub fn minus(self, rhs: Self) -> Self {
        Self {
            low: self.low.saturating_sub(rhs.high),
            mid: self.mid.saturating_sub(rhs.mid),
            high: self.high.saturating_sub(rhs.low),
        }
    }

    /// `high - low`.
    #[must_use]
    pub fn width(self) -> Bytes {
        self.high.saturating_sub(self.low)
    }

    /// Whether `low == high`.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.low == self.high
    }
}

/// One input of a derivation, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// Name in the engine's terms.
    pub name: String,
    /// Value with its unit.
    pub value: String,
}

/// How a figure came to be: rule, source and inputs. `--why` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    /// The evidence.
    pub tag: Tag,
    /// The rule in one line, as a formula in the engine's terms.
    pub rule: String,
    /// Project, version and function that the rule restates, or where the number was read.
    pub source: String,
    /// What went in.
    pub inputs: Vec<Input>,
}

impl Why {
    /// A derivation without inputs yet.
    #[must_use]
    pub fn new(tag: Tag, rule: impl Into<String>, source: impl Into<String>) -> Self {
        Self { tag, rule: rule.into(), source: source.into(), inputs: Vec::new() }
    }

    /// Adds one input.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.inputs.push(Input { name: name.into(), value: value.to_string() });
        self
    }
}

/// The value of a named figure.
#[derive(Clone, PartialEq, Debug)]
pub enum FigureValue {
    /// An amount of memory.
    Bytes(Bytes),
    /// Tokens, requests, blocks, ranks.
    Count(u64),
    /// A fraction or ratio that the engine decides by.
    Float(f64),
    /// A name.
    Text(String),
    /// A list of sizes.
    List(Vec<u64>),
}

/// A figure that a user sees: its name in the engine's terms, its value, and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedFigure {
    /// snake_case; the unit last where there is one (`_bytes`), as in JSON.
    pub name: &'static str,
    /// The value.
    pub value: FigureValue,
    /// Its derivation.
    pub why: Why,
}

impl NamedFigure {
    /// A figure with its derivation.
    #[must_use]
    pub const fn new(name: &'static str, value: FigureValue, why: Why) -> Self {
        Self { name, value, why }
    }
}
