//! A device with memory of its own.

use crate::{card, free, held, machine, step, two_cards};
use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec, TotalReading};
use plimsoll_core::{
    backend::{Backend as _, BackendError, KvMove, Place, Rank},
    device::cuda_malloc_footprint,
    memory::ledger::Account,
    units::{Bytes, KIB, Nanos},
};

const NINE: Bytes = Bytes::gib(9);

#[test]
fn segments_are_rounded_and_every_byte_has_an_account() {
    let mut sim = machine(two_cards());
    let asked = Bytes::mib(3);
    let id = sim.allocate(Rank(1), Account::Weights, Place::Device, asked).unwrap();
    assert_eq!(held(&sim, 1, Account::Weights), Bytes::mib(4));
    assert_eq!(free(&mut sim, 1), NINE.saturating_sub(Bytes::mib(4)));
    assert_eq!(free(&mut sim, 0), NINE);
    let all: Bytes = sim.held(Rank(1)).unwrap().into_iter().map(|(_, b)| b).sum();
    assert_eq!(all, Bytes::gib(10));
    sim.free(id).unwrap();
    assert_eq!(sim.free(id), Err(BackendError::Unknown("segment")));
    assert_eq!(free(&mut sim, 1), NINE);
}

#[test]
fn without_a_granularity_sizes_are_exact() {
    let exact = DeviceSpec { granularity: Bytes::ZERO, ..card() };
    let mut sim = machine(MachineSpec::new(vec![exact], HostSpec::of_available(Bytes::ZERO)));
    sim.allocate(Rank(0), Account::Weights, Place::Device, Bytes(12_345)).unwrap();
    assert_eq!(free(&mut sim, 0), NINE.saturating_sub(Bytes(12_345)));
}

/// The experiment that the table of footprints was measured by: 256 equal allocations, and what the free
/// counter loses for them, to within the last unit opened.
#[test]
fn small_segments_share_units_of_two_mebibytes() {
    for kib in [1, 4, 10, 16, 64, 96, 384, 600, 1000] {
        let mut sim = machine(two_cards());
        let size = Bytes(kib * KIB);
        let first = sim.allocate(Rank(0), Account::Workspaces, Place::Device, size).unwrap();
        assert_eq!(free(&mut sim, 0), NINE.saturating_sub(Bytes::mib(2)), "{kib} KiB");
        let rest = (1..256)
            .map(|_| sim.allocate(Rank(0), Account::Workspaces, Place::Device, size).unwrap());
        let rest: Vec<_> = rest.collect();
        let footprint = cuda_malloc_footprint(size);
        assert_eq!(held(&sim, 0, Account::Workspaces), Bytes(256 * footprint.0));
        let units = 256_u64.div_ceil(Bytes::mib(2).0 / footprint.0);
        assert_eq!(free(&mut sim, 0), NINE.saturating_sub(Bytes::mib(2 * units)), "{kib} KiB");
        for id in rest.into_iter().chain([first]) {
            sim.free(id).unwrap();
        }
        assert_eq!(free(&mut sim, 0), NINE);
        assert_eq!(held(&sim, 0, Account::Context), Bytes::ZERO);
    }
}

#[test]
fn a_full_device_still_serves_small_segments_from_open_units() {
    let mut sim = machine(two_cards());
    let small = |sim: &mut plimsoll_backend_sim::SimBackend| {
        sim.allocate(Rank(0), Account::Workspaces, Place::Device, Bytes(600 * KIB))
    };
    small(&mut sim).unwrap();
    let rest = NINE.saturating_sub(Bytes::mib(2));
    sim.allocate(Rank(0), Account::KvPool, Place::Device, rest).unwrap();
    assert_eq!(free(&mut sim, 0), Bytes::ZERO);
    small(&mut sim).unwrap();
    let full = small(&mut sim).unwrap_err();
    let wanted = BackendError::OutOfMemory {
        rank: Rank(0),
        account: Account::Workspaces,
        requested: Bytes::mib(2),
        free: Bytes::ZERO,
    };
    assert_eq!(full, wanted);
}

#[test]
fn not_now_and_never_are_told_apart() {
    let mut sim = machine(two_cards());
    for never in [Bytes::gib(11), Bytes(u64::MAX)] {
        let refused = sim.allocate(Rank(0), Account::KvPool, Place::Device, never);
        assert!(matches!(refused, Err(BackendError::TooLarge { .. })));
    }
    sim.set_others(Rank(0), Bytes::gib(5)).unwrap();
    let not_now = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(5));
    assert!(matches!(not_now, Err(BackendError::OutOfMemory { .. })));
    assert!(sim.set_others(Rank(0), Bytes::gib(10)).is_err());
    sim.set_others(Rank(0), Bytes::gib(1)).unwrap();
    assert!(sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(5)).is_ok());
}

#[test]
fn a_weaker_rank_has_its_own_capacity_and_neighbours() {
    let weak = DeviceSpec {
        others: Bytes::gib(2),
        driver_reserve: Bytes::gib(1),
        ..DeviceSpec::of_capacity(Bytes::gib(8))
    };
    let spec = MachineSpec::new(vec![card(), weak], HostSpec::of_available(Bytes::ZERO));
    let mut sim = machine(spec);
    assert_eq!((free(&mut sim, 0), free(&mut sim, 1)), (NINE, Bytes::gib(5)));
    assert_eq!(sim.memory(Rank(1)).unwrap().others, Some(Bytes::gib(2)));
    let six = Bytes::gib(6);
    assert!(sim.allocate(Rank(0), Account::Weights, Place::Device, six).is_ok());
    assert!(sim.allocate(Rank(1), Account::Weights, Place::Device, six).is_err());
}

#[test]
fn virtual_ranges_are_exact_to_the_unit() {
    let mut sim = machine(two_cards());
    let unit = Bytes::mib(2);
    let range = sim.reserve(Rank(0), Account::Activations, Bytes::gib(20)).unwrap();
    assert_eq!(free(&mut sim, 0), NINE);
    sim.map(range, Bytes::mib(4), Bytes::mib(8)).unwrap();
    assert_eq!(held(&sim, 0, Account::Activations), Bytes::mib(8));
    let twice = sim.map(range, Bytes::mib(10), Bytes::mib(4));
    assert!(matches!(twice, Err(BackendError::Unknown(_))));
    assert!(sim.map(range, Bytes::mib(12), Bytes::mib(1)).is_err(), "half a unit");
    // A part of what one call mapped, then across two calls.
    sim.unmap(range, Bytes::mib(6), unit).unwrap();
    assert!(sim.unmap(range, Bytes::mib(4), Bytes::mib(4)).is_err(), "a hole in it");
    sim.map(range, Bytes::mib(6), unit).unwrap();
    assert!(sim.unreserve(range).is_err());
    sim.unmap(range, Bytes::mib(4), Bytes::mib(8)).unwrap();
    assert_eq!(free(&mut sim, 0), NINE);
    let much = sim.map(range, Bytes::ZERO, Bytes::gib(10));
    assert!(matches!(much, Err(BackendError::TooLarge { .. })));
    sim.unreserve(range).unwrap();
    assert!(sim.map(range, Bytes::ZERO, unit).is_err());
}

#[test]
fn addresses_run_out_too() {
    let mut sim = machine(two_cards());
    let half = Bytes(1 << 46);
    let first = sim.reserve(Rank(0), Account::Activations, half).unwrap();
    sim.reserve(Rank(0), Account::Activations, half).unwrap();
    let none = sim.reserve(Rank(0), Account::Activations, Bytes(1));
    assert!(matches!(none, Err(BackendError::OutOfMemory { .. })));
    sim.unreserve(first).unwrap();
    assert!(sim.reserve(Rank(0), Account::Activations, Bytes(1)).is_ok());
}

#[test]
fn totals_can_be_wrong_or_missing() {
    for (total, read) in [
        (TotalReading::Works, Some(NINE)),
        (TotalReading::Fails, None),
        (TotalReading::Wrong(Bytes::gib(80)), Some(Bytes::gib(80))),
    ] {
        let device = DeviceSpec { total, ..card() };
        let mut sim = machine(MachineSpec::new(vec![device], HostSpec::of_available(Bytes::ZERO)));
        let reading = sim.memory(Rank(0)).unwrap();
        // What is free is what is there, whatever the total says.
        assert_eq!((reading.total, reading.free), (read, NINE));
    }
}

#[test]
fn graphs_take_what_was_planned_and_steps_the_model_time() {
    let mut sim = machine(two_cards());
    let planned = Bytes(123_456_789);
    let graph = sim.capture(Rank(0), 32, planned).unwrap();
    assert_eq!(held(&sim, 0, Account::Graphs), planned);
    sim.free(graph).unwrap();
    assert_eq!(free(&mut sim, 0), NINE);
    assert_eq!(sim.execute(&step(1500)).unwrap().elapsed, Nanos(1500));
    sim.execute(&step(500)).unwrap();
    assert_eq!(sim.elapsed(), Nanos(2000));
}

#[test]
fn kv_moves_between_pools_that_exist() {
    let mut sim = machine(two_cards());
    sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(2)).unwrap();
    assert!(sim.move_kv(Rank(0), KvMove::ToHost, Bytes(1)).is_err(), "no host tier yet");
    sim.allocate(Rank(0), Account::KvPool, Place::Host, Bytes::gib(1)).unwrap();
    assert!(sim.move_kv(Rank(0), KvMove::ToHost, Bytes::gib(1)).is_ok());
    assert!(sim.move_kv(Rank(0), KvMove::ToDevice, Bytes(Bytes::gib(1).0 + 1)).is_err());
    assert!(sim.move_kv(Rank(1), KvMove::ToHost, Bytes(1)).is_err());
    assert!(sim.move_kv(Rank(2), KvMove::ToHost, Bytes::ZERO).is_err());
}

#[test]
fn machines_that_cannot_be_are_refused() {
    let host = HostSpec::of_available(Bytes::gib(1));
    let full = DeviceSpec { others: Bytes::gib(10), ..card() };
    let refused = MachineSpec::new(vec![full], host);
    assert!(matches!(
        plimsoll_backend_sim::SimBackend::new(refused),
        Err(BackendError::TooLarge { .. })
    ));
    let far = DeviceSpec { node: 7, ..card() };
    assert!(plimsoll_backend_sim::SimBackend::new(MachineSpec::new(vec![far], host)).is_err());
}
