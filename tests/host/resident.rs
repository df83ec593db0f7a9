//! Memory of this process as the kernel sees it: what is reserved costs addresses, what is touched costs
//! memory, and both come back. In a process of its own, since tests share theirs.

use super::child;
use plimsoll_backend_host::{
    HostBackend, HostSpec, Limit, RankSpec, TotalReading, TouchPolicy,
    linux::{OwnMemory, Roots, own_memory},
};
use plimsoll_core::{
    backend::{Backend, BackendError, KvMove, Place, Rank, StepWork},
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};
use std::process::Command;

const CHILD: &str = "host::resident::in_a_process_of_its_own";
/// The kernel counts in batches, and the program allocates a little too.
const SLACK: Bytes = Bytes::mib(4);

fn own() -> OwnMemory {
    own_memory(&Roots::default()).unwrap()
}

/// Eight cards of 96 GiB, on any computer.
fn cards(limit: Limit) -> HostSpec {
    let rank = RankSpec {
        capacity: Bytes::gib(96),
        tool_capacity: Some(Bytes::gib(96)),
        total: TotalReading::Works,
        driver_reserve: Bytes::mib(600),
        others: Bytes::ZERO,
        granularity: Bytes::mib(2),
    };
    let touch = TouchPolicy {
        total: Bytes::mib(160),
        neighbours: Bytes::mib(48),
        ..TouchPolicy::default()
    };
    HostSpec { ranks: vec![rank; 8], host_available: Bytes::gib(512), limit, touch }
}

/// By how much the resident memory differs from `before`, against what is due. The program's own code, which
/// comes in as it is first run, is no part of it.
#[track_caller]
fn grown(before: OwnMemory, due: Bytes) {
    let grown = own().anonymous.saturating_sub(before.anonymous);
    assert!(grown.0.abs_diff(due.0) <= SLACK.0, "grown by {grown}, {due} is due");
}

#[test]
fn reserved_memory_costs_addresses_and_touched_memory_is_real() {
    child::passed(&child::command(CHILD, "resident").output().unwrap());
}

/// Strict limits of addresses: the kernel refuses, and that is not the broker's refusal.
#[test]
fn a_refusal_of_the_kernel_is_told_apart() {
    for task in ["refused by broker", "refused by kernel"] {
        let inner = child::command(CHILD, task);
        // The shell sets the limit (in KiB) for what it becomes.
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 8388608 && exec \"$0\" \"$@\""]).arg(inner.get_program());
        shell.args(inner.get_args());
        for (name, value) in inner.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        child::passed(&shell.output().unwrap());
    }
}

#[test]
#[ignore = "run by its parent in a process of its own"]
fn in_a_process_of_its_own() {
    match child::task().as_deref() {
        Some("resident") => {
            segments_are_real();
            ranges_are_real();
            neighbours_are_real();
            passes_and_moves_keep_nothing();
        }
        Some("refused by broker") => refused(Limit::Broker),
        Some("refused by kernel") => refused(Limit::Kernel),
        _ => {}
    }
}

fn segments_are_real() {
    let start = own();
    let mut machine = HostBackend::new(&cards(Limit::Broker)).unwrap();
    let meter = machine.meter();
    let mut segments = Vec::new();
    for rank in (0..8).map(Rank) {
        for account in [Account::Weights, Account::KvPool] {
            let size = Bytes::gib(40);
            segments.push(machine.allocate(rank, account, Place::Device, size).unwrap());
        }
    }
    let mapped = own().mapped.saturating_sub(start.mapped);
    assert!(mapped >= Bytes::gib(640), "only {mapped} mapped");
    grown(start, Bytes::ZERO);

    let activations =
        machine.allocate(Rank(3), Account::Activations, Place::Device, Bytes::mib(64)).unwrap();
    grown(start, Bytes::mib(64));
    let graph = machine.capture(Rank(0), 8, Bytes::mib(32)).unwrap();
    grown(start, Bytes::mib(96));
    assert_eq!(meter.read().touched, Bytes::mib(96));
    // Beyond the policy memory is only mapped: 64 MiB are left of it.
    let more =
        machine.allocate(Rank(1), Account::Workspaces, Place::Device, Bytes::gib(2)).unwrap();
    grown(start, Bytes::mib(160));
    assert_eq!(meter.read().spared, Bytes::gib(2).saturating_sub(Bytes::mib(64)));
    machine.free(activations).unwrap();
    grown(start, Bytes::mib(96));
    for segment in segments.into_iter().chain([graph, more]) {
        machine.free(segment).unwrap();
    }
    grown(start, Bytes::ZERO);
    drop(machine);
    let left = own().mapped.saturating_sub(start.mapped);
    assert!(left <= Bytes::mib(64), "{left} still mapped");
}

fn ranges_are_real() {
    let mut machine = HostBackend::new(&cards(Limit::Broker)).unwrap();
    let start = own();
    let range = machine.reserve(Rank(7), Account::Activations, Bytes::gib(108)).unwrap();
    grown(start, Bytes::ZERO);
    machine.map(range, Bytes::ZERO, Bytes::mib(60)).unwrap();
    machine.map(range, Bytes::mib(60), Bytes::mib(20)).unwrap();
    grown(start, Bytes::mib(80));
    machine.unmap(range, Bytes::mib(20), Bytes::mib(50)).unwrap();
    grown(start, Bytes::mib(30));
    machine.unmap(range, Bytes::ZERO, Bytes::mib(20)).unwrap();
    machine.unmap(range, Bytes::mib(70), Bytes::mib(10)).unwrap();
    grown(start, Bytes::ZERO);
    let pool = machine.reserve(Rank(7), Account::KvPool, Bytes::gib(90)).unwrap();
    machine.map(pool, Bytes::ZERO, Bytes::gib(80)).unwrap();
    machine.unmap(pool, Bytes::gib(10), Bytes::gib(1)).unwrap();
    grown(start, Bytes::ZERO);
}

fn neighbours_are_real() {
    let mut machine = HostBackend::new(&cards(Limit::Broker)).unwrap();
    let start = own();
    machine.set_others(Rank(0), Bytes::mib(20)).unwrap();
    grown(start, Bytes::mib(20));
    machine.set_host_others(Bytes::gib(100)).unwrap();
    // Both together touch what their policy says, and no more.
    grown(start, Bytes::mib(48));
    machine.set_host_others(Bytes::mib(10)).unwrap();
    grown(start, Bytes::mib(30));
    machine.set_others(Rank(0), Bytes::ZERO).unwrap();
    machine.set_host_others(Bytes::ZERO).unwrap();
    grown(start, Bytes::ZERO);
    // A refusal of the broker is an answer, and takes nothing.
    let refused = machine.set_others(Rank(0), Bytes::gib(97));
    assert!(matches!(refused, Err(BackendError::OutOfMemory { .. })));
    grown(start, Bytes::ZERO);
}

fn passes_and_moves_keep_nothing() {
    let mut machine = HostBackend::new(&cards(Limit::Broker)).unwrap();
    machine.allocate(Rank(0), Account::Activations, Place::Device, Bytes::mib(8)).unwrap();
    let start = own();
    let step = StepWork { mode: Mode::Prefill, tokens: 8192, requests: 1, time: Nanos(5) };
    for _ in 0..100 {
        let report = machine.execute(&step).unwrap();
        assert!(report.measured.is_some());
    }
    // 48 GiB of KV go through two buffers of 4 MiB.
    machine.move_kv(Rank(0), KvMove::ToHost, Bytes::gib(48)).unwrap();
    grown(start, Bytes::mib(8));
    let free = machine.memory(Rank(0)).unwrap().measured_free;
    assert!(free.is_some_and(|free| free > Bytes::ZERO && free < Bytes::gib(1 << 16)));
}

fn refused(limit: Limit) {
    let mut machine = HostBackend::new(&cards(limit)).unwrap();
    let take =
        |m: &mut HostBackend, size| m.allocate(Rank(0), Account::Weights, Place::Device, size);
    let small = take(&mut machine, Bytes::mib(64)).unwrap();
    let held = machine.held(Rank(0)).unwrap();
    let mapped = machine.meter().read().mapped;
    let range = machine.reserve(Rank(0), Account::KvPool, Bytes::gib(90)).unwrap();
    for _ in 0..2 {
        let answers = [
            take(&mut machine, Bytes::gib(20)).map(|_| ()),
            machine.map(range, Bytes::ZERO, Bytes::gib(20)),
            machine.set_others(Rank(0), Bytes::gib(20)),
        ];
        for answer in answers {
            match (limit, answer) {
                (Limit::Broker, Err(BackendError::DeviceLost(text))) => {
                    assert!(text.starts_with("the kernel refused to map 20.00 GiB for "), "{text}");
                }
                (Limit::Kernel, Err(BackendError::OutOfMemory { rank: Rank(0), .. })) => {}
                (_, other) => panic!("{limit:?}: {other:?}"),
            }
        }
        assert_eq!(machine.held(Rank(0)).unwrap(), held);
        assert_eq!(machine.meter().read().mapped, mapped);
    }
    machine.free(small).unwrap();
    take(&mut machine, Bytes::mib(64)).unwrap();
}
