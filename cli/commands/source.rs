//! A scenario as it is named on the command line: a file, or stdin under the name `-`.

use crate::{exit::Failure, output::Output};
use plimsoll_replay::{
    scenario::{Override, Scenario},
    yaml,
};
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// What stdin is called in messages. It has no folder: what it names is looked for from the current one.
const STDIN: &str = "<stdin>";

/// A scenario, and where it came from.
pub struct Source<'a> {
    /// The file, or what stands for stdin: paths in the scenario start from its folder.
    pub path: &'a Path,
    /// What it says, changed by the overrides.
    pub scenario: Scenario,
    /// Its text, where it cannot be read a second time.
    text: Option<String>,
}

impl<'a> Source<'a> {
    /// Reads a scenario.
    ///
    /// # Errors
    ///
    /// The text cannot be read, or something is wrong with it or the overrides.
    pub fn read(path: &'a Path, overrides: &[Override], output: &Output) -> Result<Self, Failure> {
        let problems =
            |problems: plimsoll_replay::problem::Problems| Failure::input(problems.render());
        if path != Path::new("-") {
            let scenario = Scenario::load(path, overrides).map_err(problems)?;
            return Ok(Self { path, scenario, text: None });
        }
        let text =
            stdin(output).map_err(|error| Failure::input(format!("error: {STDIN}: {error}")))?;
        let scenario = Scenario::parse(STDIN, &text, overrides).map_err(problems)?;
        Ok(Self { path: Path::new(STDIN), scenario, text: Some(text) })
    }

    /// The text as it stands, for a recording.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn text(&self) -> io::Result<String> {
        self.text.clone().map_or_else(|| fs::read_to_string(self.path), Ok)
    }
}

/// The text of a file, or stdin's, and what stands for it in messages and as the place from which models are
/// found.
///
/// # Errors
///
/// It cannot be read.
pub fn text_of(path: &Path, output: &Output) -> Result<(PathBuf, String), Failure> {
    let place = if path == Path::new("-") { Path::new(STDIN) } else { path };
    let text = if place == path { fs::read_to_string(path) } else { stdin(output) };
    let cannot = |error| format!("error: cannot read {}: {error}", place.display());
    let text = text.map_err(|error| Failure::input(cannot(error)))?;
    Ok((place.to_path_buf(), text))
}

/// Stdin, up to one byte more than is parsed: the parser then says what is too large.
fn stdin(output: &Output) -> io::Result<String> {
    let mut text = String::new();
    let limit = yaml::MAX_BYTES as u64 + 1;
    match output.host() {
        Some(host) => {
            host.stdin.as_deref().unwrap_or_default().take(limit).read_to_string(&mut text)
        }
        None => io::stdin().lock().take(limit).read_to_string(&mut text),
    }?;
    Ok(text)
}
