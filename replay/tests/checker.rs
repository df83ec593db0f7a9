//! The checker on whole runs: it accepts what can be, and each of its rules finds the log that breaks it.

use crate::life::{Life, MIB, MS, dies, survives, survives_on};
use plimsoll_replay::{
    checker::check,
    kinds::KINDS,
    record::{FieldValue, Record},
    wire::{Closing, Log},
};

fn what(log: &Log) -> Vec<String> {
    check(log).into_iter().map(|violation| violation.what).collect()
}

/// The n-th record of a kind.
fn at<'a>(log: &'a mut Log, kind: &str, nth: usize) -> &'a mut Record {
    log.records.iter_mut().filter(|record| record.kind == kind).nth(nth).unwrap()
}

fn set(record: &mut Record, name: &str, value: impl Into<FieldValue>) {
    let fields = record.fields.decided.iter_mut();
    fields.filter(|(field, _)| field == name).for_each(|(_, old)| *old = FieldValue::Flag(false));
    let field = record.fields.decided.iter_mut().find(|(field, _)| field == name).unwrap();
    field.1 = value.into();
}

fn number(record: &Record, name: &str) -> u64 {
    match record.fields.get(name) {
        Some(FieldValue::Unsigned(n)) => *n,
        other => panic!("{name}: {other:?}"),
    }
}

/// Numbers the records again, as a writer would, and forgets the digests.
fn renumber(log: &mut Log) {
    log.footer = None;
    for (seq, record) in (0..).zip(&mut log.records) {
        record.seq = seq;
    }
}

#[test]
fn what_can_be_is_accepted() {
    for life in [survives(), dies(), Life::ready(2), fatal()] {
        assert_eq!(what(&life.log()), [""; 0], "{}", life.text(Closing::Complete));
    }
}

fn fatal() -> Life {
    let mut life = Life::serving(1);
    life.arrive(0, 300, 50);
    life.take(2 * MIB);
    life.admit(0, 0, 300, 0);
    life.pass("prefill", 1, (300, 0), 1);
    life.fatal();
    life
}

#[test]
fn a_cut_at_any_record_is_no_violation() {
    for life in [survives(), dies()] {
        let text = life.text(Closing::Complete);
        for (end, _) in text.match_indices('\n') {
            let log = Log::read(&text.as_bytes()[..end]).unwrap();
            if !log.complete {
                assert_eq!(what(&log), [""; 0], "cut at {end}");
            }
        }
        let interrupted = life.text(Closing::Interrupted);
        assert_eq!(what(&Log::read(interrupted.as_bytes()).unwrap()), [""; 0]);
    }
}

/// Amounts of which every single unit is proved by others.
fn is_proved(record: &Record, name: &str) -> bool {
    let device = record.fields.get("place") == Some(&FieldValue::Text("device".to_owned()));
    let reserve =
        record.fields.get("account") == Some(&FieldValue::Text("driver_reserve".to_owned()));
    let refused = record.fields.get("request") == Some(&FieldValue::Unsigned(9));
    match (record.kind.as_str(), name) {
        ("request_arrived", "prompt_tokens") => !refused,
        ("step_failed", "requests" | "tokens") => true,
        ("segment_allocated" | "segment_freed", "size_bytes") => device,
        ("reading", "free_bytes") | ("leaked", "size_bytes") => true,
        ("ledger", "held_bytes") => !reserve,
        ("step" | "decode_run", "free_bytes" | "reserved_bytes" | "requests") => true,
        ("step", "step" | "tokens") | ("decode_run", "first_step") => true,
        ("step", "prefix_tokens") | ("decode_run", "steps") => true,
        ("admitted", "extend_tokens" | "prefix_tokens" | "request" | "chunked") => true,
        ("request_arrived", "request") => true,
        ("retracted", "output_tokens" | "request") | ("finished", "request") => true,
        ("run_ended", "finished" | "running" | "waiting") => true,
        ("server_ended", "finished" | "running" | "waiting") => true,
        ("out_of_memory", "free_bytes" | "reserved_bytes") => true,
        _ => false,
    }
}

#[test]
fn one_unit_more_is_found() {
    let mut tried = 0;
    for life in [survives(), dies()] {
        let log = life.log();
        for index in 0..log.records.len() {
            for field in 0..log.records[index].fields.decided.len() {
                let mut changed = log.clone();
                changed.footer = None;
                let record = &mut changed.records[index];
                let name = record.fields.decided[field].0.clone();
                if !is_proved(record, &name) {
                    continue;
                }
                let value = number(record, &name);
                // More that is freed on one rank does not show while another is tighter; less does.
                let less = record.kind == "segment_freed";
                let value = if less { value - 1 } else { value + 1 };
                record.fields.decided[field].1 = FieldValue::Unsigned(value);
                assert!(!check(&changed).is_empty(), "{} {name}", log.records[index].line());
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "{tried} changes tried");
}

/// Records that a log can lose without a trace: they say what nothing else proves.
const SILENT: [&str; 8] = [
    "settings_resolved",
    "deferred",
    "evicted",
    "ratio",
    "reading",
    "host_read",
    "tenant_refused",
    "driver_reserve",
];

#[test]
fn a_record_that_is_missing_is_found() {
    // More free memory on a rank that is not the tightest does not show: one rank here.
    for life in [survives_on(1), dies(), fatal()] {
        let log = life.log();
        for index in 0..log.records.len() {
            let mut shorter = log.clone();
            let gone = shorter.records.remove(index);
            renumber(&mut shorter);
            let several = ["scheduler_ended", "process_ended"].contains(&gone.kind.as_str());
            let reserve =
                gone.fields.get("account") == Some(&FieldValue::Text("driver_reserve".to_owned()));
            if several || reserve || SILENT.contains(&gone.kind.as_str()) {
                continue;
            }
            assert!(!check(&shorter).is_empty(), "{}", gone.line());
        }
    }
}

#[test]
fn records_out_of_order_are_found() {
    let log = dies().log();
    let from = log.records.iter().position(|r| r.kind == "out_of_memory").unwrap();
    let mut tried = 0;
    for index in from..log.records.len() - 1 {
        let mut swapped = log.clone();
        swapped.records.swap(index, index + 1);
        renumber(&mut swapped);
        if swapped.records[index].kind != log.records[index].kind {
            assert!(!check(&swapped).is_empty(), "{}", log.records[index].line());
            tried += 1;
        }
    }
    assert!(tried >= 6, "{tried}");
    let mut twice = log.clone();
    twice.records.push(twice.records.last().unwrap().clone());
    renumber(&mut twice);
    assert!(!check(&twice).is_empty(), "two ends");
}

/// A change of a good log, and a part of the sentence that must be found.
type Case = (&'static str, fn(&mut Log));

fn expect_each(life: &Life, cases: &[Case]) {
    for (sentence, change) in cases {
        let mut log = life.log();
        log.footer = None;
        change(&mut log);
        let found = what(&log);
        assert!(found.iter().any(|f| f.contains(sentence)), "{sentence}: {found:#?}");
    }
}

#[test]
fn rules_of_form_and_memory_find_what_breaks_them() {
    expect_each(
        &survives(),
        &[
            ("is no kind of record", |log| at(log, "ratio", 0).kind = "ration".to_owned()),
            ("its `step` is missing", |log| drop(at(log, "ratio", 0).fields.decided.remove(0))),
            ("its rank is missing", |log| at(log, "leaked", 0).rank = None),
            ("it has a rank", |log| at(log, "step", 0).rank = Some(0)),
            ("is no field of this kind", |log| set_new(at(log, "ratio", 0), "colour")),
            ("its seq should be", |log| at(log, "step", 0).seq += 1),
            ("whose capacity was never read", |log| at(log, "leaked", 0).rank = Some(7)),
            ("rank 1 should be read here", |log| at(log, "capacity_read", 1).rank = Some(2)),
            ("B taken where", |log| {
                set(at(log, "segment_allocated", 8), "size_bytes", 4_u64 << 30)
            }),
            ("B freed that `activations` does not hold", |log| {
                set(at(log, "segment_freed", 0), "size_bytes", 1_u64 << 30);
            }),
            ("hold 53687091200 B that are not there", |log| {
                set(at(log, "tenant_changed", 0), "held_bytes", 50_u64 << 30);
            }),
            ("were live in at most", |log| set(at(log, "step", 0), "peak_bytes", 769 * MIB)),
            ("the pool is sized twice", |log| {
                let pool = at(log, "pool_sized", 0).clone();
                log.records.insert(9, pool);
            }),
            ("a pool was taken before it was sized", |log| {
                set(at(log, "segment_allocated", 0), "account", "kv_pool");
            }),
            ("the pool was sized at", |log| set(at(log, "pool_sized", 0), "kv_pool_bytes", 5_u64)),
        ],
    );
    expect_each(
        &dies(),
        &[
            ("were refused although they fit", |log| {
                set(at(log, "out_of_memory", 0), "requested_bytes", MIB);
            }),
            ("B are live in", |log| {
                set(at(log, "out_of_memory", 0), "allocated_bytes", 1_u64 << 40);
            }),
            ("the accounts of rank 1 are not in the log", |log| {
                log.records.retain(|r| r.kind != "ledger" || r.rank != Some(1));
                renumber(log);
            }),
            ("and its total is", |log| {
                let last = log.records.iter().rposition(|r| r.kind == "ledger").unwrap();
                log.records.remove(last);
                renumber(log);
            }),
        ],
    );
}

fn set_new(record: &mut Record, name: &str) {
    record.fields.decided.push((name.to_owned(), FieldValue::Unsigned(1)));
}

#[test]
fn rules_of_steps_and_limits_find_what_breaks_them() {
    expect_each(
        &survives(),
        &[
            ("and 1 is due", |log| set(at(log, "step", 1), "step", 3_u64)),
            ("a run of no steps", |log| set(at(log, "decode_run", 0), "steps", 0_u64)),
            ("before the last one ended", |log| set(at(log, "step", 1), "at_ns", 5_u64)),
            ("and knows an event of", |log| {
                set(at(log, "request_arrived", 1), "at_ns", 3600 * 1000 * MS);
            }),
            ("time goes back", |log| set(at(log, "request_arrived", 0), "at_ns", 3_u64)),
            ("and the last pass began at", |log| set(at(log, "finished", 0), "at_ns", 3_u64)),
            ("it is of step 90", |log| set(at(log, "evicted", 0), "step", 90_u64)),
            ("not used of a pool of", |log| set(at(log, "step", 0), "available_tokens", 9_999_u64)),
            ("2 window_tokens used and 1 not used of a pool of 1", |log| {
                set_new(at(log, "serving_started", 0), "window_pool_tokens");
                let pass = at(log, "decode_run", 0);
                set_new(pass, "used_window_tokens");
                set_new(pass, "evictable_window_tokens");
                set(pass, "used_window_tokens", 2_u64);
            }),
            ("requests run, and at most 1 may", |log| {
                set(at(log, "serving_started", 0), "max_running_requests", 1_u64);
            }),
            ("tokens with chunks of 511", |log| {
                set(at(log, "serving_started", 0), "chunked_prefill_size", 511_u64);
            }),
            ("is no mode of a step", |log| set(at(log, "step", 0), "mode", "idle")),
            ("a pass without a request", |log| set(at(log, "step", 0), "requests", 0_u64)),
            ("tokens for 2 requests", |log| set(at(log, "step", 1), "tokens", 1_u64)),
            ("steps are said", |log| set(at(log, "run_ended", 0), "steps", 3_u64)),
            ("before its last event", |log| set(at(log, "run_ended", 0), "at_ns", 3_u64)),
        ],
    );
}

#[test]
fn rules_of_requests_find_what_breaks_them() {
    expect_each(
        &survives(),
        &[
            ("request 7 never arrived", |log| set(at(log, "finished", 0), "request", 7_u64)),
            ("request 0 arrives twice", |log| set(at(log, "request_arrived", 1), "request", 0_u64)),
            ("goes on after 511 tokens, 512 are done", |log| {
                set(at(log, "admitted", 1), "prefix_tokens", 511_u64);
            }),
            ("has 700 tokens; 0 and 512 are admitted", |log| {
                set(at(log, "admitted", 0), "chunked", 0_u64)
            }),
            ("is retracted, and has ended", |log| {
                let retraction = at(log, "retracted", 0).clone();
                log.records.insert(log.records.len() - 1, retraction);
            }),
            ("has 6 outputs, 8 were made", |log| {
                set(at(log, "retracted", 0), "output_tokens", 6_u64)
            }),
            ("ends with 10 outputs, 12 were made", |log| {
                set(at(log, "finished", 0), "output_tokens", 10_u64);
            }),
            ("more than it asked for", |log| {
                set(at(log, "request_arrived", 0), "max_new_tokens", 3_u64)
            }),
            ("request 1 finishes, and has ended", |log| {
                let finished = at(log, "finished", 1).clone();
                log.records.insert(log.records.len() - 1, finished);
            }),
            ("finishes in no known way", |log| set(at(log, "finished", 0), "finish", "bored")),
            ("request 1 is deferred, and runs", |log| {
                let mut deferred = at(log, "deferred", 0).clone();
                set(&mut deferred, "step", 2_u64);
                let run = log.records.iter().position(|r| r.kind == "decode_run").unwrap();
                log.records.insert(run, deferred);
            }),
            ("is refused, and runs", |log| {
                let run = log.records.iter().position(|r| r.kind == "decode_run").unwrap();
                let refused = Record::new("request_refused").with("request", 0_u64);
                log.records.insert(run, refused.with("code", "x"));
            }),
            ("requests were admitted to no prefill", |log| {
                let step = log.records.iter().rposition(|r| r.kind == "step").unwrap();
                log.records.remove(step);
            }),
            ("requests run or wait", |log| set(at(log, "step", 0), "waiting", 3_u64)),
            ("all is finished with", |log| set(at(log, "run_ended", 0), "used_tokens", 1_u64)),
            ("does not follow from no failure", |log| {
                set(at(log, "run_ended", 0), "outcome", "fatal")
            }),
        ],
    );
}

#[test]
fn rules_of_slots_find_what_breaks_them() {
    let with = |runs: &[(&str, Vec<u64>)]| {
        let mut life = Life::serving(1);
        life.arrive(0, 300, 50);
        life.admit(0, 0, 300, 0);
        for (kind, runs) in runs {
            let record = Record::new(kind);
            let record =
                if *kind == "slots_taken" { record.with("request", 0_u64) } else { record };
            life.push(record.with("runs", runs.clone()));
        }
        life.pass("prefill", 1, (300, 0), 1);
        let mut log = life.log();
        log.complete = false;
        what(&log)
    };
    let taken = |runs: &[u64]| ("slots_taken", runs.to_vec());
    let freed = |runs: &[u64]| ("slots_freed", runs.to_vec());
    assert_eq!(with(&[taken(&[1, 200, 500, 100])]), [""; 0]);
    assert_eq!(with(&[taken(&[1, 400]), freed(&[50, 100])]), [""; 0]);
    assert_eq!(with(&[taken(&[1, 200, 201, 200]), freed(&[150, 100])]), [""; 0]);
    let has = |found: Vec<String>, part: &str| assert!(found[0].contains(part), "{found:?}");
    has(with(&[taken(&[1, 200, 200, 100])]), "slots 200 to 300 are taken, and 1 to 201");
    has(with(&[taken(&[100, 200]), taken(&[50, 100])]), "were not free");
    has(with(&[taken(&[1, 300]), freed(&[300, 2])]), "slot 301 is freed");
    has(with(&[taken(&[1, 300]), freed(&[301, 1])]), "slot 301 is freed");
    has(with(&[taken(&[0, 300])]), "slots 0 to 300 are not of this pool");
    has(with(&[taken(&[1, 1 << 40])]), "are not of this pool");
    has(with(&[taken(&[1, 299])]), "300 slots are in use, 299 were taken");
    has(with(&[taken(&[1, 2, 3])]), "no pairs");
}

#[test]
fn rules_of_the_host_tier_find_what_breaks_them() {
    let with = |records: &[(&str, [(&'static str, u64); 2])]| {
        let mut log = Life::ready(1).log();
        log.complete = false;
        let start = log.records.iter().position(|record| record.kind == "ready").unwrap();
        let sized = Record::new("host_pool_sized").with("host_pool_tokens", 100_u64);
        log.records.insert(start, sized);
        for (kind, fields) in records {
            let record = fields
                .iter()
                .fold(Record::new(kind), |record, (name, value)| record.with(name, *value));
            log.records.push(record);
        }
        // Of what is missing around these records nothing is asked.
        let tells = ["host pool of", "host slots", "on the host", "the host holds", "of a node"];
        let found = what(&log).into_iter();
        found.filter(|what| tells.iter().any(|words| what.contains(words))).collect::<Vec<_>>()
    };
    let copied = |tokens, stored| ("backed_up", [("tokens", tokens), ("stored_tokens", stored)]);
    let loaded = |there, loads| ("loaded_back", [("host_tokens", there), ("loaded_tokens", loads)]);
    let gone = |freed| ("evicted_host", [("asked_tokens", freed), ("freed_tokens", freed)]);
    let ends = [copied(60, 60), copied(50, 0), gone(60), copied(100, 100), loaded(100, 100)];
    assert_eq!(with(&ends), [""; 0]);
    let has = |found: Vec<String>, part: &str| assert!(found[0].contains(part), "{found:?}");
    has(with(&[copied(60, 50)]), "50 of the 60 tokens of a node are copied");
    has(with(&[copied(60, 60), copied(50, 50)]), "110 tokens are held in a host pool of 100");
    has(with(&[copied(60, 60), gone(61)]), "61 host slots are freed of 60 held");
    has(with(&[copied(60, 60), loaded(60, 40)]), "40 of 60 tokens that the host holds are loaded");
    has(with(&[copied(60, 60), loaded(70, 0)]), "70 tokens are found on the host, which holds 60");
}

/// A life whose only request finishes; `at_end` is told after it.
fn slots_at_the_end(detail: Option<&str>, at_end: &[(&str, &[u64])]) -> Vec<String> {
    let slots = |life: &mut Life, kind: &str, runs: &[u64]| {
        let record = Record::new(kind);
        let record = if kind == "slots_taken" { record.with("request", 0_u64) } else { record };
        life.push(record.with("runs", runs.to_vec()));
    };
    let mut life = Life::serving(1);
    life.arrive(0, 300, 5);
    life.take(2 * MIB);
    life.admit(0, 0, 300, 0);
    if !at_end.is_empty() {
        slots(&mut life, "slots_taken", &[1, 304]);
    }
    life.pass("prefill", 1, (300, 0), 1);
    life.decode(4);
    life.finish(0, 5, 304);
    at_end.iter().for_each(|(kind, runs)| slots(&mut life, kind, runs));
    life.end("finished");
    let mut log = life.log();
    if let Some(detail) = detail {
        log.header.push(plimsoll_replay::record::DigestScope::Decisions, "detail", detail);
        log.footer = None;
    }
    let mut found = what(&log);
    // The life takes all its slots at once: its passes are told fewer.
    found.retain(|what| !what.contains("slots are in use, 304 were taken"));
    found
}

#[test]
fn a_slot_is_lost_unless_it_is_free_or_the_cache_owns_it() {
    let end = |at_end: &[(&str, &[u64])]| slots_at_the_end(Some("slots"), at_end);
    assert_eq!(end(&[("slots_freed", &[1, 304]), ("slots_cached", &[])]), [""; 0]);
    assert_eq!(end(&[("slots_freed", &[300, 5]), ("slots_cached", &[1, 299])]), [""; 0]);
    let has = |found: Vec<String>, part: &str| assert!(found[0].contains(part), "{found:?}");
    has(end(&[("slots_freed", &[300, 5]), ("slots_cached", &[1, 298])]), "1 slots are lost");
    has(end(&[("slots_freed", &[300, 5])]), "299 slots are lost, the first is 1");
    let twice = end(&[("slots_freed", &[299, 6]), ("slots_cached", &[1, 299])]);
    has(twice, "the prefix cache owns slot 299, and it was not taken");
    // A log that promises slots and has none is found, one that does not is whole.
    assert_eq!(slots_at_the_end(None, &[]), [""; 0]);
    has(end(&[]), "300 slots are in use, 0 were taken");
}

#[test]
fn pages_change_hands_whole() {
    let with = |page: u64, runs: &[u64]| {
        let mut life = Life::serving(1);
        life.arrive(0, 300, 50);
        life.admit(0, 0, 300, 0);
        let taken = Record::new("slots_taken").with("request", 0_u64);
        life.push(taken.with("runs", runs.to_vec()));
        let mut log = life.log();
        log.complete = false;
        set(at(&mut log, "serving_started", 0), "page_size", page);
        log.footer = None;
        what(&log)
    };
    assert_eq!(with(16, &[16, 304]), [""; 0]);
    assert!(with(16, &[16, 300])[0].contains("slots 16 to 316 are no whole pages of 16"));
    assert!(with(16, &[8, 304])[0].contains("no whole pages"));
    assert!(with(16, &[0, 304])[0].contains("not of this pool"));
}

#[test]
fn results_that_come_one_pass_late_are_accepted() {
    let mut life = Life::serving(1);
    life.arrive(0, 300, 5);
    life.take(2 * MIB);
    life.admit(0, 0, 300, 0);
    life.pass("prefill", 1, (300, 0), 1);
    // Five tokens are made after four passes; the fifth pass was under way when that was known.
    life.decode(5);
    life.finish(0, 5, 305);
    life.end("finished");
    assert_eq!(what(&life.log()), [""; 0]);
}

#[test]
fn a_decode_may_leave_out_only_who_is_at_the_limit() {
    let run = |limit: u64| {
        let mut life = Life::serving(1);
        life.arrive(0, 300, limit);
        life.arrive(1, 200, 50);
        life.take(2 * MIB);
        life.admit(0, 0, 300, 0);
        life.admit(1, 0, 200, 0);
        life.pass("prefill", 2, (500, 0), 2);
        life.decode(4);
        // Five tokens were made by both; the next pass is of one request.
        life.decode_of(1, 1);
        life.finish(0, 5, 305);
        let mut log = life.log();
        log.complete = false;
        what(&log)
    };
    assert_eq!(run(5), [""; 0]);
    assert!(run(6)[0].contains("a decode of 1 requests, the log has 2"));
}

#[test]
fn a_prompt_that_is_given_up_is_one_token_and_an_abort() {
    let run = |finish: &str| {
        let mut life = Life::serving(1);
        life.arrive(0, 300_000, 5);
        life.take(2 * MIB);
        life.admit(0, 0, 1, 0);
        life.pass("prefill", 1, (1, 0), 1);
        life.finish_as(0, 1, 1, finish);
        life.end("finished");
        what(&life.log())
    };
    assert_eq!(run("abort"), [""; 0]);
    assert!(run("length")[0].contains("was not computed, and is no `abort`"));
}

#[test]
fn every_kind_of_the_life_is_in_the_table_and_has_a_sentence() {
    for life in [survives(), dies(), fatal()] {
        for record in life.log().records {
            assert!(KINDS.iter().any(|kind| kind.name == record.kind), "{}", record.kind);
        }
    }
    for (index, kind) in KINDS.iter().enumerate() {
        assert!(!kind.when.is_empty(), "{}", kind.name);
        assert!(KINDS[..index].iter().all(|other| other.name != kind.name), "{}", kind.name);
    }
}
