//! What is wrong with a row, and what becomes of rows that cannot be used.

use std::fmt;

/// Lines of dropped rows that are named.
const NAMED_LINES: usize = 3;
/// Longest part of a value that is shown, characters.
const SHOWN: usize = 60;

/// A row that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRow {
    /// Line of the file, from 1; in a list that is not written line by line, the number of the element.
    pub line: u64,
    /// Column in characters, from 1, where it is known.
    pub column: Option<u64>,
    /// Name of the field.
    pub field: String,
    /// What stands there.
    pub value: String,
    /// What is allowed.
    pub expected: String,
}

impl BadRow {
    pub(super) fn new(field: &str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        let value = shown(&value.to_string());
        Self { line: 0, column: None, field: shown(field), value, expected: expected.into() }
    }

    pub(super) fn missing(field: &str, expected: impl Into<String>) -> Self {
        Self::new(field, "nothing", expected)
    }

    pub(super) const fn at(mut self, line: u64, column: Option<u64>) -> Self {
        self.line = line;
        if self.column.is_none() {
            self.column = column;
        }
        self
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": `{}` is `{}`; expected {}", self.field, self.value, self.expected)
    }
}

/// At most so many characters, on one line.
pub(super) fn shown(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(SHOWN).map(clean).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Why a file cannot be read as a workload.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// No known format.
    #[error("{0}")]
    Format(String),
    /// A row that cannot be used, where every row must be.
    #[error("{0}")]
    Row(BadRow),
    /// Something about the file as a whole.
    #[error("{0}")]
    File(String),
}

/// Rows that were left out for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// Lines of the first few, from 1.
    pub lines: Vec<u64>,
    /// The first one in full, where something in it cannot be read.
    pub first: Option<BadRow>,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.lines.iter().map(u64::to_string).collect();
        let more = if self.count > self.lines.len() as u64 { ", …" } else { "" };
        let (rows, of) = if self.count == 1 { ("row", "line") } else { ("rows", "lines") };
        write!(
            f,
            "{} {rows} left out: {} ({of} {}{more}",
            self.count,
            self.reason,
            lines.join(", ")
        )?;
        match &self.first {
            Some(first) => write!(f, "; {first})"),
            None => f.write_str(")"),
        }
    }
}

/// Collects what is left out; where every row must be good the first bad one is the end.
#[derive(Debug, Default)]
pub(super) struct Drops {
    strict: bool,
    list: Vec<Dropped>,
}

impl Drops {
    pub(super) const fn new(strict: bool) -> Self {
        Self { strict, list: Vec::new() }
    }

    /// A row that something is wrong with.
    pub(super) fn bad(&mut self, row: BadRow) -> Result<(), ImportError> {
        if self.strict {
            return Err(ImportError::Row(row));
        }
        let line = row.line;
        self.count("they cannot be read", line, Some(row));
        Ok(())
    }

    /// A row that is right and not wanted.
    pub(super) fn unwanted(&mut self, reason: &str, line: u64) {
        self.count(reason, line, None);
    }

    fn count(&mut self, reason: &str, line: u64, row: Option<BadRow>) {
        let at = match self.list.iter().position(|dropped| dropped.reason == reason) {
            Some(at) => at,
            None => {
                let reason = reason.to_owned();
                self.list.push(Dropped { reason, count: 0, lines: Vec::new(), first: row });
                self.list.len() - 1
            }
        };
        if let Some(dropped) = self.list.get_mut(at) {
            dropped.count += 1;
            if dropped.lines.len() < NAMED_LINES {
                dropped.lines.push(line);
            }
        }
    }

    pub(super) fn into_list(self) -> Vec<Dropped> {
        self.list
    }
}
