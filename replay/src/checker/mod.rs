//! An independent reader of a decision log: it trusts nothing and knows no engine.
//!
//! It only follows from record to record what the log itself says, and asks whether that can be: memory
//! (every byte of every rank has an account), steps (numbers, time, limits), requests (the order of a life,
//! tokens that are admitted and made), the order of records up to the end of the process tree, copies in the
//! host tier, and token slots where the log has them. A finding is a mistake of Plimsoll, or a log that somebody changed.

mod memory;
mod order;
mod requests;
mod slots;
mod steps;
mod tiers;

use crate::{
    kinds,
    record::{FieldValue, Record},
    run::{OBSERVE, OBSERVED},
    wire::Log,
};
use std::fmt;

/// What is wrong, and in which record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// `seq` of the record.
    pub seq: u64,
    /// One sentence with the numbers.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.seq, self.what)
    }
}

/// Findings, in the order of the records.
#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn say(&mut self, record: &Record, what: impl Into<String>) {
        self.0.push(Violation { seq: record.seq, what: what.into() });
    }
}

/// One subject that is checked record by record.
trait Subject {
    /// Takes the next record.
    fn take(&mut self, record: &Record, found: &mut Found);

    /// What can only be said at the end; `last` is the last record. Not called for a log that was cut off.
    fn close(&mut self, last: &Record, found: &mut Found);
}

/// Checks a log; an empty list means that everything adds up. A log that was cut off or interrupted is
/// checked as far as it goes.
#[must_use]
pub fn check(log: &Log) -> Vec<Violation> {
    let mut found = Found::default();
    let live = log.header.get(OBSERVE) == Some(&FieldValue::from(OBSERVED));
    let mut memory = if live { memory::Memory::live() } else { memory::Memory::default() };
    let mut order = order::Order::default();
    let mut steps = steps::Steps::default();
    let mut requests = requests::Requests::default();
    let mut slots = slots::Slots::of(&log.header);
    let mut tiers = tiers::Tiers::default();
    for (expected, record) in (0..).zip(&log.records) {
        if record.seq != expected {
            found.say(record, format!("its seq should be {expected}"));
        }
        form(record, &mut found);
        if record.kind == "observed" {
            continue;
        }
        let subjects: [&mut dyn Subject; 6] =
            [&mut order, &mut memory, &mut steps, &mut requests, &mut slots, &mut tiers];
        for subject in subjects {
            subject.take(record, &mut found);
        }
    }
    let Some(last) = log.records.last() else { return found.0 };
    if log.complete {
        let subjects: [&mut dyn Subject; 6] =
            [&mut order, &mut memory, &mut steps, &mut requests, &mut slots, &mut tiers];
        for subject in subjects {
            subject.close(last, &mut found);
        }
    }
    if log.digests_agree() == Some(false) {
        found.say(last, "the digests of the footer are not those of the records");
    }
    found.0
}

/// A known kind, with its fields and no others.
fn form(record: &Record, found: &mut Found) {
    match kinds::of(&record.kind) {
        None => found.say(record, format!("`{}` is no kind of record", record.kind)),
        Some(kind) => {
            if let Some(fault) = kind.fault(record) {
                found.say(record, format!("`{}`: {fault}", record.kind));
            }
        }
    }
}

fn number(record: &Record, name: &str) -> Option<u64> {
    match record.fields.get(name)? {
        FieldValue::Unsigned(n) => Some(*n),
        FieldValue::Signed(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

fn text<'a>(record: &'a Record, name: &str) -> &'a str {
    match record.fields.get(name) {
        Some(FieldValue::Text(text)) => text,
        _ => "",
    }
}

/// A count of 0 where the field is missing: the form was already found wrong then.
fn count(record: &Record, name: &str) -> u64 {
    number(record, name).unwrap_or(0)
}

/// Whether a truth is written: `true`, or the number 1 where a record knows no truths.
fn is_set(record: &Record, name: &str) -> bool {
    match record.fields.get(name) {
        Some(FieldValue::Flag(flag)) => *flag,
        Some(FieldValue::Unsigned(n)) => *n == 1,
        Some(FieldValue::Text(text)) => text == "true" || text == "yes",
        _ => false,
    }
}

/// The first of these that a record has: engines name the same size differently.
fn either(record: &Record, names: [&str; 2]) -> Option<u64> {
    names.into_iter().find_map(|name| number(record, name))
}

/// Names of the requests that may run at once.
const MOST_RUNNING: [&str; 2] = ["max_running_requests", "max_num_seqs"];

/// Whether a record is one or several forward passes.
fn is_pass(record: &Record) -> bool {
    matches!(record.kind.as_str(), "step" | "decode_run")
}
