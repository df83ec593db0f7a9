//! Mistakes in a launch command, each with its place, its value, what is allowed and a near name.

use std::fmt;

use super::place::Place;

/// What kind of mistake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ErrorCode {
    /// The text starts neither SGLang nor vLLM.
    NoServer,
    /// A quote without its end.
    OpenQuote,
    /// More text than a command can be.
    TooLong,
    /// A version that is no release.
    BadVersion,
    /// A flag whose value is missing.
    MissingValue,
    /// A flag that takes no value was given one.
    UnexpectedValue,
    /// A value that is not of the flag's type.
    WrongType,
    /// A number outside its range.
    OutOfRange,
    /// A word that is not among the flag's values.
    NotAChoice,
    /// An abbreviation of several flags.
    Ambiguous,
    /// Values that cannot stand together.
    Inconsistent,
    /// A `--config` file that cannot be read or is not a mapping.
    ConfigFile,
    /// A variable whose value cannot be read.
    BadVariable,
}

/// One mistake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchError {
    /// Its kind.
    pub code: ErrorCode,
    /// Flag or variable as typed.
    pub flag: Option<String>,
    /// Value as typed.
    pub value: Option<String>,
    /// What is allowed, in words.
    pub allowed: String,
    /// What was probably meant.
    pub near: Option<String>,
    /// Where it stood.
    pub place: Place,
}

impl LaunchError {
    pub(crate) fn new(code: ErrorCode, allowed: impl Into<String>, place: Place) -> Self {
        Self { code, flag: None, value: None, allowed: allowed.into(), near: None, place }
    }

    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flag = Some(flag.into());
        self
    }

    pub(crate) fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    pub(crate) fn near(mut self, near: Option<&str>) -> Self {
        self.near = near.map(str::to_owned);
        self
    }
}

impl fmt::Display for LaunchError {
    /// `2:14: --mem-fraction-static 1.2: must be above 0 and at most 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if let Some(flag) = &self.flag {
            write!(f, "{}", shown(flag))?;
            if let Some(value) = &self.value {
                write!(f, " {}", shown(value))?;
            }
            write!(f, ": ")?;
        } else if let Some(value) = &self.value {
            write!(f, "{}: ", shown(value))?;
        }
        write!(f, "{}", printable(&self.allowed))?;
        match &self.near {
            Some(near) => write!(f, "; did you mean `{}`?", printable(near)),
            None => Ok(()),
        }
    }
}

/// A text for a message, its control characters escaped: they would move the cursor of a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    out
}

/// A value for a message: escaped, at most 80 characters.
fn shown(value: &str) -> String {
    let escaped: String = value.chars().flat_map(char::escape_debug).collect();
    if escaped.chars().count() <= 80 {
        return escaped;
    }
    let head: String = escaped.chars().take(77).collect();
    format!("{head}…")
}

impl std::error::Error for LaunchError {}

/// Every mistake of one command, in the order of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchErrors {
    /// At least one.
    pub errors: Vec<LaunchError>,
}

impl LaunchErrors {
    pub(crate) fn one(error: LaunchError) -> Self {
        Self { errors: vec![error] }
    }
}

impl fmt::Display for LaunchErrors {
    /// One mistake a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LaunchErrors {}
