//! Findings against an answer key: a folder with `truth.jsonl` (a JSON object a line) and `logs/`, where
//! `ENGINE-ID.log` is what a server wrote and `ENGINE-ID.cmd`, where there is one, the command beside it.

use std::{fmt, fs, path::Path};

use plimsoll_diagnosis::{Case, Finding, Level, findings};
use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_ingest::log::read_text;
use serde_json::Value as Json;

/// Remarks of the key on logs that are less than a log: counted apart.
const PARTIAL: &[&str] = &["[no failure line in log]", "[log partly rebuilt]"];

/// One report of the key.
pub(crate) struct Report {
    id: String,
    engine: String,
    cause: String,
    also: Vec<String>,
    fraction: String,
    healthy: bool,
    partial: bool,
    log: String,
    command: Option<String>,
}

/// How near the first finding's cause is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The key's cause.
    Exact,
    /// One that the key accepts as well.
    Accepted,
    /// Another, or none.
    Wrong,
}

/// A report with what the rules say of it.
pub(crate) struct Judged {
    report: Report,
    /// All findings, the answer first.
    pub(crate) findings: Vec<Finding>,
}

impl Judged {
    /// `engine/number` of the report.
    pub(crate) fn id(&self) -> &str {
        &self.report.id
    }

    /// The cause named: a log without findings counts as healthy.
    fn named(&self) -> &'static str {
        self.findings.first().map_or("healthy", |finding| finding.cause.name())
    }

    fn direction(&self) -> &'static str {
        self.findings.first().map_or("no_effect", |finding| finding.fraction.name())
    }

    /// How near the cause is.
    pub(crate) fn cause(&self) -> Cause {
        if self.named() == self.report.cause {
            Cause::Exact
        } else if self.report.also.iter().any(|also| also == self.named()) {
            Cause::Accepted
        } else {
            Cause::Wrong
        }
    }

    /// Whether the direction is right: anything where the key does not know, any change where it takes
    /// either. Silence about a failure is never right.
    pub(crate) fn direction_right(&self) -> bool {
        let said = self.direction();
        let silent = self.findings.is_empty() && !self.report.healthy;
        match self.report.fraction.as_str() {
            "unknown" => !silent,
            "either" => matches!(said, "raise" | "lower" | "either"),
            key => key == said && !silent,
        }
    }

    /// An error on a log that the key calls healthy.
    pub(crate) fn false_alarm(&self) -> bool {
        self.report.healthy && self.findings.iter().any(|finding| finding.level == Level::Error)
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { id, cause, also, fraction, healthy, .. } = &self.report;
        let near = match self.cause() {
            Cause::Exact => "ok   ",
            Cause::Accepted => "near ",
            Cause::Wrong => "WRONG",
        };
        let way = if self.direction_right() { "dir ok   " } else { "dir WRONG" };
        let alarm = if self.false_alarm() { " ERROR-ON-HEALTHY" } else { "" };
        let code = self.findings.first().map_or("-", |finding| finding.code);
        write!(f, "{near} {way} {id:<12} {code}: {} {}", self.named(), self.direction())?;
        write!(f, "  | key: {cause} {also:?} {fraction}")?;
        write!(f, "{}{alarm}", if *healthy { " healthy" } else { "" })
    }
}

/// Counts over a part of the key.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    /// Reports.
    pub(crate) all: u32,
    /// Cause as in the key.
    pub(crate) exact: u32,
    /// Cause as in the key or accepted by it.
    pub(crate) right: u32,
    /// Direction right.
    pub(crate) direction: u32,
    /// Errors on healthy logs.
    pub(crate) false_alarms: u32,
}

impl Tally {
    fn add(&mut self, judged: &Judged) {
        self.all += 1;
        self.exact += u32::from(judged.cause() == Cause::Exact);
        self.right += u32::from(judged.cause() != Cause::Wrong);
        self.direction += u32::from(judged.direction_right());
        self.false_alarms += u32::from(judged.false_alarm());
    }

    /// Share of right causes, 0 to 1.
    pub(crate) fn causes(&self) -> f64 {
        f64::from(self.right) / f64::from(self.all.max(1))
    }

    /// Share of right directions, 0 to 1.
    pub(crate) fn directions(&self) -> f64 {
        f64::from(self.direction) / f64::from(self.all.max(1))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>4} reports  cause {:>4} exact {:>4} right {:>6.1} %  direction {:>4} right {:>6.1} %  false errors {}",
            self.all,
            self.exact,
            self.right,
            100.0 * self.causes(),
            self.direction,
            100.0 * self.directions(),
            self.false_alarms
        )
    }
}

/// The whole key, judged.
pub(crate) struct Score {
    /// A report each, in the key's order.
    pub(crate) judged: Vec<Judged>,
}

impl Score {
    /// Counts of the reports that `take` keeps.
    fn count(&self, take: impl Fn(&Report) -> bool) -> Tally {
        let mut tally = Tally::default();
        self.judged.iter().filter(|j| take(&j.report)).for_each(|j| tally.add(j));
        tally
    }

    /// All reports.
    pub(crate) fn total(&self) -> Tally {
        self.count(|_| true)
    }
}

/// A line a report, then the table.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for judged in &self.judged {
            writeln!(f, "{judged}")?;
        }
        let mut engines: Vec<&str> = self.judged.iter().map(|j| j.report.engine.as_str()).collect();
        engines.sort_unstable();
        engines.dedup();
        for engine in engines {
            writeln!(f, "{engine:<8} {}", self.count(|r| r.engine == engine))?;
        }
        writeln!(f, "{:<8} {}", "strict", self.count(|r| !r.partial))?;
        write!(f, "{:<8} {}", "all", self.total())
    }
}

/// Reads the key under `folder` and judges every report that has a log.
///
/// # Errors
///
/// A key that cannot be read, or a line of it that is no report.
pub(crate) fn score(folder: &Path) -> Result<Score, String> {
    let key = folder.join("truth.jsonl");
    let text = fs::read_to_string(&key).map_err(|error| format!("{}: {error}", key.display()))?;
    let mut judged = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let row: Json = serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1))?;
        if let Some(report) = report(folder, &row).ok_or(format!("line {}: no report", at + 1))? {
            let findings = judge(&report);
            judged.push(Judged { report, findings });
        }
    }
    Ok(Score { judged })
}

/// A report of the key; `Some(None)` when it has no log.
fn report(folder: &Path, row: &Json) -> Option<Option<Report>> {
    let text = |name: &str| row.get(name).and_then(Json::as_str).map(str::to_owned);
    let id = text("id")?;
    let file = |ending: &str| {
        let path = folder.join("logs").join(format!("{}.{ending}", id.replace('/', "-")));
        let bytes = fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let also = row.get("also_acceptable").and_then(Json::as_array).map(Vec::as_slice);
    let also = also.unwrap_or_default().iter().filter_map(Json::as_str).map(str::to_owned);
    let note = text("split_note").unwrap_or_default();
    let Some(log) = file("log") else { return Some(None) };
    Some(Some(Report {
        engine: text("engine")?,
        cause: text("cause")?,
        also: also.collect(),
        fraction: text("fraction")?,
        healthy: row.get("healthy").and_then(Json::as_bool)?,
        partial: PARTIAL.iter().any(|mark| note.contains(mark)),
        log,
        command: file("cmd"),
        id,
    }))
}

fn judge(report: &Report) -> Vec<Finding> {
    let log = read_text(&report.log);
    let command = report.command.as_deref().or(log.command.as_deref());
    let launch =
        command.and_then(|text| parse_command(LaunchInput::Text(text), &Context::default()).ok());
    findings(&Case { log, launch, ..Case::default() })
}
