//! One body of checks for every backend.

use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::conformance::{Bench, checks},
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
