//! What a page shows of a run, gathered record by record.

use crate::{
    items::Forms,
    row::{Counts, Doing, RankLevels, Row, Span},
    thin::{Budget, Thin},
};
use plimsoll_core::memory::ledger::Account;
use plimsoll_replay::{
    accounts::{Accounts, RankAccounts, number, text},
    record::Record,
};

/// The ledger of a rank at a point of the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Which: the engine's own name of the reading, `capacity` or `ready`.
    pub point: String,
    /// The device then.
    pub rank: RankAccounts,
}

/// What failed, with the accounts of every rank at that moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CrashSeen {
    /// Nanoseconds since the server was ready; `None` in a start.
    pub at_ns: Option<u64>,
    /// The rank; `None` for the host or the scheduler.
    pub rank: Option<u32>,
    /// The pass that failed.
    pub step: Option<u64>,
    /// Its kind.
    pub mode: String,
    /// Its new tokens.
    pub tokens: u64,
    /// Its requests.
    pub requests: u64,
    /// Bytes that were asked of the device.
    pub requested: u64,
    /// Bytes that were free.
    pub free: u64,
    /// Bytes that were live in the allocator.
    pub allocated: u64,
    /// Bytes that it held of the device.
    pub reserved: u64,
    /// The buffer, or what died.
    pub buffer: String,
    /// The engine's words.
    pub message: String,
    /// Who held what, rank by rank.
    pub ledger: Vec<RankAccounts>,
    /// Processes in the order in which they fell: name, by whom, how.
    pub fell: Vec<[String; 3]>,
}

/// The pool and the queues.
#[derive(Clone, Copy, Default, Debug)]
struct Usage {
    used: u64,
    evictable: u64,
    running: u64,
    waiting: u64,
    /// Most that waited since the last pass.
    most_waiting: u64,
}

/// Takes the records of a run in their order.
pub struct Collector {
    accounts: Accounts,
    /// Memory since the last row, rank by rank.
    levels: Vec<RankLevels>,
    usage: Usage,
    now: u64,
    seq: u64,
    rows: Thin,
    waiting: Row,
    out: Collected,
    forms: Forms,
}

/// What was gathered.
#[derive(Default)]
pub struct Collected {
    /// The start.
    pub phases: Vec<Phase>,
    /// The ranks when serving began; empty when it never did.
    pub served: Vec<RankAccounts>,
    /// Slots of the pool.
    pub pool_tokens: u64,
    /// The run, in the order of time.
    pub rows: Vec<Row>,
    /// Length of the stretches into which rows were gathered; 0 when every row is exact.
    pub stretch_ns: u64,
    /// The failure.
    pub crash: Option<CrashSeen>,
    /// How the run ended; empty when nobody said.
    pub outcome: String,
    /// When the last record was.
    pub end_ns: u64,
    /// Records in all.
    pub records: u64,
    pub(crate) forms: Forms,
}

impl Default for Collector {
    fn default() -> Self {
        Self::new(Budget::default())
    }
}

/// Kinds that a page does not list: they are shown as levels, or there are too many of them.
const SHOWN_OTHERWISE: [&str; 9] = [
    "segment_allocated",
    "segment_freed",
    "step",
    "decode_run",
    "ledger",
    "metrics",
    "observed",
    "slots_taken",
    "slots_freed",
];

impl Collector {
    /// Nothing yet.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            accounts: Accounts::default(),
            levels: Vec::new(),
            usage: Usage::default(),
            now: 0,
            seq: 0,
            rows: Thin::new(budget),
            waiting: Row::at(Doing::Change, 0, 0),
            out: Collected::default(),
            forms: Forms::default(),
        }
    }

    /// The next record.
    pub fn take(&mut self, record: &Record) {
        let seq = self.seq;
        self.seq += 1;
        self.accounts.take(record);
        self.look(record);
        if self.out.served.is_empty() {
            self.start(record);
        } else {
            self.serve(seq, record);
        }
        self.failure(record);
    }

    /// What was gathered.
    #[must_use]
    pub fn finish(mut self) -> Collected {
        // Of a recording that was cut off, what nobody came to decide.
        if !self.waiting.items.is_empty() {
            self.close(Row::at(Doing::End, self.now, self.now));
        }
        let stretch_ns = self.rows.stretch_ns();
        let rows = self.rows.finish();
        Collected {
            rows,
            stretch_ns,
            records: self.seq,
            end_ns: if self.out.outcome.is_empty() { self.now } else { self.out.end_ns },
            forms: self.forms,
            ..self.out
        }
    }

    /// Memory that moved since the last row.
    fn look(&mut self, record: &Record) {
        if self.levels.len() != self.accounts.ranks().len() {
            self.levels = self.accounts.ranks().iter().map(levels_of).collect();
        }
        const MOVED: [&str; 6] = [
            "segment_allocated",
            "segment_freed",
            "leaked",
            "observed",
            "tenant_changed",
            "host_tenant_changed",
        ];
        if !MOVED.contains(&record.kind.as_str()) {
            return;
        }
        for (levels, rank) in self.levels.iter_mut().zip(self.accounts.ranks()) {
            if record.rank.is_none_or(|one| one == rank.rank) {
                *levels = levels.with(levels_of(rank));
            }
        }
    }

    fn start(&mut self, record: &Record) {
        let point = match record.kind.as_str() {
            "capacity_read" => "capacity",
            "reading" => text(record, "point"),
            "ready" | "out_of_memory" => record.kind.as_str(),
            "serving_started" => {
                self.out.served = self.accounts.ranks().to_vec();
                self.out.pool_tokens = number(record, "pool_tokens").unwrap_or(0);
                self.levels = self.accounts.ranks().iter().map(levels_of).collect();
                return;
            }
            _ => return,
        };
        for rank in self.accounts.ranks() {
            if record.rank.is_none_or(|one| one == rank.rank) {
                let (point, rank) = (point.to_owned(), rank.clone());
                self.out.phases.push(Phase { point, rank });
            }
        }
    }

    fn serve(&mut self, seq: u64, record: &Record) {
        let at = number(record, "at_ns");
        let finished = record.kind == "finished";
        if !SHOWN_OTHERWISE.contains(&record.kind.as_str()) {
            let item = self.forms.item(seq, record);
            match self.rows.last_mut().filter(|_| finished) {
                Some(last) => last.items.push(item),
                None => self.waiting.items.push(item),
            }
        }
        self.count(record);
        match record.kind.as_str() {
            "step" | "decode_run" => self.pass(record),
            "request_arrived" => {
                self.usage.waiting += 1;
                self.usage.most_waiting = self.usage.most_waiting.max(self.usage.waiting);
            }
            "request_refused" => self.usage.waiting = self.usage.waiting.saturating_sub(1),
            "tenant_changed" | "host_tenant_changed" | "leaked" | "tenant_refused" => {
                let at = at.unwrap_or(self.now).max(self.now);
                self.now = at;
                let mut row = Row::at(Doing::Change, at, at);
                row.pinned = true;
                self.close(row);
            }
            "run_ended" => self.ended(record),
            _ => {}
        }
    }

    fn count(&mut self, record: &Record) {
        let counts = match record.kind.as_str() {
            "finished" => match self.rows.last_mut() {
                Some(last) => &mut last.counts,
                None => &mut self.waiting.counts,
            },
            _ => &mut self.waiting.counts,
        };
        let (count, pin) = match record.kind.as_str() {
            "request_arrived" => (&mut counts.arrived, false),
            "admitted" => (&mut counts.admitted, false),
            "deferred" => (&mut counts.deferred, false),
            "retracted" => (&mut counts.retracted, true),
            "preempted" => (&mut counts.preempted, true),
            "evicted" => (&mut counts.evicted, false),
            "finished" if text(record, "finish") == "abort" => (&mut counts.aborted, false),
            "finished" => (&mut counts.finished, false),
            "request_refused" => (&mut counts.refused, true),
            "tenant_changed" | "host_tenant_changed" | "leaked" | "tenant_refused" => {
                (&mut counts.changes, true)
            }
            _ => return,
        };
        *count += 1;
        self.waiting.pinned |= pin;
    }

    fn pass(&mut self, record: &Record) {
        let count = |name: &str| number(record, name).unwrap_or(0);
        let (from, lasted) = (count("at_ns"), count("elapsed_ns"));
        let to = from.saturating_add(lasted);
        let decode = record.kind == "decode_run";
        let doing = match (decode, text(record, "mode")) {
            (true, _) => Doing::Decode,
            (false, "mixed") => Doing::Mixed,
            (false, _) => Doing::Prefill,
        };
        let mut row = Row::at(doing, from, to);
        row.requests = count("requests");
        if decode {
            (row.first_step, row.steps) = (count("first_step"), count("steps"));
            row.decode_tokens = row.requests.saturating_mul(row.steps);
            row.decode_ns = lasted;
        } else {
            (row.first_step, row.steps) = (count("step"), 1);
            row.prefills = 1;
            row.prefill_tokens = count("tokens");
            row.prefill_most = row.prefill_tokens;
            row.prefix_tokens = count("prefix_tokens");
            row.prefill_ns = lasted;
        }
        row.live = Span::of(count("peak_bytes"));
        self.usage = Usage {
            used: count("used_tokens"),
            evictable: count("evictable_tokens"),
            running: count("running"),
            waiting: count("waiting"),
            most_waiting: self.usage.most_waiting,
        };
        self.now = self.now.max(to);
        self.close(row);
    }

    /// Ends a row: what came since the last one belongs to it.
    fn close(&mut self, mut row: Row) {
        let waiting = std::mem::replace(&mut self.waiting, Row::at(Doing::Change, 0, 0));
        row.pinned |= waiting.pinned;
        row.items = waiting.items;
        row.counts = waiting.counts;
        let usage = self.usage;
        row.used = Span::of(usage.used);
        row.evictable = Span::of(usage.evictable);
        row.running = Span::of(usage.running);
        row.waiting = Span { min: usage.waiting, max: usage.most_waiting.max(usage.waiting) };
        self.usage.most_waiting = usage.waiting;
        let same = self.levels.windows(2).all(|pair| pair[0] == pair[1]);
        let shown = if same { 1 } else { self.levels.len() };
        row.ranks = self.levels.iter().take(shown).copied().collect();
        self.levels = self.accounts.ranks().iter().map(levels_of).collect();
        self.rows.push(row);
    }

    fn failure(&mut self, record: &Record) {
        match record.kind.as_str() {
            "out_of_memory" | "scheduler_fatal" | "device_lost" => self.crash(record),
            "step_failed" => {
                let Some(crash) = &mut self.out.crash else { return };
                crash.mode = text(record, "mode").to_owned();
                crash.tokens = number(record, "tokens").unwrap_or(0);
                crash.requests = number(record, "requests").unwrap_or(0);
            }
            "process_ended" => {
                let Some(crash) = &mut self.out.crash else { return };
                let words = ["process", "by", "how"].map(|name| text(record, name).to_owned());
                crash.fell.push(words);
            }
            _ => {}
        }
    }

    fn crash(&mut self, record: &Record) {
        if self.out.crash.is_some() {
            return;
        }
        let count = |name: &str| number(record, name).unwrap_or(0);
        let served = !self.out.served.is_empty();
        // A pass may fail while the one before it still runs on the device.
        let at = number(record, "at_ns").unwrap_or(self.now);
        let what = ["buffer", "code", "account"].map(|name| text(record, name));
        let what = what.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        self.out.crash = Some(CrashSeen {
            at_ns: served.then_some(at),
            rank: record.rank,
            step: number(record, "step"),
            requested: count("requested_bytes"),
            free: count("free_bytes"),
            allocated: count("allocated_bytes"),
            reserved: count("reserved_bytes"),
            buffer: what.to_owned(),
            message: text(record, "message").to_owned(),
            ledger: self.accounts.ranks().to_vec(),
            ..CrashSeen::default()
        });
    }

    /// The last row: the failure with what the end says of the pool and the queues, or the end.
    fn ended(&mut self, record: &Record) {
        self.out.outcome = text(record, "outcome").to_owned();
        let crash = self.out.crash.as_ref();
        let said = number(record, "at_ns").unwrap_or(self.now);
        let at = if crash.is_some() { said } else { said.max(self.now) };
        self.now = self.now.max(at);
        self.out.end_ns = at;
        let mut row = Row::at(if crash.is_some() { Doing::Crash } else { Doing::End }, at, at);
        row.pinned = true;
        if let Some(crash) = crash {
            row.from_ns = crash.at_ns.unwrap_or(at);
            row.to_ns = row.from_ns;
            row.first_step = crash.step.unwrap_or(0);
            row.requests = crash.requests;
            row.live = Span::of(crash.allocated);
            // The state in which it failed, not what the pass held before.
            self.levels = crash.ledger.iter().map(levels_of).collect();
            let count = |name: &str, before| number(record, name).unwrap_or(before);
            self.usage.used = count("used_tokens", self.usage.used);
            self.usage.running = count("running", self.usage.running);
            self.usage.waiting = count("waiting", self.usage.waiting);
        }
        self.close(row);
    }
}

fn levels_of(rank: &RankAccounts) -> RankLevels {
    RankLevels {
        others: Span::of(rank.of(Account::OtherPrograms)),
        leaked: Span::of(rank.of(Account::Unaccounted)),
        reserved: Span::of(rank.of(Account::Activations)),
        free: Span::of(rank.free().unwrap_or(0)),
    }
}

impl Collected {
    /// The rank that is shown: the one that failed, or the one that had the least free at any time.
    #[must_use]
    pub fn rank(&self) -> u32 {
        let failed = self.crash.as_ref().and_then(|crash| crash.rank);
        let ranks = u32::try_from(self.served.len()).unwrap_or(u32::MAX);
        let least = |rank: &u32| {
            let rows = self.rows.iter().map(|row| row.rank(*rank).free.min);
            rows.min().unwrap_or(u64::MAX)
        };
        failed.unwrap_or_else(|| (0..ranks).min_by_key(least).unwrap_or(0))
    }

    /// All counts of the run.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Row::at(Doing::Several, 0, 0);
        for row in &self.rows {
            let counts = Row { counts: row.counts, ..Row::at(Doing::Several, 0, 0) };
            sum.merge(&counts);
        }
        sum.counts
    }
}
