//! The order of records: start, serving, and how everything falls when one allocation fails.

use super::{Found, Subject, text};
use crate::record::Record;
use std::collections::BTreeSet;

/// Records of a start, up to its end.
const START: [&str; 9] = [
    "capacity_read",
    "settings_resolved",
    "segment_allocated",
    "segment_freed",
    "reading",
    "tenant_changed",
    "pool_sized",
    "host_read",
    "host_pool_sized",
];

/// Records of a server that serves.
const SERVING: [&str; 24] = [
    "request_arrived",
    "request_refused",
    "admitted",
    "deferred",
    "evicted",
    "backed_up",
    "loaded_back",
    "evicted_host",
    "retracted",
    "preempted",
    "ratio",
    "segment_allocated",
    "segment_freed",
    "step",
    "decode_run",
    "slots_taken",
    "slots_freed",
    "slots_cached",
    "tenant_changed",
    "host_tenant_changed",
    "tenant_refused",
    "leaked",
    "finished",
    "reading",
];

/// The cascade: a failure, the accounts at that moment, the step, the scheduler, the processes, the server.
/// Only the scheduler, the processes and the server are there when a scheduler dies of slots.
const CASCADE: [&str; 5] =
    ["ledger", "step_failed", "scheduler_ended", "process_ended", "server_ended"];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Stage {
    #[default]
    Starting,
    /// `ready`: the end, or the beginning of serving.
    Ready,
    Serving,
    /// A failure; the position in [`CASCADE`] that was reached.
    Falling(usize),
    /// The start failed: only the accounts may follow.
    Refused,
    /// The metrics, which only the end follows.
    Measured,
    Ended,
}

#[derive(Default)]
pub(super) struct Order {
    stage: Stage,
    failure: Option<&'static str>,
    seen: BTreeSet<usize>,
}

impl Subject for Order {
    fn take(&mut self, record: &Record, found: &mut Found) {
        let kind = record.kind.as_str();
        let next = match self.stage {
            Stage::Starting => starting(kind),
            Stage::Ready => (kind == "serving_started").then_some(Stage::Serving),
            Stage::Serving => self.serving(kind),
            Stage::Falling(at) => self.falling(at, kind),
            Stage::Refused => (kind == "ledger").then_some(Stage::Refused),
            Stage::Measured => (kind == "run_ended").then_some(Stage::Ended),
            Stage::Ended => None,
        };
        match next {
            Some(next) => self.stage = next,
            None => found.say(record, format!("`{kind}` is out of place here")),
        }
        if kind == "run_ended" {
            self.ended(record, found);
        }
    }

    fn close(&mut self, last: &Record, found: &mut Found) {
        let over = matches!(self.stage, Stage::Ready | Stage::Refused | Stage::Ended);
        if !over {
            found.say(last, "the log ends before the server is ready, refused, or has ended");
        }
    }
}

fn starting(kind: &str) -> Option<Stage> {
    match kind {
        "ready" => Some(Stage::Ready),
        "refused" | "device_lost" | "out_of_memory" => Some(Stage::Refused),
        _ if START.contains(&kind) => Some(Stage::Starting),
        _ => None,
    }
}

impl Order {
    fn serving(&mut self, kind: &str) -> Option<Stage> {
        let failures = ["out_of_memory", "scheduler_fatal", "device_lost"];
        if let Some(failure) = failures.into_iter().find(|failure| *failure == kind) {
            self.failure = Some(failure);
            return Some(Stage::Falling(0));
        }
        match kind {
            "metrics" => Some(Stage::Measured),
            "run_ended" => Some(Stage::Ended),
            // A kill from outside: nothing is said before the processes fall.
            "process_ended" => {
                self.failure = Some("kill");
                self.falling(0, kind)
            }
            _ if SERVING.contains(&kind) => Some(Stage::Serving),
            _ => None,
        }
    }

    fn falling(&mut self, at: usize, kind: &str) -> Option<Stage> {
        match kind {
            "metrics" => return Some(Stage::Measured),
            "run_ended" => return Some(Stage::Ended),
            _ => {}
        }
        let here = CASCADE.iter().position(|name| *name == kind)?;
        let again = self.seen.contains(&here) && matches!(kind, "step_failed" | "server_ended");
        self.seen.insert(here);
        (here >= at && !again).then_some(Stage::Falling(here))
    }

    /// At `run_ended`: the outcome is that of the failure, and nothing of the cascade is left out.
    fn ended(&self, record: &Record, found: &mut Found) {
        let outcome = text(record, "outcome");
        let fits = match self.failure {
            None => {
                matches!(outcome, "finished" | "hung" | "max_steps" | "max_time" | "interrupted")
            }
            Some("out_of_memory") => matches!(outcome, "out_of_memory" | "host_out_of_memory"),
            Some("scheduler_fatal") => outcome == "fatal",
            Some("device_lost") => outcome == "lost",
            Some(_) => outcome == "host_out_of_memory",
        };
        if !fits {
            let after = self.failure.unwrap_or("no failure");
            found.say(record, format!("`{outcome}` does not follow from {after}"));
        }
        let needed: &[usize] = match self.failure {
            Some("out_of_memory") if outcome == "out_of_memory" => &[0, 1, 2, 3, 4],
            Some("out_of_memory" | "scheduler_fatal" | "device_lost") => &[2, 3, 4],
            Some(_) => &[3, 4],
            None => &[],
        };
        for missing in needed.iter().filter(|at| !self.seen.contains(at)) {
            found.say(record, format!("the run ended and `{}` is missing", CASCADE[*missing]));
        }
    }
}
