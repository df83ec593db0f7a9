//! Starts and runs on machines where something goes wrong: no panic, no byte without an account, and the
//! outcome follows the memory.

use plimsoll_backend_sim::{FailAt, Fault, MachineSpec, SimBackend, Trigger};
use plimsoll_core::{
    backend::Rank,
    decision::Record,
    engine::{
        metrics::Slo,
        serving::{Arrival, Clients, Limits, Pace, Sampling, ServeEnd, Watchers},
        startup::StartEnd,
    },
    figure::FigureValue,
    kv::Runs,
    sched::{Finish, LogDetail, NewRequest, RequestId},
    units::{Bytes, Nanos},
};
use plimsoll_replay::{
    assemble::{self, Assembled},
    scenario::Scenario,
    serve::{Load, serve},
    start::{self, Machine, Ran},
};
use std::{cell::Cell, path::Path};

const LLAMA: &str = "
name: test/llama
why: a small server
machine: { device: H100 SXM, ranks: 2 }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2
";

fn case() -> Assembled {
    let scenario = Scenario::parse("llama.yaml", LLAMA, &[]).unwrap();
    assemble::of_scenario(&scenario, Path::new("llama.yaml")).unwrap()
}

/// A start, its machine and records.
struct Started {
    ran: Ran,
    machine: Machine,
    records: Vec<Record>,
    capacity: Bytes,
}

/// Starts on the machine that `change` makes of the case's own.
fn start_on(case: &Assembled, change: impl Fn(&mut MachineSpec)) -> Started {
    let capacity = Cell::new(Bytes::ZERO);
    let make = |spec: &MachineSpec| {
        let mut spec = spec.clone();
        change(&mut spec);
        capacity.set(spec.devices[0].capacity);
        Ok(Box::new(SimBackend::new(spec)?) as Machine)
    };
    let mut records = Vec::new();
    let (ran, machine) = start::run_on(&case.case, make, &mut records).unwrap();
    Started { ran, machine, records, capacity: capacity.get() }
}

fn closes(machine: &Machine, capacity: Bytes) {
    for rank in (0..machine.ranks()).map(Rank) {
        let held: Bytes = machine.held(rank).unwrap().into_iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(held, capacity);
    }
}

fn tokens(ran: &Ran) -> u64 {
    match ran.start.figure("max_total_num_tokens").unwrap().value {
        FigureValue::Count(n) => n,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_survives_a_failure_at_any_allocation() {
    let case = case();
    let mut failed = 0;
    for fail_at in 0.. {
        let fail_at = Some(FailAt::once(fail_at));
        let Started { ran, machine, records, capacity } =
            start_on(&case, |spec| spec.fail_at = fail_at);
        closes(&machine, capacity);
        let ledgers = records.iter().filter(|record| record.kind == "ledger").count();
        match ran.start.end {
            StartEnd::OutOfMemory(_) => assert!(ledgers > 0, "the end says who held what"),
            StartEnd::Ready => break,
            StartEnd::Refused(refused) => panic!("{refused:?}"),
        }
        failed += 1;
    }
    // Context, weights, pools, table, workspaces, graphs of two ranks.
    assert!(failed >= 10, "{failed} allocations");
}

/// A short request, and longer ones a millisecond apart, so that later passes are larger.
struct Burst(Vec<Arrival>);

impl Burst {
    fn of(count: u64) -> Self {
        let arrival = |id| Arrival {
            at: Nanos(id * 1_000_000),
            request: NewRequest::plain(RequestId(id), Runs::of((id + 1) << 32, 700 + id * 300), 20),
            sampling: Sampling::default(),
        };
        Self((0..count).rev().map(arrival).collect())
    }
}

impl Clients for Burst {
    fn take(&mut self, now: Nanos) -> Option<Arrival> {
        self.0.pop_if(|arrival| arrival.at <= now)
    }

    fn next_at(&self) -> Option<Nanos> {
        self.0.last().map(|arrival| arrival.at)
    }

    fn finished(&mut self, _: RequestId, _: Finish, _: u64, _: Nanos) {}

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

fn run(case: &Assembled, change: impl Fn(&mut MachineSpec)) -> ServeEnd {
    let Started { ran, mut machine, mut records, capacity } = start_on(case, change);
    assert_eq!(ran.start.end, StartEnd::Ready);
    let limits = Limits { max_steps: 1000, max_time: Nanos(u64::MAX) };
    let mut clients = Burst::of(12);
    let interrupted = &|| false;
    let detail = LogDetail::Slots;
    let (pace, slo, watcher) = (Pace::default(), Slo::default(), &mut Watchers::default());
    let clients = &mut clients;
    let load = Load { clients, changes: &[], limits, detail, pace, slo, watcher, interrupted };
    let served = serve(case, &ran, machine.as_mut(), load, &mut records).unwrap();
    closes(&machine, capacity);
    served.served.end
}

#[test]
fn a_run_survives_a_failure_at_any_allocation() {
    let case = case();
    // The first call that the start does not make.
    let ready = |at: &u64| {
        let fail_at = Some(FailAt::once(*at));
        start_on(&case, |spec| spec.fail_at = fail_at).ran.start.end == StartEnd::Ready
    };
    let first = (0_u64..).find(ready).unwrap();
    assert_eq!(run(&case, |_| ()), ServeEnd::Finished);
    let mut died = 0;
    for call in first.. {
        // Refused once, the allocator gives back what it had cached, and asks again.
        let once = run(&case, |spec| spec.fail_at = Some(FailAt::once(call)));
        assert_eq!(once, ServeEnd::Finished, "call {call}");
        match run(&case, |spec| spec.fail_at = Some(FailAt { call, times: u64::MAX })) {
            ServeEnd::Finished => break,
            ServeEnd::OutOfMemory(_) => died += 1,
            other => panic!("call {call}: {other:?}"),
        }
    }
    assert!(died >= 10, "{died} allocations");
}

#[test]
fn a_leak_ends_a_run_that_would_have_finished() {
    let case = case();
    let leak = |each_step| vec![Fault::Leak { rank: Rank(1), each_step }];
    let slow = run(&case, |spec| spec.faults = leak(Bytes(1000)));
    assert_eq!(slow, ServeEnd::Finished);
    let fast = run(&case, |spec| spec.faults = leak(Bytes::gib(6)));
    let ServeEnd::OutOfMemory(failure) = fast else { panic!("{fast:?}") };
    assert_eq!(failure.refused.rank, Rank(1));
}

#[test]
fn a_relaunch_before_memory_is_back_sizes_a_smaller_pool() {
    let case = case();
    let remains = |until| Fault::Tenant { rank: Rank(0), from: None, until, size: Bytes::gib(7) };
    let pool = |faults: Vec<Fault>| {
        let Started { ran, machine, capacity, .. } =
            start_on(&case, |spec| spec.faults.clone_from(&faults));
        closes(&machine, capacity);
        assert_eq!(ran.start.end, StartEnd::Ready);
        tokens(&ran)
    };
    let patient = pool(vec![]);
    let early = pool(vec![remains(None)]);
    assert!(early < patient * 95 / 100, "{early} {patient}");
    // Gone before anything is read for sizing: one reading asks for the capacity.
    let gone = pool(vec![remains(Some(Trigger::AfterReading { rank: Rank(0), nth: 1 }))]);
    assert_eq!(gone, patient);
}

#[test]
fn a_neighbour_between_the_last_reading_and_the_pool_is_not_in_the_pool() {
    let case = case();
    // Capacity, before loading, after loading; then the pool is taken.
    let from = Some(Trigger::AfterReading { rank: Rank(0), nth: 3 });
    let neighbour = |size| Fault::Tenant { rank: Rank(0), from, until: None, size };
    let end = |size| start_on(&case, |spec| spec.faults = vec![neighbour(size)]).ran;
    let small = end(Bytes::gib(2));
    assert_eq!(small.start.end, StartEnd::Ready);
    assert_eq!(tokens(&small), tokens(&start_on(&case, |_| ()).ran));
    assert!(matches!(end(Bytes::gib(40)).start.end, StartEnd::OutOfMemory(_)));
}
