//! Steps: numbers without a gap, time that never goes back, and the limits of the server.

use super::{Found, MOST_RUNNING, Subject, count, either, is_pass, number, text};
use crate::record::Record;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Steps {
    /// Number of the next pass.
    next: u64,
    /// When the last pass, or the first of its run, began.
    began: u64,
    /// When the last pass ended.
    now: u64,
    /// Latest time that each kind of event had.
    latest: BTreeMap<String, u64>,
    /// Latest event that must not lie after the beginning of the next pass.
    due: u64,
    pool: Option<u64>,
    window_pool: Option<u64>,
    most_running: Option<u64>,
    chunk: Option<u64>,
    over: bool,
}

impl Subject for Steps {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "serving_started" => {
                self.pool = number(record, "pool_tokens");
                self.window_pool = number(record, "window_pool_tokens");
                self.most_running = either(record, MOST_RUNNING).filter(|n| *n > 0);
                let names = ["chunked_prefill_size", "max_num_batched_tokens"];
                self.chunk = either(record, names).filter(|n| *n > 0);
            }
            "run_ended" => self.end(record, found),
            "out_of_memory" | "scheduler_fatal" => {
                self.over = true;
                self.event(record, found);
            }
            _ if is_pass(record) => self.pass(record, found),
            _ => self.event(record, found),
        }
    }

    fn close(&mut self, _last: &Record, _found: &mut Found) {}
}

impl Steps {
    fn pass(&mut self, record: &Record, found: &mut Found) {
        let run = record.kind == "decode_run";
        let (first, steps) = if run {
            (count(record, "first_step"), count(record, "steps"))
        } else {
            (count(record, "step"), 1)
        };
        if first != self.next {
            found.say(record, format!("step {first}, and {} is due", self.next));
        }
        if steps == 0 {
            found.say(record, "a run of no steps");
        }
        self.next = first.saturating_add(steps);
        let at = count(record, "at_ns");
        if at < self.now {
            found.say(record, format!("it begins at {at} ns, before the last one ended"));
        }
        if at < self.due {
            found.say(
                record,
                format!("it begins at {at} ns, and knows an event of {} ns", self.due),
            );
        }
        self.began = at;
        self.now = self.now.max(at.saturating_add(count(record, "elapsed_ns")));
        self.usage(record, found);
        self.batch(record, found);
    }

    fn usage(&self, record: &Record, found: &mut Found) {
        self.pool_use(record, found, "", self.pool);
        self.pool_use(record, found, "window_", self.window_pool);
        let running = count(record, "running");
        if let Some(most) = self.most_running.filter(|most| running > *most) {
            found.say(record, format!("{running} requests run, and at most {most} may"));
        }
    }

    /// What is used and what is not are at most the pool; figures of a pool that is not there are 0.
    fn pool_use(&self, record: &Record, found: &mut Found, which: &str, pool: Option<u64>) {
        let tokens = |what: &str| count(record, &format!("{what}_{which}tokens"));
        let (used, rest) =
            (tokens("used"), tokens("available").saturating_add(tokens("evictable")));
        if let Some(pool) = pool.filter(|pool| used.saturating_add(rest) > *pool) {
            found.say(
                record,
                format!("{used} {which}tokens used and {rest} not used of a pool of {pool}"),
            );
        }
    }

    fn batch(&self, record: &Record, found: &mut Found) {
        let requests = count(record, "requests");
        if requests == 0 {
            found.say(record, "a pass without a request");
        }
        let tokens = count(record, "tokens");
        match (record.kind.as_str(), text(record, "mode")) {
            ("decode_run", _) => {}
            ("step", "prefill") => {
                if let Some(chunk) = self.chunk.filter(|chunk| tokens > *chunk) {
                    found.say(
                        record,
                        format!("a prefill of {tokens} tokens with chunks of {chunk}"),
                    );
                }
                if tokens < requests {
                    found.say(record, format!("{tokens} tokens for {requests} requests"));
                }
            }
            ("step", "mixed") => {
                if tokens < requests {
                    found.say(record, format!("{tokens} tokens for {requests} requests"));
                }
            }
            (_, mode) => found.say(record, format!("`{mode}` is no mode of a step")),
        }
    }

    /// A record that is no pass: its step is the last one or the next, its time does not go back.
    fn event(&mut self, record: &Record, found: &mut Found) {
        if let Some(step) = number(record, "step") {
            let last = self.next.saturating_sub(1);
            if step != last && step != self.next {
                found.say(record, format!("it is of step {step}, and {} is due", self.next));
            }
        }
        let Some(at) = number(record, "at_ns") else { return };
        let kind = record.kind.clone();
        let latest = self.latest.entry(kind).or_default();
        if at < *latest {
            found.say(record, format!("time goes back from {latest} ns to {at} ns"));
        }
        *latest = (*latest).max(at);
        let after_pass =
            matches!(record.kind.as_str(), "finished" | "out_of_memory" | "step_failed");
        // In an overlap loop this is the result of the pass before the last, or the next launch: both come
        // when the last one begins.
        if after_pass && at < self.began {
            found.say(
                record,
                format!("it is of {at} ns, and the last pass began at {} ns", self.began),
            );
        }
        self.due = self.due.max(at);
    }

    fn end(&mut self, record: &Record, found: &mut Found) {
        let steps = count(record, "steps");
        // The pass that failed is no pass of the log; it may be counted.
        let failed = u64::from(self.over);
        if steps != self.next && steps != self.next + failed {
            found.say(record, format!("{steps} steps are said, and {} are there", self.next));
        }
        let at = count(record, "at_ns");
        let last = if text(record, "outcome") == "finished" { self.now } else { self.began };
        if at < last || at < self.due {
            found.say(record, format!("the run ends at {at} ns, before its last event"));
        }
    }
}
