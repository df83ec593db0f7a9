//! What of a log is shown beside a verdict: its timeline, and its accounts at a moment.

use crate::{args::ViewArgs, exit::Failure, output::Output, render::life};
use plimsoll_replay::{
    ledger_at::{LedgerAt, Moment, ledger_at},
    timeline::{self, Timeline},
    wire::Log,
};
use serde_json::Value;
use std::fs;

/// The accounts at the moment that was asked for.
fn at(log: &Log, moment: Moment) -> Result<LedgerAt, Failure> {
    ledger_at(log, moment).map_err(|error| Failure::input(format!("--at: {error}")))
}

/// Plot and accounts for people, as far as they were asked for.
///
/// # Errors
///
/// A moment that the log does not have.
pub fn human(log: &Log, views: &ViewArgs, output: &Output) -> Result<String, Failure> {
    let mut out = String::new();
    if let Some(moment) = views.at {
        out.push_str(&life::accounts(&at(log, moment)?));
    }
    if views.timeline {
        match Timeline::of(log) {
            Some(timeline) => out.push_str(&life::plot(&timeline, views, output)),
            None => output.note("no timeline: nothing was served"),
        }
    }
    Ok(out)
}

/// The accounts for machines; null when none were asked for.
///
/// # Errors
///
/// A moment that the log does not have.
pub fn moment(log: &Log, views: &ViewArgs) -> Result<Value, Failure> {
    match views.at {
        Some(moment) => Ok(life::moment(&at(log, moment)?)),
        None => Ok(Value::Null),
    }
}

/// The timeline for machines; null when it was not asked for, or nothing was served.
pub fn timeline(log: &Log, views: &ViewArgs) -> Value {
    let timeline = views.timeline.then(|| Timeline::of(log)).flatten();
    timeline.map_or(Value::Null, |timeline| life::timeline(&timeline))
}

/// Writes the SVG, when one was asked for.
///
/// # Errors
///
/// The file cannot be written, or nothing was served.
pub fn write_svg(log: &Log, views: &ViewArgs) -> Result<(), Failure> {
    let Some(path) = &views.svg else { return Ok(()) };
    let Some(timeline) = Timeline::of(log) else {
        return Err(Failure::input("--svg: nothing was served, so there is no timeline"));
    };
    fs::write(path, timeline::svg(&timeline))
        .map_err(|error| Failure::input(format!("cannot write {}: {error}", path.display())))
}
