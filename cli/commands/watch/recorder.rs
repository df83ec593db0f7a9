//! The recording file: a line at a time, flushed at once.

use crate::exit::Failure;
use plimsoll_ingest::watch::Header;
use serde::Serialize;
use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

/// Where a watch is recorded; nowhere without a file.
pub struct Recorder(Option<(PathBuf, File)>);

impl Recorder {
    /// Begins the file with its header.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(path: Option<&Path>, header: &Header) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(None)) };
        let file = File::create(path).map_err(|error| cannot(path, &error))?;
        let mut recorder = Self(Some((path.to_owned(), file)));
        recorder.write(header)?;
        Ok(recorder)
    }

    /// Adds a line: the header or what follows it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        let mut text = serde_json::to_string(value).map_err(Failure::input)?;
        text.push('\n');
        // One write a line: a cut falls between lines where the system allows it.
        file.write_all(text.as_bytes()).map_err(|error| cannot(path, &error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}
