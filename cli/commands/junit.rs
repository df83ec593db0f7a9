//! `run --junit`: what became of every path that was given, for CI systems.

use crate::{
    exit::Failure,
    render::junit::{self, Case},
};
use plimsoll_replay::run::ScenarioRun;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What became of a path.
pub enum Fate {
    /// It ran; the index of its result.
    Ran(usize),
    /// It did not run, for this reason.
    Failed(Failure),
    /// The run was interrupted before it.
    NotRun,
}

/// Writes the file, where one was asked for.
///
/// # Errors
///
/// It cannot be written.
pub fn write(
    file: Option<&Path>,
    fates: &[(PathBuf, Fate)],
    runs: &[ScenarioRun],
) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    let cases = fates.iter().map(|(path, fate)| {
        let case = match fate {
            Fate::Ran(at) => runs.get(*at).map_or(Case::NotRun, Case::Ran),
            Fate::Failed(failure) => Case::Failed(failure),
            Fate::NotRun => Case::NotRun,
        };
        (path.as_path(), case)
    });
    fs::write(file, junit::junit(cases))
        .map_err(|error| Failure::input(format!("cannot write {}: {error}", file.display())))
}
