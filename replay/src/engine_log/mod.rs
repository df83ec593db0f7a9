//! The engine's own log of a run, so that it can be laid beside a real one: the figures of the start, what the
//! scheduler prints while it serves, and the words with which it dies. `docs/metrics.md` says what is approximate.

mod forms;
mod sglang;
mod stamp;
mod start;
#[cfg(test)]
mod tests;
mod vllm;

pub use start::lines as start_lines;

use crate::{
    assemble::Assembled,
    record::{FieldValue, Record},
    serve,
    start::{CaseLaunch, Policy, Ran},
    wire::Log,
};
use plimsoll_core::{
    engine::serving::{Arrival, PassSeen, QuietRun, Watcher},
    policy::sglang::{Resolved, args::ServerArgs},
    sched::{Decision, Usage},
    units::Nanos,
};
use sglang::{SglangLines, SglangSetup};
use std::fmt::Write as _;
use vllm::VllmLines;

/// Lines that were written, each with its date.
#[derive(Clone, Debug, Default)]
struct Lines {
    text: String,
    form: Form,
}

/// What stands before the text of a line.
#[derive(Clone, Debug, Default)]
enum Form {
    /// `[1970-01-01 00:00:15 TP0] `; the text names the ranks.
    Sglang(String),
    /// `INFO 01-01 00:00:15 [loggers.py] `.
    #[default]
    Vllm,
}

impl Lines {
    fn say(&mut self, at: Nanos, text: &str) {
        // Writing to a String cannot fail.
        let _ = match &self.form {
            Form::Sglang(ranks) => {
                writeln!(self.text, "[{}{ranks}] {text}", stamp::with_year(at))
            }
            Form::Vllm => {
                writeln!(self.text, "INFO {} [loggers.py] {text}", stamp::without_year(at))
            }
        };
    }
}

/// Who writes while the server runs.
#[derive(Clone, Debug)]
enum Serving {
    Sglang(Box<SglangLines>),
    Vllm(VllmLines),
}

/// Watches a run and writes what the engine would.
#[derive(Clone, Debug)]
pub struct EngineLog {
    lines: Lines,
    serving: Serving,
}

impl EngineLog {
    /// Of a server after its start, whose lines it begins with.
    #[must_use]
    pub fn new(assembled: &Assembled, ran: &Ran) -> Self {
        let case = &assembled.case;
        let (form, serving) = match (&case.launch, resolved(ran)) {
            (CaseLaunch::Sglang(args), Some(resolved)) => {
                let lines = SglangLines::new(setup(args, resolved, ran));
                (Form::Sglang(ranks(args)), Serving::Sglang(Box::new(lines)))
            }
            (CaseLaunch::Sglang(args), None) => {
                (Form::Sglang(ranks(args)), Serving::Vllm(VllmLines::new()))
            }
            (CaseLaunch::Vllm(_), _) => (Form::Vllm, Serving::Vllm(VllmLines::new())),
        };
        let mut lines = Lines { text: String::new(), form };
        start_lines(case, ran).iter().for_each(|line| lines.say(Nanos(0), line));
        Self { lines, serving }
    }

    /// The whole log; `usage` is that at the end of a served run, `log` the decisions of the run.
    #[must_use]
    pub fn finish(mut self, usage: Option<Usage>, log: &Log) -> String {
        if let Some(usage) = usage {
            match &mut self.serving {
                Serving::Sglang(lines) => lines.ended(usage, &mut self.lines),
                Serving::Vllm(lines) => lines.ended(usage, &mut self.lines),
            }
        }
        if let Some((at, text)) = log.records.iter().find_map(death) {
            self.lines.say(at, &text);
        }
        self.lines.text
    }
}

impl Watcher for EngineLog {
    fn arrived(&mut self, arrival: &Arrival) {
        match &mut self.serving {
            Serving::Sglang(lines) => lines.arrived(arrival),
            Serving::Vllm(lines) => lines.arrived(arrival),
        }
    }

    fn decided(&mut self, decision: &Decision, now: Nanos) {
        match &mut self.serving {
            Serving::Sglang(lines) => lines.decided(decision, now, &mut self.lines),
            Serving::Vllm(lines) => lines.decided(decision),
        }
    }

    fn passed(&mut self, pass: &PassSeen<'_>) {
        match &mut self.serving {
            Serving::Sglang(lines) => lines.passed(pass, &mut self.lines),
            Serving::Vllm(lines) => lines.passed(pass, &mut self.lines),
        }
    }

    fn repeated(&mut self, run: &QuietRun<'_>) {
        match &mut self.serving {
            Serving::Sglang(lines) => lines.repeated(run, &mut self.lines),
            Serving::Vllm(lines) => lines.repeated(run, &mut self.lines),
        }
    }

    fn patience(&self) -> u64 {
        match &self.serving {
            Serving::Sglang(lines) => lines.patience(),
            Serving::Vllm(_) => u64::MAX,
        }
    }
}

fn resolved(ran: &Ran) -> Option<&Resolved> {
    match &ran.policy {
        Policy::Sglang(start) => start.resolved(),
        Policy::Mlx(start) => start.resolved(),
        Policy::Vllm(_) => None,
    }
}

/// Decode results between two lines unless `--decode-log-interval` says another number.
const DECODE_LOG_INTERVAL: u64 = 40;

fn setup(args: &ServerArgs, resolved: &Resolved, ran: &Ran) -> SglangSetup {
    SglangSetup {
        version: args.version,
        page_size: serve::page_size(ran),
        overlap: !args.disable_overlap_schedule,
        interval: args.scheduling.decode_log_interval.unwrap_or(DECODE_LOG_INTERVAL).max(1),
        conservativeness: args.scheduling.schedule_conservativeness.unwrap_or(1.0),
        largest_decode_graph: resolved.largest_decode_graph(),
        largest_prefill_graph: resolved.prefill_sizes.last().copied().unwrap_or(0),
    }
}

/// Ranks in front of a line: always to 0.4.x, only where there are several of them later.
fn ranks(args: &ServerArgs) -> String {
    let mut ranks = String::new();
    if args.dp_size > 1 {
        ranks.push_str(" DP0");
    }
    if args.tp_size > 1 || !args.version.since(5, 0) {
        ranks.push_str(" TP0");
    }
    ranks
}

/// The words with which a server dies, from the record of its death.
fn death(record: &Record) -> Option<(Nanos, String)> {
    let exception = match record.kind.as_str() {
        "out_of_memory" => "torch.OutOfMemoryError",
        "scheduler_fatal" => "RuntimeError",
        _ => return None,
    };
    let Some(FieldValue::Text(message)) = record.fields.get("message") else { return None };
    let at = match record.fields.get("at_ns") {
        Some(FieldValue::Unsigned(at)) => Nanos(*at),
        Some(FieldValue::Signed(at)) => Nanos(u64::try_from(*at).unwrap_or_default()),
        _ => Nanos(0),
    };
    let exception = if message.starts_with("[METAL]") { "RuntimeError" } else { exception };
    let head = "Scheduler hit an exception: Traceback (most recent call last):";
    Some((at, format!("{head}\n{exception}: {message}")))
}
