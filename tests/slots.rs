//! Runs that tell every token slot: each scenario under load, its log checked slot by slot, and nothing else
//! in it changed. And each rule about slots finds the log of a real run that breaks it.

use crate::runs::{Run, on_threads, one, runs, scenarios};
use plimsoll_core::sched::LogDetail;
use plimsoll_replay::{
    again::{Extent, again},
    checker::check,
    record::{FieldValue, Record},
    run::{Recording, RunOptions},
    wire::Log,
};
use std::{cell::Cell, fs, sync::OnceLock};

/// Every scenario that was served, with slots told.
fn with_slots() -> &'static [Run] {
    static RUNS: OnceLock<Vec<Run>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let mut served = scenarios();
        served.retain(|(_, scenario)| scenario.requests().is_some());
        // A log that does not add up is an error of the run.
        let slots = || RunOptions { detail: LogDetail::Slots, ..RunOptions::default() };
        on_threads(2, &served, |it| one(it.clone(), slots()))
    })
}

fn is_of_slots(record: &Record) -> bool {
    ["slots_taken", "slots_freed", "slots_cached"].contains(&record.kind.as_str())
}

/// Values of `runs`: first, length, first, length, …
fn pairs(record: &Record) -> Vec<u64> {
    let Some(FieldValue::List(runs)) = record.fields.get("runs") else { panic!("{record:?}") };
    let number = |value: &FieldValue| match value {
        FieldValue::Unsigned(n) => *n,
        other => panic!("{other:?}"),
    };
    runs.iter().map(number).collect()
}

fn slots_of(log: &Log, kind: &str) -> u64 {
    let records = log.records.iter().filter(|record| record.kind == kind);
    records.flat_map(|record| pairs(record).into_iter().skip(1).step_by(2)).sum()
}

#[test]
fn slots_add_up_and_change_no_other_record() {
    let (mut served, mut taken, mut cached) = (0, 0, 0);
    for (file, run) in with_slots() {
        let name = &run.scenario.name;
        let plain = &runs().iter().find(|(other, _)| other == file).unwrap().1;
        let mut rest = run.log.records.clone();
        rest.retain(|record| !is_of_slots(record));
        (0..).zip(&mut rest).for_each(|(seq, record)| record.seq = seq);
        assert!(rest == plain.log.records, "{name}: other records differ");
        assert_eq!(check(&run.log), [], "{name}");
        if run.served.is_some() {
            assert_ne!(run.digests.decisions, plain.digests.decisions, "{name}");
            served += 1;
        }
        let admitted = run.log.records.iter().any(|record| record.kind == "admitted");
        assert_eq!(slots_of(&run.log, "slots_taken") > 0, admitted, "{name}");
        taken += slots_of(&run.log, "slots_taken");
        cached += slots_of(&run.log, "slots_cached");
    }
    println!("{served} runs: {taken} slots taken, {cached} cached at their ends");
    assert!(served >= 25, "{served} runs under load");
    assert!(cached > 0, "no prefix cache keeps anything");
}

/// The log without its digests, changed, and numbered anew.
fn changed(log: &Log, change: impl FnOnce(&mut Vec<Record>)) -> Vec<String> {
    let mut log = log.clone();
    log.footer = None;
    change(&mut log.records);
    (0..).zip(&mut log.records).for_each(|(seq, record)| record.seq = seq);
    check(&log).into_iter().map(|violation| violation.what).collect()
}

/// Runs that finished, with slots that were given back, and not too long to be read again and again.
fn finished() -> Vec<(&'static str, &'static Log)> {
    let ends = |log: &Log| {
        let outcome = log.records.last().unwrap().fields.get("outcome");
        outcome == Some(&FieldValue::Text("finished".to_owned()))
    };
    let runs = with_slots().iter().map(|(_, run)| (run.scenario.name.as_str(), &run.log));
    let mut logs: Vec<_> =
        runs.filter(|(_, log)| ends(log) && slots_of(log, "slots_freed") > 0).collect();
    logs.sort_by_key(|(_, log)| log.records.len());
    logs.truncate(6);
    assert!(logs.len() >= 3, "{} runs that finished and freed slots", logs.len());
    logs
}

/// A place near the middle of the log where a record of this kind stands.
fn middle(log: &Log, kind: &str) -> usize {
    let places: Vec<usize> =
        (0..log.records.len()).filter(|at| log.records[*at].kind == kind).collect();
    places[places.len() / 2]
}

fn set_pairs(record: &mut Record, runs: Vec<u64>) {
    let list = FieldValue::List(runs.into_iter().map(FieldValue::Unsigned).collect());
    let field = record.fields.decided.iter_mut().find(|(name, _)| name == "runs").unwrap();
    field.1 = list;
}

/// The last record of this kind.
fn last(log: &Log, kind: &str) -> usize {
    log.records.iter().rposition(|record| record.kind == kind).unwrap()
}

#[test]
fn a_slot_record_that_is_missing_twice_or_changed_is_found() {
    for (name, log) in finished() {
        let (taken, freed) = (middle(log, "slots_taken"), middle(log, "slots_freed"));
        let cached = last(log, "slots_cached");
        let has = |what: &str, part: &str, change: &dyn Fn(&mut Vec<Record>)| {
            let found = changed(log, change);
            assert!(found.iter().any(|it| it.contains(part)), "{name}, {what}: {found:?}");
        };
        has("taken twice", "were not free", &|all| all.insert(taken, all[taken].clone()));
        has("freed twice", "and was not taken", &|all| all.insert(freed, all[freed].clone()));
        has("no take", "slots are in use", &|all| drop(all.remove(taken)));
        // Found by the next pass, or by the end when none follows.
        let is_pass = |record: &Record| ["step", "decode_run"].contains(&record.kind.as_str());
        let again = log.records[freed..].iter().any(is_pass);
        let found_by = if again { "slots are in use" } else { "slots are lost" };
        has("no free", found_by, &|all| drop(all.remove(freed)));
        let end = last(log, "slots_freed");
        if !log.records[end..].iter().any(|record| record.kind == "slots_taken") {
            has("no last free", "slots are lost", &|all| drop(all.remove(end)));
        }
        has("beyond the pool", "are not of this pool", &|all| {
            let runs = pairs(&all[taken]);
            let far = runs.chunks_exact(2).flat_map(|run| [run[0] + (1 << 40), run[1]]);
            set_pairs(&mut all[taken], far.collect());
        });
        has("an odd list", "no pairs of numbers", &|all| {
            let mut runs = pairs(&all[taken]);
            runs.pop();
            set_pairs(&mut all[taken], runs);
        });
        has("cached and free", "the prefix cache owns slot", &|all| {
            let mut runs = pairs(&all[cached]);
            runs.extend(pairs(&all[end]));
            set_pairs(&mut all[cached], runs);
        });
        if !pairs(&log.records[cached]).is_empty() {
            has("no cache", "slots are lost", &|all| drop(all.remove(cached)));
        }
    }
}

/// What `run --detail slots --record` writes; the user ends the run after `turns` turns.
fn recorded(name: &str, turns: u64) -> Vec<u8> {
    let mut all = scenarios();
    all.retain(|(_, scenario)| scenario.name == name);
    let (file, scenario) = all.pop().unwrap();
    let (mut out, left) = (Vec::new(), Cell::new(turns));
    let interrupted = || left.replace(left.get().saturating_sub(1)) == 0;
    let record = Recording {
        out: &mut out,
        scenario_text: &fs::read_to_string(&file).unwrap(),
        scenario_file: file.display().to_string(),
        overrides: Vec::new(),
    };
    let options = RunOptions {
        record: Some(record),
        detail: LogDetail::Slots,
        interrupted: &interrupted,
        ..RunOptions::default()
    };
    one((file, scenario), options);
    out
}

#[test]
fn a_recording_with_slots_is_run_again_with_them() {
    let name = finished()[0].0;
    let whole = recorded(name, u64::MAX);
    let log = Log::read(whole.as_slice()).unwrap();
    let second = again(&log).unwrap();
    assert_eq!((second.extent, second.difference), (Extent::Whole, None));
    assert_eq!(second.compared, log.records.len());
    assert!(slots_of(&second.run.log, "slots_taken") > 0);
    // Without slots it would be another run.
    let mut without = log.clone();
    without.header.decided.retain(|(field, _)| field != "detail");
    assert!(again(&without).unwrap().difference.is_some());
    // Cut off, and ended by the user in the middle of decode passes.
    let cut = Log::read(&whole[..whole.len() / 2]).unwrap();
    let second = again(&cut).unwrap();
    assert!(matches!(second.extent, Extent::Cut(_)) && second.compared > 0);
    assert_eq!(second.difference, None);
    let ended = Log::read(recorded(name, 60).as_slice()).unwrap();
    let second = again(&ended).unwrap();
    assert!(second.extent == Extent::Interrupted && second.compared > 0);
    assert_eq!(second.difference, None);
    assert_eq!(check(&ended), []);
}
