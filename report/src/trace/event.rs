//! One event of a trace as its line of JSON (the Trace Event Format that Perfetto reads).

use plimsoll_replay::record::Record;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The process of the scheduler; that of rank `r` is `RANKS + r`.
pub(super) const SERVER: u64 = 1;
/// The process of the start, whose events have an order and no times.
pub(super) const START: u64 = 2;
/// The process of the first rank.
pub(super) const RANKS: u64 = 10;

/// The track of passes.
pub(super) const PASSES: u64 = 1;
/// The track of what interrupts a server: retractions, evictions, other programs, the failure.
pub(super) const EVENTS: u64 = 2;

/// A time in microseconds with its nanoseconds.
pub(super) fn micros(ns: u64) -> String {
    match (ns / 1000, ns % 1000) {
        (us, 0) => us.to_string(),
        (us, rest) => format!("{us}.{rest:03}"),
    }
}

/// What all events have; `more` is further members, each after a comma.
#[derive(Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) phase: char,
    pub(super) name: &'a str,
    pub(super) category: &'a str,
    pub(super) process: u64,
    pub(super) track: u64,
    pub(super) at_ns: u64,
    pub(super) more: &'a str,
}

impl Event<'_> {
    /// The event, without its end of line.
    pub(super) fn line(&self, args: &Value) -> String {
        let mut out = format!("{{\"ph\":\"{}\",\"name\":{}", self.phase, Value::from(self.name));
        if !self.category.is_empty() {
            let _ = write!(out, ",\"cat\":{}", Value::from(self.category));
        }
        let _ = write!(
            out,
            ",\"pid\":{},\"tid\":{},\"ts\":{}{}",
            self.process,
            self.track,
            micros(self.at_ns),
            self.more
        );
        if !args.is_null() {
            let _ = write!(out, ",\"args\":{args}");
        }
        out.push('}');
        out
    }
}

/// The name of a process or a track.
pub(super) fn name_of(what: &str, process: u64, track: u64, name: &str) -> String {
    let name = Value::from(name);
    format!(
        "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
    )
}

/// The fields of a record.
pub(super) fn args(record: &Record) -> Value {
    let fields = record.fields.decided.iter().chain(&record.fields.measured);
    let mut map: Map<String, Value> = Map::new();
    if let Some(rank) = record.rank {
        map.insert("rank".to_owned(), Value::from(rank));
    }
    map.extend(fields.map(|(name, value)| (name.clone(), crate::items::json_of(value))));
    Value::Object(map)
}
