//! Starts and runs on machines where something goes wrong: no panic, no byte without an account, and the
//! outcome follows the memory.

use plimsoll_backend_sim::{FailAt, Fault, MachineSpec, SimBackend, Trigger};
use plimsoll_core::{
    backend::Rank,
    decision::Record,
    engine::{
        serving::{Arrival, Clients, Limits, Sampling, ServeEnd},
        startup::StartEnd,
    },
    figure::FigureValue,
    kv::Runs,
    sched::{Finish, NewRequest, RequestId},
    units::{Bytes, Nanos},
};
use plimsoll_replay::{
    assemble::{self, Assembled},
    scenario::Scenario,
    serve::{Load, serve},
    start::{self, Machine, Ran},
};
use std::{cell::RefCell, path::Path, rc::Rc};

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

/// Starts on the machine that `change` makes of the case's own.
fn start_on(case: &Assembled, change: impl FnOnce(&mut MachineSpec)) -> (Ran, Machine, Bytes) {
    let seen = Rc::new(RefCell::new(Bytes::ZERO));
    let make = |spec: &MachineSpec| {
        let mut spec = spec.clone();
        change(&mut spec);
        *seen.borrow_mut() = spec.devices[0].capacity;
        Ok(Box::new(SimBackend::new(spec)?) as Machine)
    };
    let (ran, machine) = start::run_on(&case.case, make).unwrap();
    let capacity = *seen.borrow();
    (ran, machine, capacity)
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
        let (ran, machine, capacity) =
            start_on(&case, |spec| spec.fail_at = Some(FailAt::once(fail_at)));
        closes(&machine, capacity);
        let ledgers = ran.records.iter().filter(|record| record.kind == "ledger").count();
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

/// Requests that are all there at once.
struct Burst(Vec<Arrival>);

impl Burst {
    fn of(count: u64) -> Self {
        let arrival = |id| Arrival {
            at: Nanos(0),
            request: NewRequest::plain(RequestId(id), Runs::of((id + 1) << 32, 700 + id * 300), 20),
            sampling: Sampling::default(),
        };
        Self((0..count).rev().map(arrival).collect())
    }
}

impl Clients for Burst {
    fn take(&mut self, _: Nanos) -> Option<Arrival> {
        self.0.pop()
    }

    fn next_at(&self) -> Option<Nanos> {
        self.0.last().map(|arrival| arrival.at)
    }

    fn finished(&mut self, _: RequestId, _: Finish, _: Nanos) {}

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

fn run(case: &Assembled, change: impl FnOnce(&mut MachineSpec)) -> (ServeEnd, Vec<Record>) {
    let (ran, mut machine, capacity) = start_on(case, change);
    assert_eq!(ran.start.end, StartEnd::Ready);
    let limits = Limits { max_steps: 1000, max_time: Nanos(u64::MAX) };
    let mut clients = Burst::of(12);
    let load = Load { clients: &mut clients, changes: &[], limits };
    let served = serve(case, &ran, machine.as_mut(), load).unwrap();
    closes(&machine, capacity);
    (served.served.end, served.records)
}

#[test]
fn a_run_survives_a_failure_at_any_allocation() {
    let case = case();
    // The first call that the start does not make.
    let ready = |at: &u64| {
        let fail_at = Some(FailAt::once(*at));
        start_on(&case, |spec| spec.fail_at = fail_at).0.start.end == StartEnd::Ready
    };
    let first = (0_u64..).find(ready).unwrap();
    assert_eq!(run(&case, |_| ()).0, ServeEnd::Finished);
    let mut died = 0;
    for call in first.. {
        // Refused once, the allocator gives back what it had cached, and asks again.
        let once = run(&case, |spec| spec.fail_at = Some(FailAt::once(call))).0;
        assert_eq!(once, ServeEnd::Finished, "call {call}");
        match run(&case, |spec| spec.fail_at = Some(FailAt { call, times: u64::MAX })).0 {
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
    let leak = |each_step| Fault::Leak { rank: Rank(1), each_step };
    let (slow, _) = run(&case, |spec| spec.faults = vec![leak(Bytes(1000))]);
    assert_eq!(slow, ServeEnd::Finished);
    let (fast, _) = run(&case, |spec| spec.faults = vec![leak(Bytes::gib(2))]);
    assert!(fast != ServeEnd::Finished, "{fast:?}");
}

#[test]
fn a_relaunch_before_memory_is_back_sizes_a_smaller_pool() {
    let case = case();
    let remains = |until| Fault::Tenant { rank: Rank(0), from: None, until, size: Bytes::gib(7) };
    let pool = |faults| {
        let (ran, machine, capacity) = start_on(&case, |spec| spec.faults = faults);
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
    let end = |size| start_on(&case, |spec| spec.faults = vec![neighbour(size)]).0;
    let small = end(Bytes::gib(2));
    assert_eq!(small.start.end, StartEnd::Ready);
    assert_eq!(tokens(&small), tokens(&start_on(&case, |_| ()).0));
    assert!(matches!(end(Bytes::gib(40)).start.end, StartEnd::OutOfMemory(_)));
}
