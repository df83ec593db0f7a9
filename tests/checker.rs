//! The checker of decision logs: it finds nothing in the logs of all scenarios, and it finds every
//! amount that is changed by a single byte.

use crate::runs::{log, runs};
use plimsoll_replay::{
    checker::check,
    record::{FieldValue, Record},
    wire::Log,
};
use std::sync::OnceLock;

/// Logs of all scenarios, with their names, as they stand in a file.
fn logs() -> &'static [(String, Log)] {
    static LOGS: OnceLock<Vec<(String, Log)>> = OnceLock::new();
    LOGS.get_or_init(|| {
        let read = |run| Log::read(log(run).as_bytes()).expect("a log");
        runs().iter().map(|(_, run)| (run.scenario.name.clone(), read(run))).collect()
    })
}

#[test]
fn every_scenario_adds_up() {
    let logs = logs();
    assert!(logs.len() >= 25);
    for (name, log) in logs {
        assert_eq!(check(log), [], "{name}");
    }
}

/// Amounts that other records of the same log prove.
fn proved(kind: &str, place: &str, field: &str) -> bool {
    match kind {
        "segment_allocated" => field == "size_bytes" && place == "device",
        "reading" => field == "free_bytes",
        "ledger" => field == "held_bytes",
        // Requests are left out: those at their limit may sit out a pass, so one more can be right.
        "step" | "decode_run" => ["free_bytes", "reserved_bytes"].contains(&field),
        "admitted" => ["extend_tokens", "prefix_tokens"].contains(&field),
        "run_ended" | "server_ended" => field == "finished",
        _ => false,
    }
}

/// Adds to an amount that others prove; `false` when the field is none.
fn nudge(log: &mut Log, at: usize, field: usize, by: i64) -> bool {
    let record = &mut log.records[at];
    let text = |name: &str| match record.fields.get(name) {
        Some(FieldValue::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let (place, account) = (text("place"), text("account"));
    let kind = record.kind.clone();
    let (name, value) = &mut record.fields.decided[field];
    let FieldValue::Unsigned(n) = value else { return false };
    if account == "driver_reserve" || !proved(&kind, &place, name) {
        return false;
    }
    *n = n.saturating_add_signed(by);
    true
}

#[test]
fn one_byte_more_is_found() {
    let mut tried = 0;
    for (name, log) in logs() {
        // Without a total the first reading is taken as it is.
        let unknown = FieldValue::Text("unknown".to_owned());
        if log.records.iter().any(|r| r.fields.get("total_bytes") == Some(&unknown)) {
            continue;
        }
        let mut log = log.clone();
        // Of a long life every record of the start and a part of the rest.
        let stride = log.records.len() / 40 + 1;
        for at in (0..log.records.len()).filter(|at| *at < 60 || at % stride == 0) {
            // Nothing proves what was admitted to a pass that failed.
            let passes = |record: &Record| ["step", "decode_run"].contains(&record.kind.as_str());
            if log.records[at].kind == "admitted" && !log.records[at..].iter().any(passes) {
                continue;
            }
            for field in 0..log.records[at].fields.decided.len() {
                if !nudge(&mut log, at, field, 1) {
                    continue;
                }
                let name_of = &log.records[at].fields.decided[field].0;
                assert!(!check(&log).is_empty(), "{name} record {at} {name_of}");
                assert!(nudge(&mut log, at, field, -1));
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried} changes tried");
}

#[test]
fn what_is_missing_or_out_of_place_is_found() {
    let (name, log) = logs()
        .iter()
        .find(|(name, _)| name == "dedicated-gpu/kimi-k2.5-0.93-start")
        .expect("the founding start");
    for at in 0..log.records.len() {
        let mut shorter = log.clone();
        let gone = shorter.records.remove(at);
        for (seq, record) in (0..).zip(&mut shorter.records) {
            record.seq = seq;
        }
        // They say what nothing else proves.
        if ["settings_resolved", "reading", "host_pool_sized"].contains(&gone.kind.as_str()) {
            continue;
        }
        assert!(!check(&shorter).is_empty(), "{name} without record {at} ({})", gone.kind);
    }
    let mut twice = log.clone();
    let last = twice.records.last().expect("an end").clone();
    twice.records.push(last);
    assert!(!check(&twice).is_empty(), "two ends");
}
