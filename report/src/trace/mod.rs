//! A run as a trace that Perfetto and chrome://tracing open: counters, passes, requests, and what went wrong,
//! written as the records come.

mod event;
mod requests;

use event::{EVENTS, Event, PASSES, RANKS, SERVER, START, args, micros, name_of};
use plimsoll_core::memory::ledger::Account;
use plimsoll_replay::{
    accounts::{Accounts, RankAccounts, number, text},
    record::Record,
};
use requests::{Requests, TOLD};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// How long a phase of the start is drawn: it has an order, and no time.
const PHASE_NS: u64 = 1_000_000;

/// Writes a trace while a run goes on.
pub struct TraceWriter<W: Write> {
    out: W,
    failed: Option<io::Error>,
    accounts: Accounts,
    /// What stands in the trace of each rank's memory.
    shown: Vec<Value>,
    lines: Vec<String>,
    requests: Requests,
    /// Decisions whose time is that of the pass that comes next.
    due: Vec<Record>,
    serving: bool,
    pool_tokens: u64,
    /// End of the last pass; times of the last event and of the last sample of memory.
    now: u64,
    event_at: u64,
    memory_at: u64,
    phases: u64,
    over: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace; `name` is that of the scenario.
    pub fn new(out: W, name: &str) -> Self {
        let mut writer = Self {
            out,
            failed: None,
            accounts: Accounts::default(),
            shown: Vec::new(),
            lines: Vec::new(),
            requests: Requests::default(),
            due: Vec::new(),
            serving: false,
            pool_tokens: 0,
            now: 0,
            event_at: 0,
            memory_at: 0,
            phases: 0,
            over: false,
        };
        let about = json!({
            "schema": crate::TRACE_MARK,
            "scenario": name,
            "time_zero": "the server is ready",
            "requests_told": TOLD,
        });
        writer.raw(&format!(
            "{{\"otherData\":{about},\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        ));
        let first = name_of("process_name", SERVER, 0, &format!("scheduler of {name}"));
        writer.raw(&first);
        writer.lines.extend([
            name_of("thread_name", SERVER, PASSES, "passes"),
            name_of("thread_name", SERVER, EVENTS, "events"),
            name_of("process_name", START, 0, "start (an order, no times)"),
            name_of("thread_name", START, PASSES, "phases"),
        ]);
        writer.flush_lines();
        writer
    }

    /// The next record of the run.
    pub fn take(&mut self, record: &Record) {
        if self.failed.is_some() {
            return;
        }
        self.accounts.take(record);
        if self.serving {
            self.serve(record)
        } else {
            self.start(record)
        }
        self.flush_lines();
    }

    /// Ends the trace.
    ///
    /// # Errors
    ///
    /// The first failure of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.end(self.now);
        self.flush_lines();
        self.raw("\n]}\n");
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.out),
        }
    }

    fn raw(&mut self, text: &str) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(text.as_bytes())
        {
            self.failed = Some(error);
        }
    }

    fn flush_lines(&mut self) {
        for line in std::mem::take(&mut self.lines) {
            self.raw(",\n");
            self.raw(&line);
        }
    }

    fn start(&mut self, record: &Record) {
        let name = match record.kind.as_str() {
            "capacity_read" => {
                let rank = u64::from(record.rank.unwrap_or(0));
                self.lines.push(name_of("process_name", RANKS + rank, 0, &format!("rank {rank}")));
                return;
            }
            "reading" if record.rank.unwrap_or(0) == 0 => text(record, "point"),
            "settings_resolved" | "pool_sized" | "host_pool_sized" | "ready" | "refused"
            | "out_of_memory" => record.kind.as_str(),
            "serving_started" => {
                self.serving = true;
                self.pool_tokens = number(record, "pool_tokens").unwrap_or(0);
                self.memory(0);
                return;
            }
            _ => return,
        };
        let more = format!(",\"dur\":{}", micros(PHASE_NS));
        let at_ns = self.phases * PHASE_NS;
        self.phases += 1;
        let event = Event {
            phase: 'X',
            name,
            category: "start",
            process: START,
            track: PASSES,
            at_ns,
            more: &more,
        };
        self.lines.push(event.line(&args(record)));
    }

    fn serve(&mut self, record: &Record) {
        let at = number(record, "at_ns");
        let request = number(record, "request");
        match (record.kind.as_str(), request, at) {
            ("step" | "decode_run", ..) => self.pass(record),
            ("request_arrived", Some(request), Some(at)) => {
                self.requests.arrive(&mut self.lines, request, at, &args(record));
            }
            ("finished", Some(request), Some(at)) => {
                self.requests.ends(&mut self.lines, request, at, &args(record));
            }
            (
                "admitted" | "deferred" | "evicted" | "retracted" | "preempted" | "loaded_back"
                | "evicted_host" | "request_refused",
                ..,
            ) => self.due.push(record.clone()),
            (
                "tenant_changed"
                | "host_tenant_changed"
                | "tenant_refused"
                | "leaked"
                | "out_of_memory"
                | "scheduler_fatal"
                | "device_lost",
                ..,
            ) => {
                let at = at.unwrap_or(self.now);
                self.settle(at);
                self.instant(record, at);
                self.memory(at);
            }
            ("run_ended", ..) => {
                let at = at.unwrap_or(self.now);
                self.settle(at);
                self.instant(record, at);
                self.end(at);
            }
            _ => {}
        }
    }

    /// What was decided for a pass is told at its beginning.
    fn settle(&mut self, at: u64) {
        for record in std::mem::take(&mut self.due) {
            let request = number(&record, "request");
            match (record.kind.as_str(), request) {
                ("admitted", Some(request)) => {
                    self.requests.runs(&mut self.lines, request, at, &args(&record));
                }
                ("retracted" | "preempted", Some(request)) => {
                    self.requests.waits(&mut self.lines, request, at, &args(&record));
                    self.instant(&record, at);
                }
                ("request_refused", Some(request)) => {
                    self.requests.ends(&mut self.lines, request, at, &args(&record));
                    self.instant(&record, at);
                }
                _ => self.instant(&record, at),
            }
        }
    }

    fn instant(&mut self, record: &Record, at: u64) {
        let at_ns = at.max(self.event_at);
        self.event_at = at_ns;
        let event = Event {
            phase: 'i',
            name: &record.kind,
            category: "event",
            process: SERVER,
            track: EVENTS,
            at_ns,
            more: ",\"s\":\"p\"",
        };
        self.lines.push(event.line(&args(record)));
    }

    fn pass(&mut self, record: &Record) {
        let count = |name: &str| number(record, name).unwrap_or(0);
        let (at, lasted) = (count("at_ns").max(self.now), count("elapsed_ns"));
        self.settle(at);
        self.memory(at);
        let name = match record.kind.as_str() {
            "step" => text(record, "mode"),
            _ => "decode",
        };
        let more = format!(",\"dur\":{}", micros(lasted));
        let event = Event {
            phase: 'X',
            name,
            category: "pass",
            process: SERVER,
            track: PASSES,
            at_ns: at,
            more: &more,
        };
        self.lines.push(event.line(&args(record)));
        self.now = at.saturating_add(lasted);
        let (used, evictable) = (count("used_tokens"), count("evictable_tokens"));
        let free = self.pool_tokens.saturating_sub(used.saturating_add(evictable));
        let now = self.now;
        self.counter(
            SERVER,
            "pool slots",
            now,
            &json!({ "used": used, "evictable": evictable, "free": free }),
        );
        self.counter(
            SERVER,
            "requests",
            now,
            &json!({ "running": count("running"), "waiting": count("waiting") }),
        );
        let peak = json!({ "peak": count("peak_bytes"), "reserved": count("reserved_bytes") });
        self.counter(SERVER, "allocator, bytes", at, &peak);
    }

    fn counter(&mut self, process: u64, name: &str, at_ns: u64, values: &Value) {
        let event = Event { phase: 'C', name, category: "", process, track: 0, at_ns, more: "" };
        self.lines.push(event.line(values));
    }

    /// The accounts of the ranks where they changed.
    fn memory(&mut self, at: u64) {
        let at = at.max(self.memory_at);
        self.memory_at = at;
        let values: Vec<Value> = self.accounts.ranks().iter().map(accounts_of).collect();
        self.shown.resize(values.len(), Value::Null);
        for (rank, value) in (0_u64..).zip(values) {
            let changed = self.shown.get_mut(rank as usize).filter(|shown| **shown != value);
            if let Some(shown) = changed {
                *shown = value.clone();
                self.counter(RANKS + rank, "memory, bytes", at, &value);
            }
        }
    }

    fn end(&mut self, at: u64) {
        if !std::mem::replace(&mut self.over, true) {
            self.settle(at);
            self.requests.end_all(&mut self.lines, at);
        }
    }
}

fn accounts_of(rank: &RankAccounts) -> Value {
    let rows = Account::ALL.iter().map(|account| (*account, rank.of(*account)));
    let rows = rows.filter(|(account, bytes)| {
        *bytes > 0
            || matches!(
                account,
                Account::Free
                    | Account::Activations
                    | Account::OtherPrograms
                    | Account::Unaccounted
            )
    });
    Value::Object(
        rows.map(|(account, bytes)| (account.name().to_owned(), json!(bytes)))
            .collect::<Map<_, _>>(),
    )
}
