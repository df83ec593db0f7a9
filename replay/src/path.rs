//! Paths of keys in a scenario: `machine.readings.weights[3].value`.

use std::{fmt, str::FromStr};

/// One step down: into a mapping by key, into a list by position.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// Key of a mapping.
    Key(String),
    /// Position in a list, from 0.
    Index(usize),
}

/// A path from the root of a file to a key or value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct KeyPath(pub Vec<Step>);

/// A text that is not a path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` is not a path of keys: {why}; write for example `machine.readings.weights` or `events[0].rank`"
)]
pub struct PathError {
    /// As written.
    pub text: String,
    /// What is wrong.
    pub why: &'static str,
}

impl KeyPath {
    /// The file as a whole.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// `path` of plain keys, split at points.
    #[must_use]
    pub fn of(path: &str) -> Self {
        Self(path.split('.').map(|key| Step::Key(key.to_owned())).collect())
    }

    /// One key further down.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    /// One list position further down.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Whether `self` is `prefix` or lies below it.
    #[must_use]
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// The path without its last step; `None` at the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.split_last().map(|(_, rest)| Self(rest.to_vec()))
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/'))
}

impl fmt::Display for KeyPath {
    /// Keys with other characters than letters, digits, `_`, `-` and `/` are quoted; the root is `.`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(n) => write!(f, "[{n}]")?,
                Step::Key(key) => {
                    if i > 0 {
                        f.write_str(".")?;
                    }
                    if is_plain(key) { f.write_str(key)? } else { write!(f, "\"{key}\"")? }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for KeyPath {
    type Err = PathError;

    /// Keys with points between them, list positions as `[0]`, other keys in double quotes.
    fn from_str(text: &str) -> Result<Self, PathError> {
        let bad = |why| PathError { text: text.to_owned(), why };
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            if let Some(tail) = rest.strip_prefix('"') {
                let (key, tail) =
                    tail.split_once('"').ok_or_else(|| bad("a quote is left open"))?;
                steps.push(Step::Key(key.to_owned()));
                rest = tail;
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let (key, tail) = rest.split_at(end);
                if key.is_empty() {
                    return Err(bad("a key is empty"));
                }
                steps.push(Step::Key(key.to_owned()));
                rest = tail;
            }
            while let Some(tail) = rest.strip_prefix('[') {
                let (index, tail) =
                    tail.split_once(']').ok_or_else(|| bad("a bracket is left open"))?;
                let index = index.parse().map_err(|_| bad("a list position is not a number"))?;
                steps.push(Step::Index(index));
                rest = tail;
            }
            match rest.strip_prefix('.') {
                Some(tail) => rest = tail,
                None if rest.is_empty() => return Ok(Self(steps)),
                None => return Err(bad("a point is missing")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_and_print_the_same() {
        for text in
            ["machine.readings.weights", "events[0].rank", "engine.flags.\"a.b\"", "a[1][2].b-c"]
        {
            assert_eq!(text.parse::<KeyPath>().unwrap().to_string(), text);
        }
        for text in ["", "a..b", "a[x]", "a[1", "\"a", "a\"b\"[0]c", ".a", "a."] {
            let parsed = text.parse::<KeyPath>();
            assert!(parsed.is_err() || text == "a\"b\"[0]c", "{text}: {parsed:?}");
        }
        assert!("a[0]c".parse::<KeyPath>().is_err());
    }
}
