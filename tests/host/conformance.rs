//! One body of checks for every backend.

use plimsoll_backend_host::{HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::conformance::{Bench, checks, conformance},
    units::Bytes,
};

fn sim(granularity: Bytes, total: TotalReading) -> SimBackend {
    let device = DeviceSpec {
        capacity: Bytes::mib(512),
        tool_capacity: Some(Bytes::mib(512)),
        total,
        driver_reserve: Bytes::mib(12),
        others: Bytes::mib(20),
        granularity,
    };
    let weaker = DeviceSpec { capacity: Bytes::mib(400), tool_capacity: None, ..device };
    let spec = MachineSpec { devices: vec![device, weaker], host_available: Bytes::mib(300) };
    SimBackend::new(spec).unwrap()
}

#[test]
fn the_simulator_conforms() {
    for granularity in [Bytes::ZERO, Bytes::mib(2)] {
        for total in [TotalReading::Works, TotalReading::Fails] {
            // Ranges of the simulator do not yet know their parts.
            for (name, check) in checks().into_iter().filter(|(n, _)| *n != "parts_of_ranges") {
                let done = check(&mut sim(granularity, total), &Bench::exact(Bytes::mib(2)));
                assert_eq!(done, Ok(()), "{name}, granularity {granularity}");
            }
        }
    }
}

fn host(granularity: Bytes, total: plimsoll_backend_host::TotalReading) -> HostSpec {
    let rank = RankSpec {
        capacity: Bytes::mib(512),
        tool_capacity: Some(Bytes::mib(512)),
        total,
        driver_reserve: Bytes::mib(12),
        others: Bytes::mib(20),
        granularity,
    };
    let weaker = RankSpec { capacity: Bytes::mib(400), tool_capacity: None, ..rank };
    let touch =
        TouchPolicy { total: Bytes::mib(24), neighbours: Bytes::mib(7), ..TouchPolicy::default() };
    HostSpec {
        ranks: vec![rank, weaker],
        host_available: Bytes::mib(300),
        limit: Limit::Broker,
        touch,
    }
}

#[test]
fn host_memory_conforms() {
    use plimsoll_backend_host::TotalReading;
    for granularity in [Bytes::ZERO, Bytes(4096), Bytes::mib(1)] {
        for total in [TotalReading::Works, TotalReading::Fails] {
            let spec = host(granularity, total);
            for unit in [Bytes::mib(1), Bytes::mib(3)] {
                let done = conformance(|| HostBackend::new(&spec), &Bench::exact(unit));
                assert_eq!(done, Ok(()), "granularity {granularity}, unit {unit}");
            }
        }
    }
}

/// A card's size does not matter to a process that maps without touching.
#[test]
fn a_machine_larger_than_this_one_conforms() {
    let mut spec = host(Bytes::mib(2), plimsoll_backend_host::TotalReading::Works);
    for rank in &mut spec.ranks {
        rank.capacity = Bytes::gib(96);
    }
    spec.host_available = Bytes::gib(2048);
    let done = conformance(|| HostBackend::new(&spec), &Bench::exact(Bytes::gib(1)));
    assert_eq!(done, Ok(()));
}
