//! How passes become records.

use super::log::{PassRecord, ServingLog};
use crate::{
    decision::{Record, Value},
    sched::{Mode, Usage},
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
