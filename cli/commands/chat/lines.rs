//! Questions, a line each: from stdin, or from what a host program gave.

use crate::{exit::Failure, output::Output};
use std::{
    io::{self, BufRead as _, IsTerminal as _},
    sync::Arc,
};

/// Longest question.
const LONGEST: u64 = 1 << 20;

/// Where lines come from.
pub enum Lines {
    /// Stdin of the process; whether someone types there.
    Stdin(bool),
    /// A text, and how far it was read.
    Given(Arc<[u8]>, usize),
}

impl Lines {
    /// Those of this call. A host program that gave none is as an empty input.
    pub fn of(output: &Output) -> Self {
        match output.host() {
            None => Self::Stdin(io::stdin().is_terminal()),
            Some(host) => Self::Given(host.stdin.clone().unwrap_or_default(), 0),
        }
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    ///
    /// It cannot be read, is longer than 1 MiB, or no text.
    pub fn next(&mut self, output: &Output) -> Result<Option<String>, Failure> {
        let mut line = Vec::new();
        match self {
            Self::Stdin(typed) => {
                if *typed {
                    output.write("> ")?;
                }
                let mut stdin = io::Read::take(io::stdin().lock(), LONGEST + 1);
                let read = stdin.read_until(b'\n', &mut line);
                read.map_err(|error| Failure::input(format!("stdin: {error}")))?;
            }
            Self::Given(text, at) => {
                let rest = text.get(*at..).unwrap_or_default();
                let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |n| n + 1);
                line.extend(rest.get(..end).unwrap_or_default());
                *at += end;
            }
        }
        if line.len() as u64 > LONGEST {
            return Err(Failure::input("stdin: a line is longer than 1 MiB"));
        }
        let text = String::from_utf8(line)
            .map_err(|_| Failure::input("stdin: a line is no UTF-8 text"))?;
        Ok((!text.is_empty()).then(|| text.trim_end_matches(['\n', '\r']).to_owned()))
    }
}
