//! Running a draft, and what the run says in the terms of a log.

use super::draft::{Draft, Reading, Solved};
use crate::Phase;
use plimsoll_core::{
    engine::startup::{Refused, StartEnd, Taking},
    units::GIB,
};
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

    /// As [`Self::start`] of a draft whose stand-in for a model has no weights yet: for settings and for what is
    /// free before loading.
    ///
    /// # Errors
    ///
    /// As [`Self::of`].
    pub(super) fn settings(draft: &Draft, base: &Path) -> Result<Ran, String> {
        let weighed = ["weights", "free_after_load"].iter().any(|key| draft.reading(key).is_some());
        if weighed || draft.model.is_none() {
            return Self::start(draft, base);
        }
        let mut probe = draft.clone();
        probe.set(Reading {
            key: "weights",
            values: vec![GIB as i64],
            source: "any".to_owned(),
            solved: Solved::No,
        });
        Self::start(&probe, base)
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

    /// What the start was doing when memory was refused, where that is not the phase of the log.
    pub(super) fn other_phase(&self, phase: Phase) -> Option<String> {
        use Taking::{
            Autotune, Context, DraftGraphs, DraftLoad, DraftPool, Graphs, HostPool, Load, Pool,
            Unaccounted, Workspaces,
        };
        let died = self.0.ran.start.died?;
        let same = match died {
            Context | Load => phase == Phase::Load,
            Pool => phase == Phase::Sizing,
            Workspaces | Autotune | Graphs | DraftGraphs | DraftLoad | DraftPool | Unaccounted => {
                matches!(phase, Phase::Capture | Phase::Unknown)
            }
            HostPool => phase == Phase::Host,
        };
        let log = if phase == Phase::Unknown { "after the pool" } else { phase.name() };
        (!same).then(|| format!("phase: the log dies {log}, the run {}", died.words()))
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

/// A count of a start by its name; the longest request that would fit is told by the refusal.
pub(super) fn count(ran: &Ran, name: &str) -> Option<u64> {
    if name == LONGEST {
        let remedies = &refused(ran)?.remedies;
        let longest = remedies.iter().find(|remedy| remedy.flag == "--max-model-len")?;
        return longest.value.as_deref()?.parse().ok();
    }
    match ran.start.figure(name)?.value {
        plimsoll_core::figure::FigureValue::Count(n) => Some(n),
        _ => None,
    }
}

/// The claim of the longest request that would fit.
pub(super) const LONGEST: &str = "estimated_max_model_len";

/// Least free memory at a reading of the start.
pub(super) fn free(ran: &Ran, point: &str) -> Option<i64> {
    i64::try_from(ran.start.reading(point)?.least().0).ok()
}
