//! One body of checks for every backend.

use plimsoll_backend_host::{HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{self as sim, DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::conformance::{Bench, conformance},
    units::Bytes,
};

fn sim(granularity: Bytes, total: TotalReading) -> MachineSpec {
    let device = DeviceSpec {
        total,
        driver_reserve: Bytes::mib(12),
        others: Bytes::mib(20),
        granularity,
        ..DeviceSpec::of_capacity(Bytes::mib(512))
    };
    let weaker = DeviceSpec { capacity: Bytes::mib(400), tool_capacity: None, ..device };
    MachineSpec::new(vec![device, weaker], sim::HostSpec::of_available(Bytes::mib(300)))
}

#[test]
fn the_simulator_conforms() {
    for granularity in [Bytes::ZERO, Bytes::mib(2)] {
        for total in [TotalReading::Works, TotalReading::Fails] {
            for unit in [Bytes::mib(2), Bytes::mib(6)] {
                let spec = sim(granularity, total);
                let done = conformance(|| SimBackend::new(spec.clone()), &Bench::exact(unit));
                assert_eq!(done, Ok(()), "granularity {granularity}, unit {unit}");
            }
        }
    }
}

/// A group's limit is one more that may refuse, and the checks hold under it.
#[test]
fn a_simulated_control_group_conforms() {
    let mut spec = sim(Bytes::ZERO, TotalReading::Works);
    spec.host.cgroup = Some(sim::CgroupSpec { limit: Bytes::mib(280), used: Bytes::mib(30) });
    let done = conformance(|| SimBackend::new(spec.clone()), &Bench::exact(Bytes::mib(2)));
    assert_eq!(done, Ok(()));
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
