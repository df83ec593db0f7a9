//! Live readings: the recording of a run that they decided makes the same decisions again, whole or cut, and
//! a reading that somebody changed is found. A simulator of other numbers stands for the live machine.

use plimsoll_backend_sim::{FailAt, Fault, MachineSpec, SimBackend, Trigger};
use plimsoll_core::{backend::Rank, engine::startup::StartEnd, units::Bytes};
use plimsoll_replay::{
    again::{Extent, again},
    checker,
    record::{DigestScope, FieldValue},
    run::{Recording, RunOptions, ScenarioRun, run_with},
    scenario::Scenario,
    start::{CaseError, Machine, Readings},
    wire::Log,
};
use proptest::prelude::*;
use std::path::Path;

const SERVER: &str = "
name: test/live
why: a server whose machine is not what was declared
seed: 1
machine: { device: H100 SXM, ranks: 2 }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2 --enable-hierarchical-cache --hicache-size 80
workload:
  - { name: chat, requests: 6, concurrency: 3, prompt_tokens: 900, output_tokens: 30 }
events:
  - { at: 0.05 s, others_grow: { by: 2 GiB, over: 0.1 s } }
";

/// The live machine: smaller than declared, with neighbours that come and go between readings.
fn other(spec: &MachineSpec, fail_at: Option<FailAt>) -> MachineSpec {
    let mut spec = spec.clone();
    for (rank, device) in (0..).zip(&mut spec.devices) {
        device.capacity = device.capacity.saturating_sub(Bytes::gib(9 + rank));
        device.granularity = Bytes::mib(2);
        device.others = Bytes(Bytes::gib(1).0 + 12_345);
    }
    let come = |nth| Some(Trigger::AfterReading { rank: Rank(1), nth });
    let (rank, size) = (Rank(1), Bytes::gib(3));
    spec.faults.push(Fault::Tenant { rank, from: come(3), until: come(9), size });
    let (from, until) = (Some(Trigger::BeforeStep(4)), None);
    spec.faults.push(Fault::Tenant { rank: Rank(0), from, until, size: Bytes::gib(1) });
    spec.fail_at = fail_at;
    spec
}

/// Runs on the live machine; answers the run and its recording.
fn live(fail_at: Option<FailAt>) -> (ScenarioRun, Vec<u8>) {
    let scenario = Scenario::parse("live.yaml", SERVER, &[]).unwrap();
    let make = |spec: &MachineSpec| -> Result<Machine, CaseError> {
        Ok(Box::new(SimBackend::new(other(spec, fail_at))?))
    };
    let mut out = Vec::new();
    let record = Recording {
        out: &mut out,
        scenario_text: SERVER,
        scenario_file: "live.yaml".to_owned(),
        overrides: Vec::new(),
    };
    let options = RunOptions {
        machine: &make,
        readings: Readings::Device,
        record: Some(record),
        interrupted: &|| false,
        ..RunOptions::default()
    };
    let run = run_with(scenario, Path::new("live.yaml"), options).unwrap();
    (run, out)
}

fn read(bytes: &[u8]) -> Log {
    Log::read(bytes).unwrap()
}

#[test]
fn a_live_run_replays_to_the_same_decisions() {
    let (run, bytes) = live(None);
    assert_eq!(run.ran.start.end, StartEnd::Ready);
    assert!(run.served.is_some());
    let log = read(&bytes);
    assert_eq!(checker::check(&log), []);
    let observed = log.records.iter().filter(|record| record.kind == "observed").count();
    assert!(observed > 8, "{observed} observations");
    // No segment stands for the context: it is what the device says.
    let context = FieldValue::from("context");
    assert!(log.records.iter().all(|record| record.fields.get("account") != Some(&context)));
    let again = again(&log).unwrap();
    assert_eq!((again.extent, again.difference), (Extent::Whole, None));
    assert_eq!(again.run.digests.decisions, run.digests.decisions);
    // What is declared decides otherwise.
    let scenario = Scenario::parse("live.yaml", SERVER, &[]).unwrap();
    let declared = run_with(scenario, Path::new("live.yaml"), RunOptions::default()).unwrap();
    assert_ne!(declared.digests.decisions, run.digests.decisions);
}

#[test]
fn only_what_does_not_follow_is_recorded() {
    let (run, _) = live(None);
    let whole = run.log.records.len();
    let observed = run.log.records.iter().filter(|record| record.kind == "observed");
    let calls: Vec<_> = observed.filter_map(|record| record.fields.get("call").cloned()).collect();
    assert!(calls.len() * 2 < whole, "{} of {whole} records are observations", calls.len());
    let all_measured = |record: &plimsoll_replay::record::Record| {
        record.kind != "observed" || record.scope == DigestScope::Measured
    };
    assert!(run.log.records.iter().all(all_measured));
}

#[test]
fn a_changed_observation_is_found() {
    let (_, bytes) = live(None);
    let log = read(&bytes);
    let (mut tried, mut found) = (0, 0);
    for at in 0..log.records.len() {
        let mut changed = log.clone();
        let fields = &mut changed.records[at].fields.decided;
        let free = fields.iter_mut().find(|(name, _)| name == "free_bytes");
        let Some((_, FieldValue::Unsigned(free))) = free else { continue };
        if log.records[at].kind != "observed" {
            continue;
        }
        *free -= 1 << 21;
        tried += 1;
        found += usize::from(again(&changed).unwrap().difference.is_some());
        if tried == 6 {
            break;
        }
    }
    assert!(tried >= 4, "{tried} readings");
    // The very first reading asks for the capacity alone.
    assert!(found + 2 >= tried, "{found} of {tried} found");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A cut recording gives the same decisions up to the cut.
    #[test]
    fn a_cut_recording_replays_up_to_the_cut(part in 0.05_f64..1.0) {
        let (_, bytes) = live(None);
        let cut = (bytes.len() as f64 * part) as usize;
        let header = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let log = read(&bytes[..cut.max(header + 1)]);
        let again = again(&log).unwrap();
        prop_assert!(again.difference.is_none(), "{:?}", again.extent);
    }

    /// Whatever stands in an observation: an answer, and no panic.
    #[test]
    fn no_observation_breaks_a_replay(at in any::<prop::sample::Index>(), field in 0_usize..6, to: u64) {
        let (_, bytes) = live(None);
        let mut log = read(&bytes);
        let mut observed: Vec<_> =
            log.records.iter_mut().filter(|record| record.kind == "observed").collect();
        let record = at.index(observed.len());
        let fields = &mut observed[record].fields.decided;
        let field = field.min(fields.len() - 1);
        fields[field].1 = FieldValue::Unsigned(to);
        let _ = again(&log);
    }

    /// Whatever the machine refuses, and whenever: the same end.
    #[test]
    fn a_refusal_is_played_back(call in 0_u64..120, times in 1_u64..4) {
        let (run, bytes) = live(Some(FailAt { call, times }));
        let again = again(&read(&bytes)).unwrap();
        prop_assert_eq!(again.difference, None);
        prop_assert_eq!(again.run.digests.decisions, run.digests.decisions);
    }
}
