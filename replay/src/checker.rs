//! An independent reader of a decision log: it trusts nothing and knows no engine.
//!
//! State of a rank: `total` (what programs see), `others` (held by other programs), `held` (sum of
//! the segments taken). From these follow the rules: every reading is `total - others - held`; nothing
//! is taken that is not there; a refused segment was larger than what was free; the accounts at the end
//! add up; a server is ready, refused, or out of memory, once, at the end. Where a total cannot be read
//! it is solved from the first reading, which then proves nothing by itself.

use crate::{
    record::{FieldValue, Record},
    wire::Log,
};
use std::{collections::BTreeMap, fmt};

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

/// One rank's memory, as the log tells it.
#[derive(Clone, Default)]
struct RankState {
    total: Option<u64>,
    others: u64,
    held: u64,
    by_account: BTreeMap<String, u64>,
    ledger: u64,
    refused: bool,
}

impl RankState {
    fn free(&self) -> Option<u64> {
        self.total?.checked_sub(self.others)?.checked_sub(self.held)
    }
}

#[derive(Default)]
struct Checker {
    ranks: BTreeMap<u32, RankState>,
    host_available: Option<u64>,
    sized: BTreeMap<String, u64>,
    ended: bool,
    found: Vec<Violation>,
}

/// Checks a log; an empty list means that every byte adds up.
#[must_use]
pub fn check(log: &Log) -> Vec<Violation> {
    let mut checker = Checker::default();
    for (expected, record) in (0..).zip(&log.records) {
        if record.seq != expected {
            checker.say(record, format!("its seq should be {expected}"));
        }
        checker.take(record);
    }
    checker.close(log);
    checker.found
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

impl Checker {
    fn say(&mut self, record: &Record, what: impl Into<String>) {
        self.found.push(Violation { seq: record.seq, what: what.into() });
    }

    fn take(&mut self, record: &Record) {
        if self.ended && record.kind != "ledger" {
            self.say(record, format!("`{}` after the end", record.kind));
        }
        match record.kind.as_str() {
            "capacity_read" => self.capacity(record),
            "reading" => self.reading(record),
            "segment_allocated" => self.segment(record),
            "segment_freed" => self.freed(record),
            "tenant_changed" => self.tenant(record),
            "pool_sized" => self.pool(record),
            "host_read" => self.host_available = number(record, "available_bytes"),
            "out_of_memory" => self.out_of_memory(record),
            "ledger" => self.ledger(record),
            "ready" | "refused" | "device_lost" => self.ended = true,
            "settings_resolved" | "host_pool_sized" => {}
            other => self.say(record, format!("`{other}` is no record of a start")),
        }
    }

    fn rank(&mut self, record: &Record) -> Option<&mut RankState> {
        let found = record.rank.filter(|rank| self.ranks.contains_key(rank));
        if found.is_none() {
            self.say(record, "a rank whose capacity was never read");
        }
        self.ranks.get_mut(&found?)
    }

    fn capacity(&mut self, record: &Record) {
        let state = RankState {
            total: number(record, "total_bytes"),
            others: number(record, "others_bytes").unwrap_or(0),
            ..RankState::default()
        };
        let next = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        if record.rank != Some(next) {
            self.say(record, format!("rank {next} should be read here"));
        }
        if let Some(rank) = record.rank {
            self.ranks.insert(rank, state);
        }
    }

    fn reading(&mut self, record: &Record) {
        let read = number(record, "free_bytes");
        let Some(state) = self.rank(record) else { return };
        let Some(read) = read else { return self.say(record, "a reading without free_bytes") };
        if state.total.is_none() {
            state.total =
                read.checked_add(state.others).and_then(|sum| sum.checked_add(state.held));
        }
        let free = state.free();
        if free != Some(read) {
            let free = free.map_or_else(|| "less than nothing".to_owned(), |free| free.to_string());
            self.say(record, format!("read {read} B free, the accounts leave {free}"));
        }
    }

    fn segment(&mut self, record: &Record) {
        let Some(size) = number(record, "size_bytes") else {
            return self.say(record, "a segment without size_bytes");
        };
        if text(record, "place") == "host" {
            return self.host_segment(record, size);
        }
        let account = text(record, "account").to_owned();
        let Some(state) = self.rank(record) else { return };
        let free = state.free();
        state.held = state.held.saturating_add(size);
        *state.by_account.entry(account).or_default() += size;
        if free.is_some_and(|free| size > free) {
            self.say(record, format!("{size} B taken where {} B were free", free.unwrap_or(0)));
        }
    }

    fn freed(&mut self, record: &Record) {
        let (size, account) = (number(record, "size_bytes").unwrap_or(0), text(record, "account"));
        let account = account.to_owned();
        let Some(state) = self.rank(record) else { return };
        let held = state.by_account.entry(account).or_default();
        let there = *held >= size;
        *held = held.saturating_sub(size);
        state.held = state.held.saturating_sub(size);
        if !there {
            self.say(record, format!("{size} B given back that are not held"));
        }
    }

    fn host_segment(&mut self, record: &Record, size: u64) {
        match self.host_available.and_then(|available| available.checked_sub(size)) {
            Some(left) => self.host_available = Some(left),
            None => self.say(record, format!("{size} B of host memory that is not there")),
        }
    }

    fn tenant(&mut self, record: &Record) {
        let held = number(record, "held_bytes").unwrap_or(0);
        let Some(state) = self.rank(record) else { return };
        state.others = held;
        if state.total.is_some() && state.free().is_none() {
            self.say(record, format!("other programs hold {held} B that are not there"));
        }
    }

    fn pool(&mut self, record: &Record) {
        if !self.sized.is_empty() {
            self.say(record, "the pool is sized twice");
        }
        for name in ["kv_pool_bytes", "state_pool_bytes"] {
            self.sized.extend(number(record, name).map(|bytes| (name.to_owned(), bytes)));
        }
        let early = self.ranks.values().any(|state| state.by_account.contains_key("kv_pool"));
        if early {
            self.say(record, "a pool was taken before it was sized");
        }
    }

    fn out_of_memory(&mut self, record: &Record) {
        self.ended = true;
        let Some(requested) = number(record, "requested_bytes") else {
            return self.say(record, "out of memory without requested_bytes");
        };
        let limit = number(record, "free_bytes").or_else(|| number(record, "capacity_bytes"));
        if limit.is_none_or(|limit| requested <= limit) {
            self.say(record, format!("{requested} B were refused although they fit"));
        }
    }

    fn ledger(&mut self, record: &Record) {
        let held = number(record, "held_bytes").unwrap_or(0);
        let account = text(record, "account").to_owned();
        if account == "driver_reserve" {
            return; // Below what programs see as total.
        }
        let Some(state) = self.rank(record) else { return };
        state.ledger = state.ledger.saturating_add(held);
        state.refused = true;
        let expected = match account.as_str() {
            "other_programs" => Some(state.others),
            "free" => state.free(),
            own => state.by_account.get(own).copied(),
        };
        if expected.is_some_and(|expected| expected != held) || expected.is_none() {
            let expected = expected.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
            self.say(record, format!("`{account}` holds {held} B, the log gave it {expected}"));
        }
    }

    /// What can only be said at the end.
    fn close(&mut self, log: &Log) {
        let Some(last) = log.records.last() else { return };
        if log.complete && !self.ended {
            self.say(last, "the log ends and the server is neither ready nor refused");
        }
        let ready = last.kind == "ready";
        let first = self.ranks.get(&0);
        let pool = first.and_then(|state| state.by_account.get("kv_pool")).copied();
        let sized = self.sized.get("kv_pool_bytes").copied();
        if ready && sized.is_some_and(|bytes| bytes > 0 && pool != Some(bytes)) {
            let (sized, pool) = (sized.unwrap_or(0), pool.unwrap_or(0));
            self.say(last, format!("the pool was sized at {sized} B and {pool} B were taken"));
        }
        let open: Vec<u32> = self
            .ranks
            .iter()
            .filter(|(_, state)| state.refused && state.total.is_some_and(|t| t != state.ledger))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in open {
            self.say(last, format!("the accounts of rank {rank} do not add up to its total"));
        }
        if log.digests_agree() == Some(false) {
            self.say(last, "the digests of the footer are not those of the records");
        }
    }
}
