//! How passes become records.

use super::log::{PassRecord, ServingLog};
use crate::{
    decision::{Record, Value},
    kv::Runs,
    sched::{Decision, Mode, RequestId, Usage},
    units::{Bytes, Nanos},
};

fn pass(step: u64, mode: Mode, at: u64) -> PassRecord {
    PassRecord {
        step,
        mode,
        requests: 4,
        tokens: 4,
        prefix_tokens: 100,
        at: Nanos(at),
        elapsed: Nanos(10),
        measured: None,
        usage: Usage::default(),
        free: Bytes(1000 - step),
        peak: Bytes(step * 7 % 5),
        reserved: Bytes(64),
    }
}

fn field<'a>(record: &'a Record, name: &str) -> &'a Value {
    &record.fields.iter().find(|field| field.name == name).unwrap().value
}

#[test]
fn quiet_decode_passes_become_one_record() {
    let mut records: Vec<Record> = Vec::new();
    let mut log = ServingLog::new(&mut records);
    log.pass(pass(0, Mode::Prefill, 0));
    for step in 1..=5 {
        log.pass(pass(step, Mode::Decode, step * 10));
    }
    log.push(Record::new("finished"));
    log.pass(pass(6, Mode::Decode, 60));
    // Time passes between: another run, though nothing else was recorded.
    log.pass(pass(7, Mode::Decode, 100));
    log.push(Record::new("run_ended"));
    let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, ["step", "decode_run", "finished", "decode_run", "decode_run", "run_ended"]);
    let run = &records[1];
    assert_eq!(*field(run, "first_step"), Value::from(1_u64));
    assert_eq!(*field(run, "steps"), Value::from(5_u64));
    assert_eq!(*field(run, "elapsed_ns"), Value::from(50_u64));
    assert_eq!(*field(run, "free_bytes"), Value::from(995_u64));
    assert_eq!(*field(run, "peak_bytes"), Value::from(4_u64));
}

#[test]
fn slots_break_no_run_of_decode_passes() {
    let mut records: Vec<Record> = Vec::new();
    let mut log = ServingLog::new(&mut records);
    let taken = |request, first, len| Decision::SlotsTaken {
        request: RequestId(request),
        slots: Runs::of(first, len),
    };
    let freed = |first, len| Decision::SlotsFreed { slots: Runs::of(first, len) };
    let tell = |log: &mut ServingLog<'_>, told: &[Decision]| {
        told.iter().for_each(|decision| log.decision(decision, 0, Nanos(0)));
    };
    tell(&mut log, &[taken(0, 1, 9), taken(1, 10, 5)]);
    log.pass(pass(0, Mode::Prefill, 0));
    tell(&mut log, &[taken(0, 20, 1), taken(1, 21, 1)]);
    log.pass(pass(1, Mode::Decode, 10));
    tell(&mut log, &[taken(0, 22, 1), taken(1, 23, 1)]);
    log.pass(pass(2, Mode::Decode, 20));
    // What is taken after a free may be what was freed: it is not joined with what was taken before.
    tell(&mut log, &[freed(1, 4), taken(0, 1, 1), taken(1, 2, 1)]);
    log.pass(pass(3, Mode::Decode, 30));
    // This belongs to what comes next.
    tell(&mut log, &[freed(5, 2), freed(9, 1)]);
    log.push(Record::new("finished"));
    let told: Vec<_> = records
        .iter()
        .map(|record| {
            let runs = record.fields.iter().find(|field| field.name == "runs");
            let runs = runs.map(|field| field.value.clone());
            (record.kind, runs.unwrap_or(Value::Null))
        })
        .collect();
    let runs = |kind, runs: &[u64]| (kind, Value::Ints(runs.to_vec()));
    assert_eq!(
        told,
        [
            runs("slots_taken", &[1, 9]),
            runs("slots_taken", &[10, 5]),
            ("step", Value::Null),
            runs("slots_taken", &[20, 1, 22, 1]),
            runs("slots_taken", &[21, 1, 23, 1]),
            runs("slots_freed", &[1, 4]),
            runs("slots_taken", &[1, 1]),
            runs("slots_taken", &[2, 1]),
            ("decode_run", Value::Null),
            runs("slots_freed", &[5, 2, 9, 1]),
            ("finished", Value::Null),
        ]
    );
}
