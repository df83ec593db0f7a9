//! Running a scenario: its start, its load, its outcome, its claims, its decision log.

use crate::{
    assemble::{self, AssembleError, Assembled},
    checker::{self, Violation},
    digest::Digests,
    engine_log::EngineLog,
    observe::{self, Queue},
    outcome::{Claim, Figure, Outcome, evaluate},
    record::{DigestScope, FieldValue, Fields, Record},
    scenario::{FIGURES, Scenario},
    serve::{self, Load, ServeError, ServedRun},
    start::{self, CaseError, Machine, MakeMachine, Ran, Readings},
    start_death,
    wire::{Closing, Log, LogWriter, WireError},
    workload::{Told, TraceError, TraceStore},
};
use plimsoll_backend_sim::MachineSpec;
use plimsoll_core::{
    backend::BackendError,
    decision::{self, DecisionSink, Digest, Value},
    engine::{
        serving::{Limits, Pace, ServeEnd, Watcher, Watchers},
        startup::{Refused, StartEnd},
    },
    figure::FigureValue,
    sched::LogDetail,
    units::Bytes,
};
use std::{
    io::{self, Write},
    path::Path,
};

/// A scenario that was run.
pub struct ScenarioRun {
    /// The scenario.
    pub scenario: Scenario,
    /// Its case and launch.
    pub assembled: Assembled,
    /// Its start.
    pub ran: Ran,
    /// Its life under load; `None` without a workload, or when it did not start.
    pub served: Option<ServedRun>,
    /// What it produced.
    pub outcome: Outcome,
    /// What became of its claims.
    pub claims: Vec<Claim>,
    /// Digests of its decision log.
    pub digests: Digests,
    /// Its decision log.
    pub log: Log,
    /// What became of the files of its workload.
    pub imports: Vec<Told>,
    /// What the engine would log, where that was asked for.
    pub engine_log: Option<String>,
    text: Vec<u8>,
}

/// Why a scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Launch, device or model.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Readings that cannot be.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// A recorded workload that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A load that cannot be put on this server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The log cannot be written.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The checker found that the log does not add up: a mistake of Plimsoll.
    #[error("the decision log does not add up ({0}): please report this scenario")]
    Checker(Violation),
}

impl ScenarioRun {
    /// Whether every claim holds; without claims, whether the server started and lived.
    #[must_use]
    pub fn passed(&self) -> bool {
        if self.scenario.expect.is_empty() {
            let lived = |run: &ServedRun| run.served.end == ServeEnd::Finished;
            return self.ran.start.end == StartEnd::Ready && self.served.as_ref().is_none_or(lived);
        }
        self.claims.iter().all(Claim::holds)
    }

    /// Whether the machine went away under the run, so that it proves nothing.
    #[must_use]
    pub fn lost_its_machine(&self) -> bool {
        let lost = |run: &ServedRun| matches!(run.served.end, ServeEnd::Lost(_));
        let start = matches!(
            self.ran.start.end,
            StartEnd::OutOfMemory(BackendError::DeviceLost(_) | BackendError::Unknown(_))
        );
        start || self.served.as_ref().is_some_and(lost)
    }

    /// Writes the decision log as JSON Lines.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the writer fails.
    pub fn write_log<W: Write>(&self, mut out: W) -> Result<(W, Digests), WireError> {
        out.write_all(&self.text)?;
        out.flush()?;
        Ok((out, self.digests.clone()))
    }
}

/// `detail` in the header of a log that tells every slot; such a log without one of them is wrong.
pub const DETAIL_SLOTS: &str = "slots";

/// Field of the header with the hashes of the workload's files.
pub(crate) const TRACES: &str = "trace_sha256";

/// How a scenario is run.
pub struct RunOptions<'a> {
    /// Builds the machine.
    pub machine: MakeMachine<'a>,
    /// Whose readings decide.
    pub readings: Readings,
    /// Where the log is written as it grows, so that it is there up to the moment of a kill.
    pub record: Option<Recording<'a>>,
    /// How much the log tells. More enters the digests of this run.
    pub detail: LogDetail,
    /// Whether a row of a recorded workload that cannot be read ends the run.
    pub strict_input: bool,
    /// Whether the engine's own log is written.
    pub engine_log: bool,
    /// What of the log is kept in memory.
    pub kept: Kept,
    /// Whether quiet stretches of decode are skipped; the log is the same.
    pub pace: Pace,
    /// Where recorded workloads are kept that several runs share.
    pub traces: Option<&'a TraceStore>,
    /// Sees every record as it is written: a view of a run that needs no log in memory.
    pub tap: Option<&'a mut dyn FnMut(&Record)>,
    /// Asked again and again: whether the user wants the run to end.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl Default for RunOptions<'_> {
    /// The simulator, to the end, nothing written.
    fn default() -> Self {
        let (readings, detail) = (Readings::Declared, LogDetail::default());
        Self {
            machine: &start::simulator,
            readings,
            record: None,
            detail,
            strict_input: false,
            kept: Kept::default(),
            pace: Pace::default(),
            engine_log: false,
            traces: None,
            tap: None,
            interrupted: &|| false,
        }
    }
}

/// What of the decision log a run keeps. Its digests are those of the whole log either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kept {
    /// All of it, and it is checked.
    #[default]
    Whole,
    /// How the server started and how it ended: for runs of very many requests. It is not checked.
    Ends,
}

/// Kinds of record of which a server that serves writes one after the other.
const ROUTINE: [&str; 12] = [
    "request_arrived",
    "request_refused",
    "admitted",
    "deferred",
    "evicted",
    "retracted",
    "preempted",
    "ratio",
    "finished",
    "segment_freed",
    "step",
    "decode_run",
];

/// A log that is kept, with all that is needed to run it again.
pub struct Recording<'a> {
    /// Where it goes; every line is handed over as soon as it is whole.
    pub out: &'a mut dyn Write,
    /// Text of the scenario file.
    pub scenario_text: &'a str,
    /// Where that file was: models are found from there.
    pub scenario_file: String,
    /// Overrides, as typed.
    pub overrides: Vec<String>,
}

/// Runs a scenario that was read from `file` on the simulator.
///
/// # Errors
///
/// [`RunError`]; a start that is refused or runs out of memory is a result.
pub fn run_scenario(scenario: Scenario, file: &Path) -> Result<ScenarioRun, RunError> {
    run_with(scenario, file, RunOptions::default())
}

/// Runs a scenario that was read from `file`.
///
/// # Errors
///
/// [`RunError`]; a server that dies is a result.
pub fn run_with(
    scenario: Scenario,
    file: &Path,
    options: RunOptions<'_>,
) -> Result<ScenarioRun, RunError> {
    let assembled = assemble::of_scenario(&scenario, file)?;
    let traces = match options.traces {
        Some(store) => store.traces(&scenario, file, options.strict_input)?,
        None => scenario.traces(file, options.strict_input)?,
    };
    let imports: Vec<Told> = traces.iter().map(|trace| trace.told.clone()).collect();
    let queue = Queue::default();
    let how = How {
        detail: options.detail,
        kept: options.kept,
        readings: options.readings,
        observed: queue.clone(),
    };
    let mut sink = RunSink::new(&scenario, &imports, options.record, how)?;
    sink.tap = options.tap;
    let make = |spec: &MachineSpec| -> Result<Machine, CaseError> {
        let machine = (options.machine)(spec)?;
        match options.readings {
            Readings::Device => Ok(observe::live(spec, machine, queue)?),
            Readings::Declared | Readings::Recorded => Ok(machine),
        }
    };
    let (ran, mut machine) = start::run_by(&assembled.case, options.readings, make, &mut sink)?;
    let mut engine_log = options.engine_log.then(|| EngineLog::new(&assembled, &ran));
    let mut watchers = Watchers::default();
    watchers.0.extend(engine_log.iter_mut().map(|one| one as &mut dyn Watcher));
    let served = match scenario.clients(&traces) {
        Some(mut clients) if ran.start.end == StartEnd::Ready => {
            let changes = scenario.timed_changes(machine.ranks());
            let load = Load {
                clients: &mut clients,
                changes: &changes,
                limits: Limits {
                    max_steps: scenario.limits.max_steps,
                    max_time: scenario.limits.max_time,
                },
                detail: options.detail,
                pace: options.pace,
                slo: scenario.slo.into(),
                watcher: &mut watchers,
                interrupted: options.interrupted,
            };
            Some(serve::serve(&assembled, &ran, machine.as_mut(), load, &mut sink)?)
        }
        _ => None,
    };
    let outcome = outcome_of(&ran, served.as_ref());
    let claims = evaluate(&scenario.expect, &outcome);
    let closing = match (options.interrupted)() {
        true => Closing::Interrupted,
        false => Closing::Complete,
    };
    let (log, text) = sink.finish(closing)?;
    if options.kept == Kept::Whole
        && let Some(violation) = checker::check(&log).into_iter().next()
    {
        return Err(RunError::Checker(violation));
    }
    let digests = log.digests.clone();
    let usage = served.as_ref().map(|run| run.served.totals.usage);
    let engine_log = engine_log.map(|one| one.finish(usage, &log));
    Ok(ScenarioRun {
        scenario,
        assembled,
        ran,
        served,
        outcome,
        claims,
        digests,
        log,
        imports,
        engine_log,
        text,
    })
}

/// Field of the header of a live run, and its value.
pub(crate) const OBSERVE: &str = "observe";
pub(crate) const OBSERVED: &str = "device";

/// Keeps the log in memory where it is to be kept, and writes it to a file at the same time.
struct Tee<'a> {
    kept: Option<Vec<u8>>,
    file: Option<&'a mut dyn Write>,
}

impl Write for Tee<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.flush())
    }
}

/// How a log is written.
struct How {
    detail: LogDetail,
    kept: Kept,
    readings: Readings,
    /// What was observed since the last decision.
    observed: Queue,
}

/// Decisions on their way into the log; the first failure is kept until the end.
struct RunSink<'a> {
    log: LogWriter<Tee<'a>>,
    header: Fields,
    how: How,
    /// The records that are kept of a log that is not kept whole.
    ends: Vec<Record>,
    failed: Option<WireError>,
    tap: Option<&'a mut dyn FnMut(&Record)>,
}

impl<'a> RunSink<'a> {
    fn new(
        scenario: &Scenario,
        imports: &[Told],
        record: Option<Recording<'a>>,
        how: How,
    ) -> Result<Self, WireError> {
        let mut header = Fields::default();
        header.push(DigestScope::Decisions, "scenario", scenario.name.as_str());
        header.push(DigestScope::Decisions, "seed", scenario.seed);
        if !imports.is_empty() {
            let hashes: Vec<String> = imports.iter().map(|told| told.sha256.clone()).collect();
            header.push(DigestScope::Decisions, TRACES, hashes);
        }
        if how.detail == LogDetail::Slots {
            header.push(DigestScope::Decisions, "detail", DETAIL_SLOTS);
        }
        if how.readings != Readings::Declared {
            header.push(DigestScope::Measured, OBSERVE, OBSERVED);
        }
        let mut file = None;
        if let Some(record) = record {
            header.push(DigestScope::Measured, "scenario_text", record.scenario_text);
            header.push(DigestScope::Measured, "scenario_file", record.scenario_file);
            header.push(DigestScope::Measured, "overrides", record.overrides);
            file = Some(record.out);
        }
        let kept = (how.kept == Kept::Whole).then(Vec::new);
        let log = LogWriter::new(Tee { kept, file }, &header)?;
        Ok(Self { log, header, how, ends: Vec::new(), failed: None, tap: None })
    }

    fn keep(&mut self, written: Result<(), WireError>) {
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    /// What was observed stands before the decision that rests on it.
    fn push_observed(&mut self) {
        let observed = std::mem::take(&mut *self.how.observed.borrow_mut());
        for record in observed {
            if let Some(tap) = &mut self.tap {
                tap(&record);
            }
            let written = self.log.push(record).map(|_| ());
            self.keep(written);
        }
    }

    /// The log, and its text where it was kept whole.
    fn finish(mut self, closing: Closing) -> Result<(Log, Vec<u8>), WireError> {
        self.push_observed();
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (tee, digests) = self.log.finish(closing)?;
        if let Some(text) = tee.kept {
            return Ok((Log::read(text.as_slice())?, text));
        }
        let (header, records, complete) = (self.header, self.ends, closing == Closing::Complete);
        let log = Log { header, records, footer: None, complete, cut_at: None, digests };
        Ok((log, Vec::new()))
    }
}

impl DecisionSink for RunSink<'_> {
    fn record(&mut self, record: decision::Record) {
        if self.failed.is_some() {
            return;
        }
        self.push_observed();
        let at_ends = self.how.kept == Kept::Ends && !ROUTINE.contains(&record.kind);
        if at_ends || self.tap.is_some() {
            let wire = wire_record(&record);
            if let Some(tap) = &mut self.tap {
                tap(&wire);
            }
            if at_ends {
                self.ends.push(wire);
            }
        }
        let written = self.log.push_decision(&record);
        self.keep(written);
    }
}

/// A decision as it stands in the log.
#[must_use]
pub fn wire_record(record: &decision::Record) -> Record {
    let mut out = Record::new(record.kind);
    if let Some(rank) = record.rank {
        out = out.on_rank(rank.0);
    }
    for field in &record.fields {
        let scope = match field.digest {
            Digest::Decisions => DigestScope::Decisions,
            Digest::Full => DigestScope::Measured,
        };
        out.fields.push(scope, field.name, wire_value(&field.value));
    }
    out
}

fn wire_value(value: &Value) -> FieldValue {
    match value {
        Value::Int(n) => FieldValue::from(*n),
        Value::Float(x) => FieldValue::from(*x),
        Value::Flag(flag) => FieldValue::from(*flag),
        Value::Text(text) => FieldValue::from(text.as_str()),
        Value::Null => FieldValue::from("unknown"),
        Value::Ints(list) => FieldValue::List(list.iter().map(|n| FieldValue::from(*n)).collect()),
    }
}

/// What a start produced, by the names that scenarios claim.
#[must_use]
pub fn outcome_of(ran: &Ran, served: Option<&ServedRun>) -> Outcome {
    let mut outcome = match &ran.start.end {
        StartEnd::Ready => Outcome::started(),
        StartEnd::Refused(refused) => Outcome::refused(refused.code),
        StartEnd::OutOfMemory(error) => start_death::outcome(error),
    };
    let known = |name: &str| FIGURES.iter().any(|spec| spec.name == name);
    let mut put = |name: &str, figure: Option<Figure>| {
        if let Some(figure) = figure.filter(|_| known(name)) {
            // A figure of another kind than its name promises is left out: no claim can pass on it.
            let _ = outcome.insert(name, figure);
        }
    };
    for figure in ran.start.figures() {
        put(figure.name, claimable(figure.name, &figure.value));
    }
    let least = |name: &str| ran.start.reading(name).map(|free| free.least());
    let bytes = |b: Option<Bytes>| b.map(|b| Figure::Bytes(b.0));
    let (before, after) = (least("before_load"), least("after_load"));
    put("free_after_load", bytes(after));
    put("free_after_pool", bytes(least("after_pool")));
    put("free_after_graphs", bytes(least("after_graphs")));
    let taken = |from: Option<Bytes>, to: Option<Bytes>| Some(from?.saturating_sub(to?));
    put("weights", bytes(taken(before, after)));
    put("graph_memory", bytes(taken(least("after_pool"), least("after_graphs"))));
    if let StartEnd::Refused(refused) = &ran.start.end {
        let fraction = |flag| remedy_value(refused, flag)?.parse().ok().map(Figure::Number);
        put("suggested_mem_fraction_static", fraction("--mem-fraction-static"));
        put("suggested_gpu_memory_utilization", fraction("--gpu-memory-utilization"));
        let longest = remedy_value(refused, "--max-model-len").and_then(|v| v.parse().ok());
        put("estimated_max_model_len", longest.map(Figure::Count));
    }
    if let Some(run) = served {
        serve::figures::add(&mut outcome, run);
    }
    outcome
}

/// The value of a way out: the last word of "above 0.942".
fn remedy_value<'a>(refused: &'a Refused, flag: &str) -> Option<&'a str> {
    let remedy = refused.remedies.iter().find(|remedy| remedy.flag == flag)?;
    remedy.value.as_deref()?.split(' ').next_back()
}

fn claimable(name: &str, value: &FigureValue) -> Option<Figure> {
    match value {
        FigureValue::Bytes(bytes) => Some(Figure::Bytes(bytes.0)),
        FigureValue::Count(n) => i64::try_from(*n).ok().map(Figure::Count),
        FigureValue::Float(x) => Some(Figure::Number(*x)),
        // Chunking that is off.
        FigureValue::Text(text) if name == "chunked_prefill_size" => {
            text.parse().ok().map(Figure::Count)
        }
        FigureValue::Text(_) | FigureValue::List(_) => None,
    }
}
