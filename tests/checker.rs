//! The checker of decision logs: it finds nothing in the logs of all scenarios, and it finds every
//! amount that is changed by a single byte.

use plimsoll_replay::{
    checker::check, folder::load_folder, record::FieldValue, run::run_scenario, wire::Log,
};
use std::path::Path;

/// Logs of all scenarios, with their names.
fn logs() -> Vec<(String, Log)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = load_folder(&folder).expect("scenarios");
    let mut logs = Vec::new();
    for entry in entries {
        let scenario = entry.scenario.expect("a scenario");
        let name = scenario.name.clone();
        let run = run_scenario(scenario, &entry.path).expect("a run");
        let (text, _) = run.write_log(Vec::new()).expect("a log");
        logs.push((name, Log::read(text.as_slice()).expect("a log")));
    }
    logs
}

#[test]
fn every_scenario_adds_up() {
    let logs = logs();
    assert!(logs.len() >= 25);
    for (name, log) in &logs {
        assert_eq!(check(log), [], "{name}");
    }
}

/// Amounts that other records of the same log prove.
fn proved(kind: &str, place: &str, field: &str) -> bool {
    match kind {
        "segment_allocated" => field == "size_bytes" && place == "device",
        "reading" => field == "free_bytes",
        "ledger" => field == "held_bytes",
        _ => false,
    }
}

#[test]
fn one_byte_more_is_found() {
    let mut tried = 0;
    for (name, log) in logs() {
        // Without a total the first reading is taken as it is.
        let known = !log.records.iter().any(|record| {
            record.fields.get("total_bytes") == Some(&FieldValue::Text("unknown".to_owned()))
        });
        if !known {
            continue;
        }
        for at in 0..log.records.len() {
            let record = &log.records[at];
            let place = match record.fields.get("place") {
                Some(FieldValue::Text(place)) => place.clone(),
                _ => String::new(),
            };
            let reserve = record.fields.get("account")
                == Some(&FieldValue::Text("driver_reserve".to_owned()));
            let kind = record.kind.clone();
            let fields = record.fields.decided.len();
            for field in 0..fields {
                let mut changed = log.clone();
                let (field_name, value) = &mut changed.records[at].fields.decided[field];
                if reserve || !proved(&kind, &place, field_name) {
                    continue;
                }
                let FieldValue::Unsigned(n) = value else { continue };
                *n += 1;
                assert!(!check(&changed).is_empty(), "{name} record {at} {kind}");
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried} changes tried");
}

#[test]
fn what_is_missing_or_out_of_place_is_found() {
    let (name, log) = logs()
        .into_iter()
        .find(|(name, _)| name == "dedicated-gpu/kimi-k2.5-0.93-start")
        .expect("the founding start");
    for at in 0..log.records.len() {
        let mut shorter = log.clone();
        let gone = shorter.records.remove(at);
        assert!(!check(&shorter).is_empty(), "{name} without record {at} ({})", gone.kind);
    }
    let mut twice = log.clone();
    let last = twice.records.last().expect("an end").clone();
    twice.records.push(last);
    assert!(!check(&twice).is_empty(), "two ends");
}
