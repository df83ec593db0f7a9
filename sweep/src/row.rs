//! What one point gives: a row of exact integers and words, its columns, and its line of JSON.

use crate::question::{Axis, Point, Question};
use plimsoll_replay::{
    outcome::{Figure, Outcome},
    run::ScenarioRun,
    scenario::Drawn,
};
use serde_json::{Map, Value, json};

/// One value of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// There is none.
    Null,
    /// Bytes, tokens, nanoseconds, counts.
    Int(i64),
    /// A swept number with a point.
    Float(f64),
    /// A word.
    Text(String),
}

impl Cell {
    fn of(value: Option<u64>) -> Self {
        value.map_or(Self::Null, |n| Self::Int(i64::try_from(n).unwrap_or(i64::MAX)))
    }

    fn text(text: Option<&str>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(text.to_owned()))
    }

    /// The integer, where it is one.
    #[must_use]
    pub const fn int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Null | Self::Float(_) | Self::Text(_) => None,
        }
    }

    /// The word, where it is one.
    #[must_use]
    pub const fn word(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            Self::Null | Self::Int(_) | Self::Float(_) => None,
        }
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Int(n) => json!(n),
            Self::Float(x) => json!(x),
            Self::Text(text) => json!(text),
        }
    }

    fn read(value: &Value, kind: Kind) -> Option<Self> {
        match (value, kind) {
            (Value::Null, _) => Some(Self::Null),
            (Value::Number(n), Kind::Int) => n.as_i64().map(Self::Int),
            (Value::Number(n), Kind::Float) => n.as_f64().map(Self::Float),
            (Value::String(text), Kind::Text) => Some(Self::Text(text.clone())),
            _ => None,
        }
    }
}

/// Type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 64-bit integers.
    Int,
    /// Doubles.
    Float,
    /// Words.
    Text,
}

/// A column that every sweep has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name, the unit last.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it is.
    pub doc: &'static str,
}

const fn column(name: &'static str, kind: Kind, doc: &'static str) -> Column {
    Column { name, kind, doc }
}

/// The outcome of a point whose values the scenario or the engine's command line does not take.
pub const BAD_INPUT: &str = "bad_input";

/// Columns before the swept ones: which point it is.
pub const WHICH: [Column; 3] = [
    column("index", Kind::Int, "Number of the point, from 0."),
    column("scenario", Kind::Text, "Name of the scenario."),
    column("seed", Kind::Int, "Seed of everything random in the run."),
];

/// Columns behind the swept ones: what came of it.
pub const RESULTS: [Column; 50] = [
    column(
        "outcome",
        Kind::Text,
        "`finished` or `started`: it lived. `out_of_memory`, `host_out_of_memory`, `fatal`, `hung`: it died. \
         `max_steps`, `max_time`: its limits ended it. `refused`: the engine does not start. `bad_input`: no \
         such value.",
    ),
    column("reason", Kind::Text, "Why it was refused, or what is wrong with the value."),
    column(
        "drawn",
        Kind::Text,
        "What was drawn of what other programs hold, where the scenario gives a distribution.",
    ),
    column("died_in", Kind::Text, "`start`, `prefill` or `decode`."),
    column("died_at_ns", Kind::Int, "When it died, since the server was ready."),
    column("died_at_step", Kind::Int, "The pass in which it died."),
    column("died_rank", Kind::Int, "The rank that found no memory."),
    column("died_layer", Kind::Int, "The layer of the buffer."),
    column("died_buffer", Kind::Text, "The buffer, or the account, that found no memory."),
    column("died_requested_bytes", Kind::Int, "What was asked for."),
    column("died_segment_bytes", Kind::Int, "What the allocator asked the device for."),
    column("died_free_bytes", Kind::Int, "What was free then."),
    column("pool_tokens", Kind::Int, "Token slots of the KV pool."),
    column("free_after_graphs_bytes", Kind::Int, "Free when the server was ready, weakest rank."),
    column("least_free_bytes", Kind::Int, "Least free after a pass, on any rank."),
    column(
        "margin_bytes",
        Kind::Int,
        "Least free in the whole run; below zero: what was short when it died.",
    ),
    column("duration_ns", Kind::Int, "Length of the run."),
    column("steps", Kind::Int, "Passes that ran."),
    column("arrived_requests", Kind::Int, "Requests that reached the server."),
    column("finished_requests", Kind::Int, "Requests that ended with an answer."),
    column("aborted_requests", Kind::Int, "Requests that were given up."),
    column("refused_requests", Kind::Int, "Requests that were turned away."),
    column("retractions", Kind::Int, "Times that a running request gave its slots back."),
    column("preemptions", Kind::Int, "Those of them that made way for a better priority."),
    column("pool_usage_peak_ppm", Kind::Int, "Most of the pool in use, millionths."),
    column("hit_rate_ppm", Kind::Int, "Part of the prompt tokens that was cached, millionths."),
    column("throughput_requests_milli_per_s", Kind::Int, "Answers a second, thousandths."),
    column("throughput_input_milli_per_s", Kind::Int, "Input tokens a second, thousandths."),
    column("throughput_output_milli_per_s", Kind::Int, "Output tokens a second, thousandths."),
    column("throughput_total_milli_per_s", Kind::Int, "Input and output tokens, as above."),
    column("goodput_milli_per_s", Kind::Int, "Answers within the SLO a second, thousandths."),
    column("slo_share_ppm", Kind::Int, "Part of the requests within the SLO, millionths."),
    column("ttft_mean_ns", Kind::Int, "Time to the first token: mean."),
    column("ttft_p50_ns", Kind::Int, "Time to the first token: median."),
    column("ttft_p90_ns", Kind::Int, "Time to the first token: 90th percentile."),
    column("ttft_p99_ns", Kind::Int, "Time to the first token: 99th percentile."),
    column("tpot_mean_ns", Kind::Int, "Time per later token: mean."),
    column("tpot_p50_ns", Kind::Int, "Time per later token: median."),
    column("tpot_p90_ns", Kind::Int, "Time per later token: 90th percentile."),
    column("tpot_p99_ns", Kind::Int, "Time per later token: 99th percentile."),
    column("itl_mean_ns", Kind::Int, "Gap between two tokens: mean."),
    column("itl_p50_ns", Kind::Int, "Gap between two tokens: median."),
    column("itl_p90_ns", Kind::Int, "Gap between two tokens: 90th percentile."),
    column("itl_p99_ns", Kind::Int, "Gap between two tokens: 99th percentile."),
    column("e2e_mean_ns", Kind::Int, "Time to the last token: mean."),
    column("e2e_p50_ns", Kind::Int, "Time to the last token: median."),
    column("e2e_p90_ns", Kind::Int, "Time to the last token: 90th percentile."),
    column("e2e_p99_ns", Kind::Int, "Time to the last token: 99th percentile."),
    column("claims_failed", Kind::Int, "Claims of the scenario (`expect`) that do not hold."),
    column("decisions_digest", Kind::Text, "Digest of the run's decisions, as `run` prints it."),
];

/// What came of one point.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The point's number.
    pub index: u64,
    /// One cell for each of [`RESULTS`].
    pub cells: Vec<Cell>,
}

impl Row {
    /// The row of a point whose value is none.
    #[must_use]
    pub fn bad_input(index: u64, reason: &str) -> Self {
        let mut cells = vec![Cell::Null; RESULTS.len()];
        cells[0] = Cell::Text(BAD_INPUT.to_owned());
        cells[1] = Cell::Text(one_line(reason));
        Self { index, cells }
    }

    /// The row of a run.
    #[must_use]
    pub fn of_run(index: u64, run: &ScenarioRun) -> Self {
        let cells = RESULTS.iter().map(|column| result(run, column.name)).collect();
        Self { index, cells }
    }

    /// The cell of one of [`RESULTS`].
    #[must_use]
    pub fn get(&self, name: &str) -> &Cell {
        let at = RESULTS.iter().position(|column| column.name == name);
        at.and_then(|at| self.cells.get(at)).unwrap_or(&Cell::Null)
    }

    /// The integer of one of [`RESULTS`].
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        self.get(name).int()
    }

    /// How it ended.
    #[must_use]
    pub fn outcome(&self) -> &str {
        self.cells.first().and_then(Cell::word).unwrap_or_default()
    }

    /// What its ending means.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self.outcome() {
            "finished" | "started" | "max_steps" | "max_time" => Fate::Lived,
            "refused" | BAD_INPUT => Fate::NotStarted,
            _ => Fate::Died,
        }
    }

    /// Its line of JSON, without the end.
    #[must_use]
    pub fn line(&self, question: &Question) -> String {
        let names = columns(question).into_iter().map(|(name, _)| name);
        let values = self.all_cells(question);
        let map: Map<String, Value> =
            names.zip(values).map(|(name, cell)| (name, cell.json())).collect();
        Value::Object(map).to_string()
    }

    /// Every cell, in the order of [`columns`].
    #[must_use]
    pub fn all_cells(&self, question: &Question) -> Vec<Cell> {
        let Some(point) = question.point(self.index) else { return Vec::new() };
        let mut cells = which(question, &point);
        cells.extend(self.cells.iter().cloned());
        cells
    }

    /// Reads a line.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(line: &str, question: &Question) -> Result<Self, String> {
        let value: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("no row of a sweep: {error}"))?;
        let index = value.get("index").and_then(Value::as_u64).ok_or("a row without `index`")?;
        let cell = |column: &Column| {
            let found = value.get(column.name).and_then(|value| Cell::read(value, column.kind));
            found.ok_or_else(|| format!("the row {index} has no `{}`", column.name))
        };
        let row = Self { index, cells: RESULTS.iter().map(cell).collect::<Result<_, _>>()? };
        match row.line(question) == line {
            true => Ok(row),
            false => Err(format!("the row {index} is not of this sweep")),
        }
    }
}

/// What the end of a run means for a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It serves to the end.
    Lived,
    /// It crashes, or hangs for good.
    Died,
    /// It does not start: the engine says so, and no request is lost.
    NotStarted,
}

/// Names and types of all columns of a sweep.
#[must_use]
pub fn columns(question: &Question) -> Vec<(String, Kind)> {
    let fixed = |column: &Column| (column.name.to_owned(), column.kind);
    let swept = |axis: &Axis| (axis.column(), axis.kind().column_kind());
    let mut all: Vec<(String, Kind)> = WHICH.iter().map(fixed).collect();
    all.extend(question.axes.iter().map(swept));
    all.extend(RESULTS.iter().map(fixed));
    all
}

fn which(question: &Question, point: &Point) -> Vec<Cell> {
    let name = question.scenarios.get(point.scenario).map(|asked| asked.name.as_str());
    let mut cells = vec![Cell::of(Some(point.index)), Cell::text(name), Cell::of(Some(point.seed))];
    let values = question.axes.iter().zip(&point.at);
    cells.extend(values.map(|(axis, at)| axis.cell(*at)));
    cells
}

fn result(run: &ScenarioRun, name: &str) -> Cell {
    let outcome = &run.outcome;
    match name {
        "outcome" => Cell::text(Some(outcome.ending.as_str())),
        "reason" => Cell::text(reason(run).as_deref()),
        "claims_failed" => {
            Cell::of(Some(run.claims.iter().filter(|claim| !claim.holds()).count() as u64))
        }
        "drawn" => Cell::text(drawn(run).as_deref()),
        "died_in" | "died_buffer" => text(outcome, name),
        "died_at_ns" => amount(outcome, "died_at"),
        "died_requested_bytes" => amount(outcome, "died_requested"),
        "died_segment_bytes" => amount(outcome, "died_segment"),
        "died_free_bytes" => amount(outcome, "died_free"),
        "pool_tokens" => match amount(outcome, "max_total_num_tokens") {
            Cell::Null => amount(outcome, "kv_cache_tokens"),
            tokens => tokens,
        },
        "free_after_graphs_bytes" => amount(outcome, "free_after_graphs"),
        "least_free_bytes" => amount(outcome, "least_free"),
        "margin_bytes" => margin(outcome),
        "duration_ns" => amount(outcome, "duration"),
        "died_at_step" | "died_rank" | "died_layer" | "steps" => amount(outcome, name),
        "decisions_digest" => Cell::text(Some(&run.digests.decisions)),
        metric => Cell::of(run.served.as_ref().and_then(|served| {
            let values = served.metrics.values().into_iter();
            values.filter(|(spec, _)| spec.full_name == metric).find_map(|(_, value)| value)
        })),
    }
}

fn reason(run: &ScenarioRun) -> Option<String> {
    use plimsoll_core::engine::{serving::ServeEnd, startup::StartEnd};
    match (&run.ran.start.end, run.served.as_ref().map(|run| &run.served.end)) {
        (StartEnd::Refused(refused), _) => {
            Some(one_line(&format!("{}: {}", refused.code, refused.message)))
        }
        (_, Some(ServeEnd::Lost(why))) => Some(one_line(why)),
        _ => None,
    }
}

/// `events[0].others_hold=5368709120 B`, for each that was drawn.
fn drawn(run: &ScenarioRun) -> Option<String> {
    let all = &run.scenario.drawn;
    let one = |drawn: &Drawn| format!("{}={} B", drawn.path, drawn.bytes.0);
    (!all.is_empty()).then(|| all.iter().map(one).collect::<Vec<_>>().join(" "))
}

fn amount(outcome: &Outcome, name: &str) -> Cell {
    match outcome.get(name) {
        Some(Figure::Bytes(n)) => Cell::of(Some(n)),
        Some(Figure::Duration(time)) => Cell::of(Some(time.0)),
        Some(Figure::Count(n)) => Cell::Int(n),
        Some(Figure::Number(_) | Figure::Text(_)) | None => Cell::Null,
    }
}

fn text(outcome: &Outcome, name: &str) -> Cell {
    match outcome.get(name) {
        Some(Figure::Text(text)) => Cell::Text(text),
        _ => Cell::Null,
    }
}

/// Least free at any time; what was short, below zero, where an allocation failed.
fn margin(outcome: &Outcome) -> Cell {
    let int = |name: &str| amount(outcome, name).int();
    if let Some(asked) = int("died_segment").filter(|asked| *asked > 0) {
        return int("died_free").map_or(Cell::Null, |free| Cell::Int(free.saturating_sub(asked)));
    }
    let least = int("least_free").into_iter().chain(int("free_after_graphs")).min();
    least.map_or(Cell::Null, Cell::Int)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
