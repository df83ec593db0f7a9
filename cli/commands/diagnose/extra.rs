//! What a diagnosis is asked for besides: scenario files of the log, and a plan laid beside it.

use super::launch::Typed;
use crate::exit::Failure;
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_diagnosis::{
    Case, Finding,
    against::{self, Comparison, PlanFile},
    emit::{self, Ask, File},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A scenario file that was written.
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// What it is, and what its run showed.
    pub file: File,
}

/// The files of a log.
pub struct Emission {
    /// Those that were written.
    pub written: Vec<Written>,
    /// Why there is no file with the way out.
    pub unfixed: Option<String>,
}

/// Writes the scenario files of a log into a folder.
///
/// # Errors
///
/// Facts that a scenario needs and nobody gives, or a folder that cannot be written.
pub fn emit(
    case: &Case,
    findings: &[Finding],
    typed: Option<&Typed>,
    version: Option<Version>,
    folder: &Path,
) -> Result<Emission, Failure> {
    let command = typed.map(Typed::text);
    let ask = Ask { command: command.as_deref(), version };
    let emitted = emit::emit(case, findings, &ask).map_err(|missing| {
        Failure::input(format!("--emit-scenario: no file is written\n{missing}"))
    })?;
    let place = |error| Failure::input(format!("--emit-scenario {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(place)?;
    let (fixed, unfixed) = match emitted.fixed {
        Ok(file) => (Some(file), None),
        Err(why) => (None, Some(why)),
    };
    let mut written = Vec::new();
    for file in [Some(emitted.crash), fixed].into_iter().flatten() {
        let path = folder.join(file.name);
        fs::write(&path, &file.text).map_err(place)?;
        written.push(Written { path, file });
    }
    Ok(Emission { written, unfixed })
}

/// Lays a plan, a scenario or a recording beside the log.
///
/// # Errors
///
/// The file cannot be read, or is none of the three.
pub fn compare(case: &Case, path: &Path) -> Result<Comparison, Failure> {
    let name = path.display().to_string();
    let text =
        fs::read(path).map_err(|error| Failure::input(format!("--against {name}: {error}")))?;
    let text = String::from_utf8_lossy(&text);
    let file = PlanFile { name: &name, text: &text };
    against::against(case, &file).map_err(|error| Failure::input(format!("--against: {error}")))
}
