//! Scenario files: reading, checking, and collecting everything that is wrong with one.
//!
//! Text → tree ([`crate::yaml`]) → overrides → typed values → checks across keys. A value that is
//! refused is set aside and reading goes on, so that one look at a file shows all of its problems.

mod changes;
mod check;
mod check_serving;
mod collect;
mod de;
pub mod engine;
pub mod events;
pub mod expect;
mod figures;
mod form;
pub mod lengths;
pub mod machine;
pub mod neighbours;
pub mod overrides;
pub mod requests;
mod requests_read;
pub mod schema;
pub mod time;
pub mod traces;
pub mod types;
pub mod value;
mod workload_read;

pub use changes::GROWTH_STEPS;
pub use engine::{Engine, EngineName, FlagValue};
pub use events::{Event, EventAt, EventTime, Growth, Happening, Leak, Ranks, Target};
pub use expect::{Ending, Expect, FIGURES, FigureSpec, Test};
pub use lengths::{Lengths, Lognormal, Middle};
pub use machine::{WeakerRank, WeakerRanks};
pub use neighbours::{Drawn, Neighbours, SamplesFile};
pub use overrides::Override;
pub use requests::{
    Gaps, Group, MaxTokens, Pacing, Part, PrefixChoice, RampLaw, Schedule, Shape, SharedPrefix,
    Turns, Workload,
};
pub(crate) use requests_read::choice;
pub use schema::json_schema;
pub use time::Rate;
pub use traces::{Smear, TraceSource};
pub use types::{
    Capacity, Device, DeviceProperties, Limits, Machine, Model, ModelFigures, ModelSource,
    Readings, Scenario, SloLimits,
};
pub use value::{PerRank, Reading};
pub(crate) use workload_read::group_of;

use crate::{
    problem::{Place, Position, Problem, Problems},
    yaml,
};
use std::path::Path;

impl Scenario {
    /// Reads a scenario from `text`; `file` is its name in messages. The overrides are applied in their
    /// order, before anything is checked.
    ///
    /// # Errors
    /// Everything that is wrong with the text and the overrides, each with its place.
    pub fn parse(file: &str, text: &str, overrides: &[Override]) -> Result<Self, Problems> {
        let mut parsed =
            yaml::parse(text).map_err(|problem| Problems::new(file, text, vec![*problem]))?;
        let mut problems = std::mem::take(&mut parsed.problems);
        for change in overrides {
            if let Err(problem) = change.apply(&mut parsed.root) {
                problems.push(*problem);
            }
        }
        let places = Places { text, overrides };
        let drawn = neighbours::settle(&mut parsed.root, file, &places, &mut problems);
        match collect::read(parsed.root, &places, &mut problems) {
            Some(scenario) if problems.is_empty() => Ok(Self { drawn, ..scenario }),
            _ => Err(Problems::new(file, text, problems)),
        }
    }

    /// Reads a scenario file.
    ///
    /// # Errors
    /// As [`Scenario::parse`]; also when the file cannot be read or is no UTF-8.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self, Problems> {
        let file = path.display().to_string();
        let text = read_bounded(path).map_err(|error| Problems::unreadable(&file, &error))?;
        Self::parse(&file, &text, overrides)
    }
}

/// The text of a file, up to one byte more than is parsed: the parser then says what is too large.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let limit = yaml::MAX_BYTES as u64 + 4;
    std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).or_else(|error| {
        let valid = error.utf8_error().valid_up_to();
        if valid > yaml::MAX_BYTES {
            // Cut by the limit in the middle of a character; it is refused for its size.
            return Ok(" ".repeat(yaml::MAX_BYTES + 1));
        }
        let line = error.as_bytes()[..valid].iter().filter(|b| **b == b'\n').count() + 1;
        let message = format!("line {line} holds bytes that are not UTF-8");
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message))
    })
}

/// Finds places: in the text, or in the override that set the value.
struct Places<'a> {
    text: &'a str,
    overrides: &'a [Override],
}

impl Places<'_> {
    fn of(&self, path: &crate::path::KeyPath, part: yaml::Part) -> Place {
        match self.overrides.iter().rev().find(|change| path.starts_with(&change.path)) {
            Some(change) => Place::Override(change.to_string()),
            None => match self.overrides.iter().find(|change| change.path.starts_with(path)) {
                // A key that only an override brought in.
                Some(change) if !self.in_text(path) => Place::Override(change.to_string()),
                _ => Place::Text(yaml::locate(self.text, path, part)),
            },
        }
    }

    fn in_text(&self, path: &crate::path::KeyPath) -> bool {
        yaml::parse(self.text).is_ok_and(|parsed| de::get(&parsed.root, path).is_some())
    }

    /// The plain word that begins at a place of the text.
    fn word_at(&self, at: Position) -> Option<String> {
        let line = self.text.lines().nth(at.line - 1)?;
        let end = |c: &char| !c.is_whitespace() && !matches!(c, ',' | '}' | ']');
        let word: String = line.chars().skip(at.column - 1).take_while(end).collect();
        (!word.is_empty()).then_some(word)
    }

    fn problem(
        &self,
        code: crate::problem::Code,
        path: &crate::path::KeyPath,
        part: yaml::Part,
        message: String,
    ) -> Problem {
        Problem::new(code, self.of(path, part), path.clone(), message)
    }
}
