//! A recording run again, on the simulator or on what a live machine answered, and the first decision that differs.

use crate::{
    accounts::text,
    diff::{self, Difference},
    observe::{self, Observations},
    problem::{Problem, Problems},
    record::{DigestScope, FieldValue, Record},
    run::{
        DETAIL_SLOTS, OBSERVE, OBSERVED, PROFILE, Recording, RunError, RunOptions, ScenarioRun,
        TRACES, run_with,
    },
    scenario::{Override, Scenario},
    start::{self, CaseError, Machine, Readings},
    wire::Log,
};
use plimsoll_backend_sim::MachineSpec;
use plimsoll_core::sched::LogDetail;
use std::{
    cell::Cell,
    io::{self, Write},
    path::PathBuf,
};

/// Why a recording cannot be run again.
#[derive(Debug, thiserror::Error)]
pub enum AgainError {
    /// The log holds no scenario.
    #[error("this log holds no scenario: only what `run --record` wrote can be run again")]
    NoScenario,
    /// The scenario that it holds cannot be read.
    #[error("{}", .0.render())]
    Scenario(Problems),
    /// The scenario cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A recorded workload is not the file that it was.
    #[error(
        "a file of the workload is not what it was when the run was recorded (its SHA-256 differs)"
    )]
    OtherTrace,
    /// The profile is not the file that it was.
    #[error("the profile is not what it was when the run was recorded (its SHA-256 differs)")]
    OtherProfile,
}

/// How far a recording goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// To its end.
    Whole,
    /// Somebody ended the run; the log was closed.
    Interrupted,
    /// The log breaks off at this byte.
    Cut(u64),
}

/// A recording and its second run.
pub struct Again {
    /// How far the recording goes.
    pub extent: Extent,
    /// Decisions that were compared: all of the recording.
    pub compared: usize,
    /// The second run.
    pub run: ScenarioRun,
    /// Where the two part; `None` when every decision of the recording was made again.
    pub difference: Option<Difference>,
}

/// Runs the scenario of a recording again and compares what was decided. Of a recording that is not whole
/// only what it has is compared.
///
/// # Errors
///
/// [`AgainError`]; a difference is a result.
pub fn again(recording: &Log) -> Result<Again, AgainError> {
    let extent = extent(recording);
    let enough = match extent {
        Extent::Whole => u64::MAX,
        // The second run goes on for one record more, which is not compared.
        Extent::Interrupted | Extent::Cut(_) => {
            recording.records.iter().filter(|record| decided(record)).count() as u64 + 2
        }
    };
    let run = run_again(recording, enough)?;
    let (mut first, mut second) = (recording.clone(), run.log.clone());
    if extent != Extent::Whole {
        // Slots of decode passes that follow each other are told together: where the run ends, less is.
        let kept = |record: &Record| !is_interruption(record) && !is_of_slots(record);
        first.records.retain(kept);
        second.records.retain(kept);
    }
    let compared = first.records.iter().filter(|record| decided(record)).count();
    if extent != Extent::Whole {
        let mut left = compared;
        second.records.retain(|record| {
            let keep = left > 0;
            left -= usize::from(keep && decided(record));
            keep
        });
        if let Some(grown) = first.records.iter().rfind(|record| decided(record)) {
            shorten_last(grown, &mut second);
        }
    }
    let difference = diff::diff(&first, &second, DigestScope::Decisions);
    Ok(Again { extent, compared, run, difference })
}

fn decided(record: &Record) -> bool {
    record.scope == DigestScope::Decisions
}

/// A run of decode passes that was cut in the middle is a shorter run in the recording: it is compared by
/// what both have, its beginning.
fn shorten_last(recorded: &Record, second: &mut Log) {
    let steps = |record: &Record| match record.fields.get("steps") {
        Some(FieldValue::Unsigned(steps)) if record.kind == "decode_run" => Some(*steps),
        _ => None,
    };
    let begins = |record: &Record| record.fields.get("first_step").cloned();
    let Some(last) = second.records.last_mut() else { return };
    let shorter = steps(recorded).zip(steps(last)).is_some_and(|(a, b)| a < b);
    if shorter && begins(recorded) == begins(last) {
        last.fields = recorded.fields.clone();
    }
}

fn extent(log: &Log) -> Extent {
    match (log.complete, log.cut_at) {
        (true, _) => Extent::Whole,
        (false, Some(byte)) => Extent::Cut(byte),
        (false, None) => Extent::Interrupted,
    }
}

fn is_interruption(record: &Record) -> bool {
    record.kind == "run_ended" && text(record, "outcome") == "interrupted"
}

fn is_of_slots(record: &Record) -> bool {
    matches!(record.kind.as_str(), "slots_taken" | "slots_freed" | "slots_cached")
}

/// Counts the lines of a log that nobody keeps.
struct Lines<'a>(&'a Cell<u64>);

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
        self.0.set(self.0.get().saturating_add(ends as u64));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The machine that a recording replays on: the simulator, or what was recorded of a live one.
fn machine(log: &Log) -> (Readings, impl Fn(&MachineSpec) -> Result<Machine, CaseError> + use<>) {
    let live = log.header.get(OBSERVE) == Some(&FieldValue::from(OBSERVED));
    let (readings, seen) = match live {
        true => (Readings::Recorded, Observations::of(log)),
        false => (Readings::Declared, Observations::default()),
    };
    let make = move |spec: &MachineSpec| match readings {
        Readings::Recorded => Ok(observe::played(spec, seen.clone())?),
        Readings::Declared | Readings::Device => start::simulator(spec),
    };
    (readings, make)
}

/// Runs the scenario until its log has `enough` lines.
fn run_again(log: &Log, enough: u64) -> Result<ScenarioRun, AgainError> {
    let header = |name: &str| match log.header.get(name) {
        Some(FieldValue::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let scenario_text = header("scenario_text").ok_or(AgainError::NoScenario)?;
    let file = PathBuf::from(header("scenario_file").unwrap_or("recording.yaml"));
    let name = file.display().to_string();
    let overrides = overrides(log).map_err(AgainError::Scenario)?;
    let scenario =
        Scenario::parse(&name, scenario_text, &overrides).map_err(AgainError::Scenario)?;
    let lines = Cell::new(0);
    let stop = || lines.get() >= enough;
    let mut out = Lines(&lines);
    let record = Recording {
        out: &mut out,
        scenario_text,
        scenario_file: name,
        overrides: overrides.iter().map(ToString::to_string).collect(),
    };
    let detail = match header("detail") {
        Some(DETAIL_SLOTS) => LogDetail::Slots,
        _ => LogDetail::Decisions,
    };
    let (readings, make) = machine(log);
    let options = RunOptions {
        machine: &make,
        readings,
        record: Some(record),
        detail,
        interrupted: &stop,
        ..RunOptions::default()
    };
    let run = run_with(scenario, &file, options)?;
    let same = |field: &str| log.header.get(field) == run.log.header.get(field);
    match (same(TRACES), same(PROFILE)) {
        (true, true) => Ok(run),
        (false, _) => Err(AgainError::OtherTrace),
        (true, false) => Err(AgainError::OtherProfile),
    }
}

fn overrides(log: &Log) -> Result<Vec<Override>, Problems> {
    let Some(FieldValue::List(list)) = log.header.get("overrides") else { return Ok(Vec::new()) };
    let texts = list.iter().filter_map(|value| match value {
        FieldValue::Text(text) => Some(text),
        _ => None,
    });
    texts
        .map(|text| {
            let problem = |problem: Box<Problem>| Problems::new("overrides", text, vec![*problem]);
            text.parse().map_err(problem)
        })
        .collect()
}
