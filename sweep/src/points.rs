//! Points, ready to run: scenario texts, overrides, and what runs share.

use crate::{
    question::{Point, Question},
    row::Row,
};
use plimsoll_core::engine::serving::{Pace, ServeEnd};
use plimsoll_replay::{
    problem::{Problem, Problems},
    run::{Kept, RunError, RunOptions, run_with},
    scenario::{Override, Scenario},
    workload::TraceStore,
};
use std::path::{Path, PathBuf};

/// A scenario file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Where it is: models and traces are found from there.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
}

/// Whether each run's log is kept and checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checking {
    /// Only its digests are.
    #[default]
    None,
    /// It is kept, read back and checked, as `run` does.
    Whole,
}

/// Whether a row of a recorded workload that cannot be read ends the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BadRows {
    /// It is left out.
    #[default]
    LeftOut,
    /// It does.
    Refused,
}

/// How points are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Whether logs are checked.
    pub checking: Checking,
    /// What a bad row of a recorded workload does.
    pub bad_rows: BadRows,
    /// Whether quiet stretches are skipped.
    pub pace: Pace,
}

/// Runs single points of a question.
#[derive(Debug)]
pub struct Points {
    /// The question.
    pub question: Question,
    sources: Vec<Source>,
    how: How,
    traces: TraceStore,
}

/// Why a sweep cannot go on: a mistake of Plimsoll, not of a point.
#[derive(Debug, thiserror::Error)]
#[error("the point {index} ({at}): {why}")]
pub struct Broken {
    /// The point.
    pub index: u64,
    /// Its values, as overrides.
    pub at: String,
    /// What is wrong.
    pub why: RunError,
}

impl Points {
    /// Of a question about these sources, one for each of its scenarios.
    #[must_use]
    pub fn new(question: Question, sources: Vec<Source>, how: How) -> Self {
        Self { question, sources, how, traces: TraceStore::default() }
    }

    /// For each scenario, whether it claims anything.
    #[must_use]
    pub fn have_claims(&self) -> Vec<bool> {
        let claims = |source: &Source| {
            scenario(source, &self.question.set).is_ok_and(|scenario| !scenario.expect.is_empty())
        };
        self.sources.iter().map(claims).collect()
    }

    /// Runs a point. `None`: the user ended it.
    ///
    /// # Errors
    ///
    /// [`Broken`]; a value that is none, and a server that dies, are rows.
    pub fn run(
        &self,
        point: &Point,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Row>, Box<Broken>> {
        let Some(source) = self.sources.get(point.scenario) else { return Ok(None) };
        let scenario = match scenario(source, &self.question.overrides(point)) {
            Ok(scenario) => scenario,
            Err(problems) => return Ok(Some(Row::bad_input(point.index, &told(&problems)))),
        };
        let options = RunOptions {
            kept: match self.how.checking {
                Checking::None => Kept::Ends,
                Checking::Whole => Kept::Whole,
            },
            strict_input: self.how.bad_rows == BadRows::Refused,
            pace: self.how.pace,
            traces: Some(&self.traces),
            interrupted,
            ..RunOptions::default()
        };
        match run_with(scenario, &source.file, options) {
            Ok(run) => {
                let served = run.served.as_ref().map(|served| &served.served.end);
                let cut = served == Some(&ServeEnd::Interrupted);
                Ok((!cut).then(|| Row::of_run(point.index, &run)))
            }
            Err(why @ (RunError::Checker(_) | RunError::Wire(_))) => {
                let at = self.question.overrides(point).join(" ");
                Err(Box::new(Broken { index: point.index, at, why }))
            }
            Err(error) => Ok(Some(Row::bad_input(point.index, &error.to_string()))),
        }
    }
}

/// A source with overrides as typed.
pub(crate) fn scenario(source: &Source, overrides: &[String]) -> Result<Scenario, Problems> {
    let file = source.file.display().to_string();
    let mut parsed = Vec::new();
    for text in overrides {
        let read = text.parse::<Override>();
        parsed
            .push(read.map_err(|problem: Box<Problem>| Problems::new(&file, "", vec![*problem]))?);
    }
    Scenario::parse(&file, &source.text, &parsed)
}

/// The problems of a point in one line.
fn told(problems: &Problems) -> String {
    let one = |problem: &Problem| {
        let allowed = problem.allowed.as_ref().map(|allowed| format!("; allowed: {allowed}"));
        format!("{}{}", problem.message, allowed.unwrap_or_default())
    };
    problems.list.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl Source {
    /// Reads a scenario file.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read(file: &Path) -> Result<Self, Problems> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| Problems::unreadable(&name, &e))?;
        Ok(Self { file: file.to_path_buf(), text })
    }
}
