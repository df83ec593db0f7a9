//! Recordings of a server that really served, and the same decisions made again without it.
//!
//! Such a log begins with the settings and the memory plan, and holds every input with the turn before which
//! it came and every token that was made. Run again, the pool lies in the simulator's memory.

pub mod kinds;
mod memory;
mod read;

use crate::{
    again::Extent,
    diff::{self, Difference},
    digest::Digests,
    record::{DigestScope, FieldValue, Fields, Record},
    wire::{Closing, Log, LogWriter, WireError},
};
use memory::SimulatedPool;
use plimsoll_core::{
    backend::BackendError,
    decision::{self, DecisionSink},
    engine::{
        live::{InputsError, Live, LiveError, LiveSettings},
        serving::Unwatched,
    },
    memory::ledger::Account,
    sched::sglang::ConfigError,
    units::Bytes,
};
use std::io::Write;

/// Field of the header that says what kind of recording it is, and its value for a server.
const RECORDING: (&str, &str) = ("recording", "serve");

/// Why a recording of a server cannot be run again.
#[derive(Debug, thiserror::Error)]
pub enum LiveAgainError {
    /// A record lacks what it must have.
    #[error("record {seq} ({kind}) has no usable `{field}`")]
    Field {
        /// Number of the record.
        seq: u64,
        /// Its kind.
        kind: String,
        /// The field.
        field: &'static str,
    },
    /// A record is not of a kind that such a recording has.
    #[error("record {seq} ({kind}): {fault}")]
    Form {
        /// Number of the record.
        seq: u64,
        /// Its kind.
        kind: String,
        /// What is wrong.
        fault: String,
    },
    /// The recording breaks off before its settings.
    #[error("the recording breaks off before the server was set up")]
    NoSettings,
    /// Inputs out of their order.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// Settings that no scheduler can be made from.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// The plan does not fit the machine that it says.
    #[error("the memory plan does not fit the memory that it names: {0}")]
    Memory(#[from] BackendError),
    /// The loop ended by itself.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The second log cannot be kept.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// One row of the memory plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedRow {
    /// Name of the account.
    pub account: String,
    /// Bytes.
    pub bytes: Bytes,
}

/// A recording and its second run.
#[derive(Debug)]
pub struct LiveAgain {
    /// How far the recording goes.
    pub extent: Extent,
    /// Decisions that were compared: all of the recording.
    pub compared: usize,
    /// Where the two part; `None` when every decision was made again.
    pub difference: Option<Difference>,
    /// The log of the second run.
    pub log: Log,
}

/// Header of the recording of a server: `about` says, as measured, what it ran on.
#[must_use]
pub fn header(about: &[(&str, FieldValue)]) -> Fields {
    let mut fields = Fields::default();
    fields.push(DigestScope::Decisions, RECORDING.0, RECORDING.1);
    for (name, value) in about {
        fields.push(DigestScope::Measured, name, value.clone());
    }
    fields
}

/// Whether a log is the recording of a server.
#[must_use]
pub fn is_live(log: &Log) -> bool {
    log.header.get(RECORDING.0) == Some(&FieldValue::from(RECORDING.1))
}

/// Writes what the recording of a server begins with.
pub fn begin(settings: &LiveSettings, plan: &[PlannedRow], sink: &mut dyn DecisionSink) {
    for row in plan {
        let record = decision::Record::new("memory_planned");
        let record = record.with("account", row.account.as_str());
        sink.record(record.measured("size_bytes", row.bytes.0));
    }
    sink.record(settings.record());
}

/// A log that grows while its server lives. What goes wrong is kept: a server does not stop because its log
/// cannot be written.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    log: Option<LogWriter<W>>,
    error: Option<WireError>,
}

impl<W: Write> Recorder<W> {
    /// Begins a log.
    ///
    /// # Errors
    ///
    /// [`WireError`] where its first line cannot be written.
    pub fn new(out: W, header: &Fields) -> Result<Self, WireError> {
        Ok(Self { log: Some(LogWriter::new(out, header)?), error: None })
    }

    /// Why the log ends before its time, if it does.
    #[must_use]
    pub const fn error(&self) -> Option<&WireError> {
        self.error.as_ref()
    }

    /// Closes the log.
    ///
    /// # Errors
    ///
    /// What went wrong first.
    pub fn finish(self, closing: Closing) -> Result<Option<Digests>, WireError> {
        match (self.error, self.log) {
            (Some(error), _) => Err(error),
            (None, Some(log)) => Ok(Some(log.finish(closing)?.1)),
            (None, None) => Ok(None),
        }
    }
}

impl<W: Write> DecisionSink for Recorder<W> {
    fn record(&mut self, record: decision::Record) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.push_decision(&record) {
            // Half a line more would spoil what stands: the rest of this life is not recorded.
            self.error = Some(error);
            self.log = None;
        }
    }
}

/// Decides all of a recording again and compares. Of one that is not whole what it has is compared.
///
/// # Errors
///
/// [`LiveAgainError`]; a difference is a result.
pub fn again(recording: &Log) -> Result<LiveAgain, LiveAgainError> {
    let read::Recorded { settings, plan, inputs } = read::recorded(recording)?;
    let mut pool = SimulatedPool::new(&plan, settings.pool_pages)?;
    let mut live = Live::new(settings.config())?;
    let mut recorder = Recorder::new(Vec::new(), &recording.header)?;
    begin(&settings, &plan, &mut recorder);
    inputs.again(&mut live, &mut pool, &mut recorder, &mut Unwatched)?;
    let text = match (recorder.error, recorder.log) {
        (Some(error), _) => return Err(error.into()),
        (None, Some(log)) => log.finish(Closing::Complete)?.0,
        (None, None) => Vec::new(),
    };
    let log = Log::read(text.as_slice())?;
    let extent = match (recording.complete, recording.cut_at) {
        (true, _) => Extent::Whole,
        (false, Some(byte)) => Extent::Cut(byte),
        (false, None) => Extent::Interrupted,
    };
    let (compared, mut second) = (recording.records.len(), log.clone());
    if extent != Extent::Whole {
        second.records.truncate(compared);
    }
    let difference = diff::diff(recording, &second, DigestScope::Decisions);
    Ok(LiveAgain { extent, compared, difference, log })
}

/// The account of that name; what the simulator has no account for is a workspace.
fn account(name: &str) -> Account {
    Account::ALL.into_iter().find(|account| account.name() == name).unwrap_or(Account::Workspaces)
}

fn text<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    match record.fields.get(name) {
        Some(FieldValue::Text(text)) => Some(text),
        _ => None,
    }
}
