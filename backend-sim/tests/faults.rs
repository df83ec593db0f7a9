//! Faults: each changes what it names, when it says, and nothing else.

use crate::{free, held, machine, step, two_cards};
use plimsoll_backend_sim::{FailAt, Fault, MachineSpec, Trigger};
use plimsoll_core::{
    backend::{Backend as _, BackendError, Place, Rank},
    memory::ledger::Account,
    units::{Bytes, Nanos},
};

fn with(fault: Fault) -> MachineSpec {
    MachineSpec { faults: vec![fault], ..two_cards() }
}

const fn after(nth: u64) -> Trigger {
    Trigger::AfterReading { rank: Rank(0), nth }
}

#[test]
fn a_neighbour_that_starts_between_two_readings_is_in_neither_decision() {
    let tenant =
        Fault::Tenant { rank: Rank(0), from: Some(after(1)), until: None, size: Bytes::gib(3) };
    let mut sim = machine(with(tenant));
    let seen = free(&mut sim, 0);
    assert_eq!(seen, Bytes::gib(9));
    let sized = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(8));
    assert!(matches!(sized, Err(BackendError::OutOfMemory { free, .. }) if free == Bytes::gib(6)));
    let reading = sim.memory(Rank(0)).unwrap();
    assert_eq!((reading.free, reading.others), (Bytes::gib(6), Some(Bytes::gib(3))));
    assert_eq!(free(&mut sim, 1), Bytes::gib(9));
}

#[test]
fn the_remains_of_a_dead_server_are_given_back_later() {
    let remains =
        Fault::Tenant { rank: Rank(0), from: None, until: Some(after(2)), size: Bytes::gib(7) };
    let mut sim = machine(with(remains));
    let readings: Vec<_> = (0..3).map(|_| free(&mut sim, 0)).collect();
    assert_eq!(readings, [Bytes::gib(2), Bytes::gib(2), Bytes::gib(9)]);
    // What the engine says of other programs does not touch the dead.
    let mut sim = machine(with(remains));
    sim.set_others(Rank(0), Bytes::gib(1)).unwrap();
    assert_eq!(held(&sim, 0, Account::OtherPrograms), Bytes::gib(8));
    let full = Fault::Tenant { rank: Rank(0), from: None, until: None, size: Bytes::gib(10) };
    assert!(plimsoll_backend_sim::SimBackend::new(with(full)).is_err());
}

#[test]
fn a_neighbour_comes_and_goes_with_steps_and_time() {
    let (from, until) = (Some(Trigger::BeforeStep(1)), Some(Trigger::At(Nanos(250))));
    let tenant = Fault::Tenant { rank: Rank(0), from, until, size: Bytes::gib(20) };
    let mut sim = machine(with(tenant));
    sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(8)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        sim.execute(&step(100)).unwrap();
        seen.push(free(&mut sim, 0));
    }
    // It takes what there is, and gives back as much.
    assert_eq!(seen, [Bytes::gib(1), Bytes::ZERO, Bytes::ZERO, Bytes::gib(1)]);
}

#[test]
fn host_neighbours_and_files_take_host_memory() {
    let tenant = Fault::HostTenant {
        node: 0,
        from: Some(Trigger::BeforeStep(0)),
        until: Some(Trigger::BeforeStep(1)),
        size: Bytes::gib(3),
    };
    let files = Fault::PageCache { node: 0, at: Trigger::BeforeStep(1), size: Bytes::gib(2) };
    let mut sim = machine(MachineSpec { faults: vec![tenant, files], ..two_cards() });
    sim.execute(&step(1)).unwrap();
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(1));
    sim.execute(&step(1)).unwrap();
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(4));
    assert_eq!(sim.host_held(0).unwrap().free, Bytes::gib(2));
}

#[test]
fn a_leak_grows_with_every_step_until_nothing_is_left() {
    let leak = |rank| Fault::Leak { rank: Rank(rank), each_step: Bytes::gib(2) };
    let mut sim = machine(MachineSpec { faults: vec![leak(1), leak(0)], ..two_cards() });
    sim.set_others(Rank(0), Bytes::gib(4)).unwrap();
    let mut lost = Vec::new();
    for _ in 0..4 {
        sim.execute(&step(1)).unwrap();
        lost.push([0, 1].map(|rank| held(&sim, rank, Account::Unaccounted)));
    }
    let gib = |n| Bytes::gib(n);
    assert_eq!(lost, [[gib(2), gib(2)], [gib(4), gib(4)], [gib(5), gib(6)], [gib(5), gib(8)]]);
    let next = sim.allocate(Rank(0), Account::Activations, Place::Device, Bytes::mib(2));
    assert!(matches!(next, Err(BackendError::OutOfMemory { free: Bytes::ZERO, .. })));
}

#[test]
fn the_call_that_is_to_fail_fails_and_changes_nothing() {
    for fail_at in 0..5 {
        let mut sim = machine(MachineSpec { fail_at: Some(FailAt::once(fail_at)), ..two_cards() });
        let mut failed = 0;
        let mut made = Vec::new();
        for size in [Bytes(1), Bytes::gib(1), Bytes::mib(1)] {
            let before = sim.held(Rank(0)).unwrap();
            match sim.allocate(Rank(0), Account::Weights, Place::Device, size) {
                Ok(segment) => made.push(segment),
                Err(error) => {
                    assert!(
                        matches!(error, BackendError::OutOfMemory { requested, .. } if requested == size)
                    );
                    assert_eq!(sim.held(Rank(0)).unwrap(), before);
                    failed += 1;
                }
            }
        }
        if let Ok(range) = sim.reserve(Rank(0), Account::Activations, Bytes::gib(1)) {
            failed += u64::from(sim.map(range, Bytes::ZERO, Bytes::mib(2)).is_err());
            let mapped = held(&sim, 0, Account::Activations);
            if mapped > Bytes::ZERO {
                sim.unmap(range, Bytes::ZERO, mapped).unwrap();
            }
            sim.unreserve(range).unwrap();
        } else {
            failed += 1;
        }
        assert_eq!(failed, 1, "call {fail_at}");
        made.into_iter().for_each(|segment| sim.free(segment).unwrap());
        assert_eq!(free(&mut sim, 0), Bytes::gib(9));
    }
}

#[test]
fn faults_name_what_exists() {
    for fault in [
        Fault::Tenant { rank: Rank(2), from: None, until: None, size: Bytes(1) },
        Fault::HostTenant { node: 1, from: None, until: None, size: Bytes(1) },
        Fault::PageCache { node: 1, at: after(1), size: Bytes(1) },
        Fault::Leak { rank: Rank(2), each_step: Bytes(1) },
    ] {
        assert!(plimsoll_backend_sim::SimBackend::new(with(fault)).is_err(), "{fault:?}");
    }
}
