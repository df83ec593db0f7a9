//! Running a draft, and what the run says in the terms of a log.

use super::draft::Draft;
use plimsoll_core::engine::startup::{Refused, StartEnd};
use plimsoll_replay::{
    outcome::Figure,
    run::{RunOptions, ScenarioRun, run_with},
    scenario::{Ending, Scenario},
    start::{self, Ran},
};
use std::path::Path;

/// A draft that was run.
pub(super) struct Trial(pub ScenarioRun);

impl Trial {
    /// Runs the text of a draft; `base` is where relative paths start.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words: then nothing can be claimed.
    pub(super) fn of(draft: &Draft, base: &Path) -> Result<Self, String> {
        let file = base.join("crash.yaml");
        let scenario = parse(draft)?;
        let run = run_with(scenario, &file, RunOptions::default()).map_err(|e| e.to_string())?;
        Ok(Self(run))
    }

    /// Only the start of a draft.
    ///
    /// # Errors
    ///
    /// As [`Self::of`].
    pub(super) fn start(draft: &Draft, base: &Path) -> Result<Ran, String> {
        let bare = Draft { workload: Vec::new(), events: Vec::new(), ..draft.clone() };
        let scenario = parse(&bare)?;
        let file = base.join("crash.yaml");
        let assembled =
            plimsoll_replay::assemble::of_scenario(&scenario, &file).map_err(|e| e.to_string())?;
        start::run(&assembled.case).map_err(|e| e.to_string())
    }

    pub(super) fn ending(&self) -> Ending {
        self.0.outcome.ending
    }

    /// Whether the server started, and lived where it had a load.
    pub(super) fn lived(&self) -> bool {
        matches!(self.ending(), Ending::Started | Ending::Finished)
    }

    pub(super) fn bytes(&self, name: &str) -> Option<i64> {
        match self.0.outcome.get(name)? {
            Figure::Bytes(bytes) => i64::try_from(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn count(&self, name: &str) -> Option<i64> {
        match self.0.outcome.get(name)? {
            Figure::Count(n) => Some(n),
            _ => None,
        }
    }

    pub(super) fn word(&self, name: &str) -> Option<String> {
        match self.0.outcome.get(name)? {
            Figure::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn refused(&self) -> Option<&Refused> {
        refused(&self.0.ran)
    }

    /// Claims that do not hold, a line each.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.0.claims.iter().filter(|claim| !claim.holds());
        failed
            .map(|c| format!("{}: the log says {}, the run {}", c.path, c.expected, c.got))
            .collect()
    }
}

fn parse(draft: &Draft) -> Result<Scenario, String> {
    Scenario::parse("crash.yaml", &draft.text(), &[]).map_err(|problems| problems.to_string())
}

pub(super) fn refused(ran: &Ran) -> Option<&Refused> {
    match &ran.start.end {
        StartEnd::Refused(refused) => Some(refused),
        StartEnd::Ready | StartEnd::OutOfMemory(_) => None,
    }
}

pub(super) fn count(ran: &Ran, name: &str) -> Option<u64> {
    match ran.start.figure(name)?.value {
        plimsoll_core::figure::FigureValue::Count(n) => Some(n),
        _ => None,
    }
}

/// Least free memory at a reading of the start.
pub(super) fn free(ran: &Ran, point: &str) -> Option<i64> {
    i64::try_from(ran.start.reading(point)?.least().0).ok()
}
