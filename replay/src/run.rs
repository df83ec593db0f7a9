//! Running a scenario: its start on the simulator, its outcome, its claims, its decision log.

use crate::{
    assemble::{self, AssembleError, Assembled},
    checker::{self, Violation},
    digest::Digests,
    outcome::{Claim, Figure, Outcome, evaluate},
    record::{DigestScope, FieldValue, Fields, Record},
    scenario::{FIGURES, Scenario},
    start::{self, CaseError, Ran},
    wire::{Closing, Log, LogWriter, WireError},
};
use plimsoll_core::{
    decision::{self, Digest, Value},
    engine::startup::{Refused, StartEnd},
    figure::FigureValue,
    units::Bytes,
};
use std::{io::Write, path::Path};

/// A scenario that was run.
pub struct ScenarioRun {
    /// The scenario.
    pub scenario: Scenario,
    /// Its case and launch.
    pub assembled: Assembled,
    /// Its start.
    pub ran: Ran,
    /// What it produced.
    pub outcome: Outcome,
    /// What became of its claims.
    pub claims: Vec<Claim>,
    /// Digests of its decision log.
    pub digests: Digests,
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
    /// The log cannot be written.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The checker found that the log does not add up: a mistake of Plimsoll.
    #[error("the decision log does not add up ({0}): please report this scenario")]
    Checker(Violation),
}

impl ScenarioRun {
    /// Whether every claim holds; without claims, whether the server started.
    #[must_use]
    pub fn passed(&self) -> bool {
        if self.scenario.expect.is_empty() {
            return self.ran.start.end == StartEnd::Ready;
        }
        self.claims.iter().all(Claim::holds)
    }

    /// Writes the decision log as JSON Lines.
    ///
    /// # Errors
    ///
    /// [`WireError`] when the writer fails.
    pub fn write_log<W: Write>(&self, out: W) -> Result<(W, Digests), WireError> {
        write_log(&self.scenario, &self.ran, out)
    }
}

/// Runs a scenario that was read from `file`.
///
/// # Errors
///
/// [`RunError`]; a start that is refused or runs out of memory is a result.
pub fn run_scenario(scenario: Scenario, file: &Path) -> Result<ScenarioRun, RunError> {
    let assembled = assemble::of_scenario(&scenario, file)?;
    let ran = start::run(&assembled.case)?;
    let outcome = outcome_of(&ran);
    let claims = evaluate(&scenario.expect, &outcome);
    let (text, digests) = write_log(&scenario, &ran, Vec::new())?;
    let log = Log::read(text.as_slice())?;
    if let Some(violation) = checker::check(&log).into_iter().next() {
        return Err(RunError::Checker(violation));
    }
    Ok(ScenarioRun { scenario, assembled, ran, outcome, claims, digests })
}

fn write_log<W: Write>(scenario: &Scenario, ran: &Ran, out: W) -> Result<(W, Digests), WireError> {
    let mut header = Fields::default();
    header.push(DigestScope::Decisions, "scenario", scenario.name.as_str());
    header.push(DigestScope::Decisions, "seed", scenario.seed);
    let mut log = LogWriter::new(out, &header)?;
    for record in &ran.records {
        log.push(wire_record(record))?;
    }
    log.finish(Closing::Complete)
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
        Value::Int(n) => FieldValue::from(i64::try_from(*n).unwrap_or(i64::MAX)),
        Value::Float(x) => FieldValue::from(*x),
        Value::Flag(flag) => FieldValue::from(*flag),
        Value::Text(text) => FieldValue::from(text.as_str()),
        Value::Null => FieldValue::from("unknown"),
        Value::Ints(list) => FieldValue::List(list.iter().map(|n| FieldValue::from(*n)).collect()),
    }
}

/// What a start produced, by the names that scenarios claim.
#[must_use]
pub fn outcome_of(ran: &Ran) -> Outcome {
    let mut outcome = match &ran.start.end {
        StartEnd::Ready => Outcome::started(),
        StartEnd::Refused(refused) => Outcome::refused(refused.code),
        StartEnd::OutOfMemory(_) => Outcome::out_of_memory(),
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
