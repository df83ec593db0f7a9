//! Traces: read back as JSON, in order on every track, slices nested, every request ended.

use crate::runs::run;
use plimsoll_report::TraceWriter;
use serde_json::Value;
use std::collections::BTreeMap;

fn trace(name: &str, set: &[&str]) -> Value {
    let mut writer = TraceWriter::new(Vec::new(), name);
    run(name, set, &mut |record| writer.take(record));
    serde_json::from_slice(&writer.finish().unwrap()).unwrap()
}

/// A time in nanoseconds; it is written in microseconds with at most three decimals.
fn ns(value: &Value) -> u64 {
    let text = value.to_string();
    let (us, rest) = text.split_once('.').unwrap_or((&text, ""));
    assert!(rest.len() <= 3, "{text}");
    us.parse::<u64>().unwrap() * 1000 + format!("{rest:0<3}").parse::<u64>().unwrap()
}

/// What a trace must be for every viewer.
fn check(trace: &Value) {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut slices: BTreeMap<String, u64> = BTreeMap::new();
    let mut open: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut named: Vec<u64> = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let (phase, name) = (event["ph"].as_str().unwrap(), event["name"].as_str().unwrap());
        let (pid, tid) = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        if phase == "M" {
            assert!(event["args"]["name"].is_string());
            if name == "process_name" {
                named.push(pid);
            }
            continue;
        }
        assert!(named.contains(&pid), "process {pid} has no name: {event}");
        let at = ns(&event["ts"]);
        let track = match phase {
            "C" => format!("C {pid} {name}"),
            "b" | "e" => format!("request {}", event["id"]),
            _ => format!("{phase} {pid} {tid}"),
        };
        let before = last.insert(track.clone(), at).unwrap_or(0);
        assert!(before <= at, "{track} goes back from {before} to {at}: {event}");
        match phase {
            "X" => {
                let end = slices.entry(track).or_default();
                assert!(*end <= at, "slices overlap: {event}");
                *end = at + ns(&event["dur"]);
            }
            "b" => open.entry(track).or_default().push(name.to_owned()),
            "e" => assert_eq!(open.get_mut(&track).unwrap().pop().as_deref(), Some(name)),
            "C" => {
                let values = event["args"].as_object().unwrap();
                assert!(!values.is_empty() && values.values().all(Value::is_u64), "{event}");
            }
            "i" => assert_eq!(event["s"], "p"),
            other => panic!("phase {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "a request does not end");
}

fn events<'a>(trace: &'a Value, phase: &'a str, name: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = trace["traceEvents"].as_array().unwrap().iter();
    all.filter(move |event| event["ph"] == phase && event["name"] == name)
}

#[test]
fn the_founding_crash() {
    let trace = trace("founding/margin-0.93.yaml", &[]);
    check(&trace);
    assert_eq!(trace["otherData"]["schema"], "plimsoll.trace/1");
    let crash = events(&trace, "i", "out_of_memory").next().unwrap();
    assert_eq!(crash["args"]["requested_bytes"], 939_524_096_u64);
    assert_eq!(crash["args"]["free_bytes"], 280_742_586_u64);
    assert_eq!(ns(&crash["ts"]), 12_010_996_671);
    let first = events(&trace, "X", "prefill").next().unwrap();
    assert_eq!((first["args"]["tokens"].as_u64(), ns(&first["dur"])), (Some(839), 161_807_322));
    assert_eq!(events(&trace, "b", "request 0").count(), 1);
    // Memory of the rank that failed closes at every sample.
    let memory = events(&trace, "C", "memory, bytes").filter(|event| event["pid"] == 10);
    for sample in memory {
        let sum: u64 =
            sample["args"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
        assert_eq!(sum, 102_641_958_912);
    }
}

#[test]
fn retractions_preemptions_and_neighbours() {
    for name in [
        "retraction/llama-3.1-8b-conservativeness-0.3.yaml",
        "vllm/serve-preemption-storm.yaml",
        "vllm/serve-neighbour-after-start.yaml",
        "unified-memory/gb10-host-programs-grow.yaml",
    ] {
        let trace = trace(name, &[]);
        check(&trace);
        assert!(events(&trace, "i", "run_ended").count() == 1, "{name}");
    }
}
