//! From a log to a [`Timeline`].

use super::{Crash, Doing, End, Layers, Point, Timeline};
use crate::{
    accounts::{Accounts, number, text},
    record::{FieldValue, Record},
    wire::Log,
};
use plimsoll_core::memory::ledger::Account;

pub(super) fn timeline(log: &Log) -> Option<Timeline> {
    let begin = log.records.iter().position(|record| record.kind == "serving_started")?;
    let mut accounts = Accounts::default();
    for record in &log.records[..=begin] {
        accounts.take(record);
    }
    let serving = &log.records[begin..];
    let survey = Survey::of(&accounts, serving);
    let start = accounts.rank(survey.rank)?;
    let mut fixed = start.rows();
    fixed.retain(|(account, _)| !matches!(account, Account::Free | Account::Activations));
    for (account, bytes) in &mut fixed {
        if *account == Account::OtherPrograms {
            *bytes = survey.least_others;
        }
    }
    fixed.retain(|(_, bytes)| *bytes > 0);
    let mut reader = Reader {
        rank: survey.rank,
        base_others: survey.least_others,
        base_unaccounted: start.of(Account::Unaccounted),
        timeline: Timeline {
            name: name(log),
            rank: survey.rank,
            ranks: u32::try_from(accounts.ranks().len()).unwrap_or(u32::MAX),
            capacity: start.capacity().unwrap_or(0),
            fixed,
            pool_tokens: number(&log.records[begin], "pool_tokens").unwrap_or(0),
            points: Vec::new(),
            end_ns: 0,
            end: End::Cut,
        },
        accounts,
        now: 0,
        most_reserved: 0,
        usage: (0, 0, 0),
    };
    for record in serving {
        reader.take(record);
    }
    Some(reader.timeline)
}

fn name(log: &Log) -> String {
    match log.header.get("scenario") {
        Some(FieldValue::Text(name)) => name.clone(),
        _ => String::new(),
    }
}

/// What must be known before the points: which rank is shown, and the least that others hold on it.
struct Survey {
    rank: u32,
    least_others: u64,
}

impl Survey {
    fn of(start: &Accounts, serving: &[Record]) -> Self {
        let mut accounts = start.clone();
        let look = |accounts: &Accounts, seen: &mut Vec<(u64, u64)>| {
            for (rank, seen) in accounts.ranks().iter().zip(seen) {
                seen.0 = seen.0.min(rank.free().unwrap_or(u64::MAX));
                seen.1 = seen.1.min(rank.of(Account::OtherPrograms));
            }
        };
        let mut seen = vec![(u64::MAX, u64::MAX); accounts.ranks().len()];
        look(&accounts, &mut seen);
        let mut failed = None;
        for record in serving {
            accounts.take(record);
            let moved = ["segment_allocated", "tenant_changed", "host_tenant_changed", "leaked"];
            if moved.contains(&record.kind.as_str()) {
                look(&accounts, &mut seen);
            }
            if record.kind == "out_of_memory" {
                failed = failed.or(record.rank);
            }
        }
        let least = (0..).zip(&seen).min_by_key(|(_, (free, _))| *free).map_or(0, |(rank, _)| rank);
        let rank = failed.unwrap_or(least);
        Self { rank, least_others: seen.get(rank as usize).map_or(0, |(_, others)| *others) }
    }
}

struct Reader {
    rank: u32,
    base_others: u64,
    base_unaccounted: u64,
    timeline: Timeline,
    accounts: Accounts,
    now: u64,
    /// Most that the allocator held since the last pass.
    most_reserved: u64,
    /// Slots in use, requests that run, requests that wait.
    usage: (u64, u64, u64),
}

impl Reader {
    fn take(&mut self, record: &Record) {
        self.accounts.take(record);
        let (reserved, _) = self.reserved_and_free();
        self.most_reserved = self.most_reserved.max(reserved);
        let at = number(record, "at_ns");
        match record.kind.as_str() {
            "serving_started" => self.event(0),
            "step" | "decode_run" => self.pass(record),
            "tenant_changed" | "host_tenant_changed" | "leaked" => {
                self.event(at.unwrap_or(self.now));
            }
            "request_arrived" => {
                self.usage.2 += 1;
                self.event(at.unwrap_or(self.now));
            }
            "out_of_memory" | "scheduler_fatal" | "device_lost" => self.crash(record),
            "step_failed" => self.failed_pass(record),
            "run_ended" => {
                self.used_at_end(record);
                self.now = self.now.max(at.unwrap_or(0));
                if !matches!(self.timeline.end, End::Crash(_)) {
                    self.timeline.end = End::Over(text(record, "outcome").to_owned());
                }
            }
            _ => {}
        }
        self.timeline.end_ns = self.timeline.end_ns.max(self.now);
    }

    /// What the allocator holds on the rank, and what is free there.
    fn reserved_and_free(&self) -> (u64, u64) {
        let rank = self.accounts.rank(self.rank);
        rank.map_or((0, 0), |rank| (rank.of(Account::Activations), rank.free().unwrap_or(0)))
    }

    fn point(&self, from_ns: u64, to_ns: u64, doing: Doing, live: u64, reserved: u64) -> Point {
        let held = |account| self.accounts.rank(self.rank).map_or(0, |rank| rank.of(account));
        let (now_reserved, free) = self.reserved_and_free();
        let (used, running, waiting) = self.usage;
        Point {
            from_ns,
            to_ns,
            doing,
            layers: Layers {
                others: held(Account::OtherPrograms).saturating_sub(self.base_others),
                leaked: held(Account::Unaccounted).saturating_sub(self.base_unaccounted),
                live: live.min(reserved),
                cached: reserved.saturating_sub(live),
            },
            free: free.saturating_sub(reserved.saturating_sub(now_reserved)),
            used,
            running,
            waiting,
        }
    }

    /// A change between passes; nothing is live then.
    fn event(&mut self, at: u64) {
        let at = at.max(self.now);
        self.now = at;
        let (reserved, _) = self.reserved_and_free();
        let point = self.point(at, at, Doing::Idle, 0, reserved);
        self.timeline.points.push(point);
    }

    fn pass(&mut self, record: &Record) {
        let count = |name: &str| number(record, name).unwrap_or(0);
        self.usage = (count("used_tokens"), count("running"), count("waiting"));
        let doing = if record.kind == "step" { Doing::Prefill } else { Doing::Decode };
        let from = count("at_ns");
        let to = from.saturating_add(count("elapsed_ns"));
        let point = self.point(from, to, doing, count("peak_bytes"), self.most_reserved);
        self.timeline.points.push(point);
        self.now = self.now.max(to);
        self.most_reserved = self.reserved_and_free().0;
    }

    fn crash(&mut self, record: &Record) {
        let count = |name: &str| number(record, name).unwrap_or(0);
        let at = number(record, "at_ns").unwrap_or(self.now).max(self.now);
        let (reserved, _) = self.reserved_and_free();
        let live = count("allocated_bytes");
        let point = self.point(self.now, at, Doing::Idle, live, reserved);
        self.timeline.points.push(point);
        self.now = at;
        let buffer = ["buffer", "code", "account"].map(|name| text(record, name));
        let buffer = buffer.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        self.timeline.end = End::Crash(Crash {
            at_ns: at,
            rank: record.rank,
            step: count("step"),
            requested: count("requested_bytes"),
            free: count("free_bytes"),
            allocated: live,
            buffer: buffer.to_owned(),
            message: text(record, "message").to_owned(),
            ..Crash::default()
        });
    }

    /// A pass that failed had taken its slots.
    fn used_at_end(&mut self, record: &Record) {
        let used = number(record, "used_tokens").unwrap_or(0);
        let failed = matches!(self.timeline.end, End::Crash(_));
        if let Some(point) = self.timeline.points.last_mut().filter(|_| failed) {
            point.used = point.used.max(used);
        }
    }

    /// The pass that the failure ended: its kind and size.
    fn failed_pass(&mut self, record: &Record) {
        let End::Crash(crash) = &mut self.timeline.end else { return };
        crash.mode = text(record, "mode").to_owned();
        crash.tokens = number(record, "tokens").unwrap_or(0);
        crash.requests = number(record, "requests").unwrap_or(0);
        let prefill = crash.mode != "decode";
        if let Some(point) = self.timeline.points.last_mut() {
            point.doing = if prefill { Doing::Prefill } else { Doing::Decode };
        }
    }
}
