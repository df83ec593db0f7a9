//! Where something stood in what the user gave, and words that remember it.

use std::fmt;

use super::error::printable;

/// Where a word, a value or a mistake stood.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Word number `index` of an argument vector, from 0.
    Token {
        /// Index into the vector as given.
        index: usize,
    },
    /// A position in a pasted text.
    Text {
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// A key of a file given with `--config`.
    File {
        /// Path as typed after `--config`.
        path: String,
        /// Key as it stands in the file; empty for the file as a whole.
        key: String,
        /// Line from 1, where it could be found.
        line: Option<usize>,
    },
    /// A key of a mapping of flags ([`from_flags`](super::from_flags)).
    Key {
        /// Key as given.
        key: String,
    },
    /// The input as a whole.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // People count from 1.
            Self::Token { index } => write!(f, "word {}", index + 1),
            Self::Text { line, column } => write!(f, "{line}:{column}"),
            Self::File { path, key, line } => {
                write!(f, "{}", printable(path))?;
                if let Some(line) = line {
                    write!(f, ":{line}")?;
                }
                if key.is_empty() { Ok(()) } else { write!(f, " (`{}`)", printable(key)) }
            }
            Self::Key { key } => write!(f, "key `{}`", printable(key)),
            Self::Whole => write!(f, "the command"),
        }
    }
}

/// Something read although it does not stand as the engine would take it, or a choice worth saying.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// One sentence.
    pub message: String,
    /// Where.
    pub place: Place,
}

impl Warning {
    pub(crate) fn new(message: impl Into<String>, place: Place) -> Self {
        Self { message: message.into(), place }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, printable(&self.message))
    }
}

/// A word after quoting and expansion.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Word {
    /// The word as a program would receive it.
    pub text: String,
    /// Where its first character stood.
    pub place: Place,
    /// For each byte of `text`, the byte it came from in its source; empty when there is none.
    pub map: Vec<u32>,
    /// The byte of its source at which it starts, quotes included; `None` where it shares an
    /// expansion with other words or has no text as its source.
    pub start: Option<usize>,
    /// The byte behind it, quotes included.
    pub end: Option<usize>,
}

impl Word {
    pub(crate) fn new(text: impl Into<String>, place: Place) -> Self {
        Self { text: text.into(), place, map: Vec::new(), start: None, end: None }
    }

    /// From the first byte to the one behind the last.
    pub(crate) fn span(&self) -> Option<(usize, usize)> {
        Some((self.start?, self.end?)).filter(|(start, end)| start < end)
    }

    /// Turns bytes of the text of `outer` into bytes of the source of `outer`. Bytes that come from
    /// an expansion have none.
    pub(crate) fn lift(&mut self, outer: &Self) {
        let at = |byte: usize| {
            let here = *outer.map.get(byte)?;
            let beside = [byte.checked_sub(1), byte.checked_add(1)];
            let shared = beside.into_iter().flatten().any(|b| outer.map.get(b) == Some(&here));
            (!shared).then_some(here as usize)
        };
        self.start = self.start.and_then(at);
        // The last byte decides; what follows it may already be the closing quote.
        self.end = self.end.and_then(|end| at(end.checked_sub(1)?)).map(|last| last + 1);
        self.map.clear();
    }

    /// The last path component: `/usr/bin/python3` is `python3`.
    pub(crate) fn base_name(&self) -> &str {
        self.text.rsplit('/').next().unwrap_or(&self.text)
    }
}

/// Line starts of a text, for line and column of a byte.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Self { text, starts: std::iter::once(0).chain(newlines).collect() }
    }

    pub(crate) fn place(&self, byte: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= byte);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = self.text.get(start..byte).map_or(0, |s| s.chars().count());
        Place::Text { line, column: before + 1 }
    }
}
