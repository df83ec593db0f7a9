//! The recording of an engine, where one is asked for.

use crate::{exit::Failure, output::Output};
use plimsoll_core::decision::{DecisionSink, Record};
use plimsoll_replay::{
    live::{self, PlannedRow, Recorder},
    record::FieldValue,
    wire::Closing,
};
use plimsoll_server::start::Planned;
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// What the engine writes its log to, where it writes one.
pub struct Log(Option<(PathBuf, Recorder<File>)>);

impl DecisionSink for Log {
    fn record(&mut self, record: Record) {
        if let Some((_, recorder)) = &mut self.0 {
            recorder.record(record);
        }
    }
}

impl Log {
    /// Begins a recording of what is planned.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn begin(path: Option<&Path>, planned: &Planned) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(None)) };
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::input(format!("cannot write {}: {error}", path.display()))
        };
        let file = File::create(path).map_err(|error| wrong(&error))?;
        let backend = planned.device().split(':').next().unwrap_or_default();
        let about = [
            ("version", FieldValue::from(env!("CARGO_PKG_VERSION").to_owned())),
            ("backend", FieldValue::from(backend.to_owned())),
            ("device", FieldValue::from(planned.device().to_owned())),
            ("model", FieldValue::from(planned.name().to_owned())),
        ];
        let recorder = Recorder::new(file, &live::header(&about));
        let mut recorder = recorder.map_err(|error| wrong(&error))?;
        // Ranks hold the same pages: the first one's memory stands for all.
        let memory = planned.memory.memories.first();
        let rows = memory
            .into_iter()
            .flat_map(|memory| &memory.rows)
            .map(|row| PlannedRow { account: row.account.name().to_owned(), bytes: row.bytes() });
        let rows: Vec<PlannedRow> = rows.collect();
        live::begin(&planned.settings, &rows, &mut recorder);
        Ok(Self(Some((path.to_owned(), recorder))))
    }

    /// Closes it; whether all of it was written.
    pub fn end(self, closing: Closing, output: &Output) -> bool {
        let Some((path, recorder)) = self.0 else { return true };
        match recorder.finish(closing) {
            Ok(_) => {
                output.note(&format!("recorded: plimsoll replay {}", path.display()));
                true
            }
            Err(error) => {
                output.note(&format!("the recording {} is cut off: {error}", path.display()));
                false
            }
        }
    }
}
