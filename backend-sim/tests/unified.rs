//! Memory that device and host have in common: GB10, Jetson, Apple.

use crate::{free, held, machine};
use plimsoll_backend_sim::{
    CommonMemory, DeviceMemory, DeviceSpec, FreeReading, HostSpec, MachineSpec,
};
use plimsoll_core::{
    backend::{Backend as _, BackendError, HostLimit, Place, Rank},
    device::{
        CUDA_GRANULARITY, DeviceProfile, Evidence, MemoryKind, MetalWorkingSet, Platform, Sourced,
    },
    figure::Estimate,
    memory::ledger::Account,
    units::Bytes,
};

/// 128 GiB of which programs see 122.
fn gb10() -> DeviceSpec {
    DeviceSpec {
        tool_capacity: None,
        driver_reserve: Bytes::gib(6),
        granularity: CUDA_GRANULARITY,
        memory: DeviceMemory::Common(CommonMemory {
            free: FreeReading::MemFree,
            working_set: None,
        }),
        ..DeviceSpec::of_capacity(Bytes::gib(128))
    }
}

fn spark() -> MachineSpec {
    let mut host = HostSpec::of_available(Bytes::ZERO);
    host.others = Bytes::gib(6);
    host.page_cache = Bytes::gib(13);
    MachineSpec::new(vec![gb10()], host)
}

/// The public measurement: a 60 GB file is written, what CUDA calls free falls by as much, and what is
/// available does not.
#[test]
fn a_written_file_looks_like_used_memory_and_is_not() {
    let mut sim = machine(spark());
    assert_eq!(free(&mut sim, 0), Bytes::gib(103));
    assert_eq!(sim.memory(Rank(0)).unwrap().total, Some(Bytes::gib(122)));
    assert_eq!(sim.memory(Rank(0)).unwrap().capacity, None);
    sim.set_page_cache(0, Bytes::gib(13 + 60)).unwrap();
    assert_eq!(free(&mut sim, 0), Bytes::gib(43));
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(116));
    // So a segment of twice the free memory is served, and takes the cache's place.
    sim.allocate(Rank(0), Account::Weights, Place::Device, Bytes::gib(90)).unwrap();
    let host = sim.host_held(0).unwrap();
    assert_eq!((host.page_cache, host.devices), (Bytes::gib(26), Bytes::gib(90)));
    assert_eq!(free(&mut sim, 0), Bytes::ZERO);
    assert_eq!(sim.takeable(Rank(0)).unwrap(), Bytes::gib(26));
}

#[test]
fn programs_on_both_sides_take_from_one_pool() {
    let mut sim = machine(spark());
    sim.allocate(Rank(0), Account::Weights, Place::Device, Bytes::gib(50)).unwrap();
    sim.allocate(Rank(0), Account::KvPool, Place::Host, Bytes::gib(20)).unwrap();
    sim.set_others(Rank(0), Bytes::gib(10)).unwrap();
    sim.set_host_others(Bytes::gib(36)).unwrap();
    assert_eq!(sim.takeable(Rank(0)).unwrap(), Bytes::gib(6));
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(6));
    assert_eq!(sim.memory(Rank(0)).unwrap().others, Some(Bytes::gib(46)));
    let device = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(7));
    assert!(matches!(device, Err(BackendError::OutOfMemory { free, .. }) if free == Bytes::gib(6)));
    let host = sim.allocate(Rank(0), Account::KvPool, Place::Host, Bytes::gib(7));
    assert!(matches!(host, Err(BackendError::HostOutOfMemory { limit: HostLimit::Host, .. })));
    let all: Bytes = sim.held(Rank(0)).unwrap().into_iter().map(|(_, b)| b).sum();
    assert_eq!(all, Bytes::gib(128));
    assert_eq!(held(&sim, 0, Account::KvPool), Bytes::gib(20));
    assert!(sim.set_host_others(Bytes::gib(43)).is_err());
    sim.set_host_others(Bytes::ZERO).unwrap();
    assert_eq!(sim.takeable(Rank(0)).unwrap(), Bytes::gib(42));
}

/// A laptop: what is available is read, and the working set limits the device's part.
#[test]
fn metal_stops_at_the_working_set_with_memory_left() {
    let set = Bytes::mib(53_084);
    let memory = DeviceMemory::Common(CommonMemory {
        free: FreeReading::MemAvailable,
        working_set: Some(set),
    });
    let laptop = DeviceSpec {
        memory,
        granularity: Bytes(16 << 10),
        tool_capacity: Some(set),
        ..DeviceSpec::of_capacity(Bytes::gib(64))
    };
    let mut host = HostSpec::of_available(Bytes::ZERO);
    host.page_cache = Bytes::gib(10);
    let mut sim = machine(MachineSpec::new(vec![laptop], host));
    assert_eq!(free(&mut sim, 0), Bytes::gib(64));
    assert_eq!(sim.takeable(Rank(0)).unwrap(), set);
    let never = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(60));
    assert!(matches!(never, Err(BackendError::TooLarge { capacity, .. }) if capacity == set));
    sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(50)).unwrap();
    let room = set.saturating_sub(Bytes::gib(50));
    let not_now = sim.allocate(Rank(0), Account::KvPool, Place::Device, Bytes::gib(3));
    assert!(matches!(not_now, Err(BackendError::OutOfMemory { free, .. }) if free == room));
    assert_eq!(free(&mut sim, 0), Bytes::gib(14));
    // Below the working set what counts is what other programs left.
    sim.set_host_others(Bytes::gib(13)).unwrap();
    assert_eq!(sim.takeable(Rank(0)).unwrap(), Bytes::gib(1));
}

#[test]
fn two_machines_of_one_device_each_do_not_share() {
    let spec = MachineSpec { devices: vec![gb10(), DeviceSpec { node: 1, ..gb10() }], ..spark() };
    let mut sim = machine(spec);
    sim.allocate(Rank(0), Account::Weights, Place::Device, Bytes::gib(100)).unwrap();
    assert_eq!((free(&mut sim, 0), free(&mut sim, 1)), (Bytes::gib(3), Bytes::gib(103)));
    let same = MachineSpec { devices: vec![gb10(); 2], ..spark() };
    let mut sim = machine(same);
    sim.allocate(Rank(0), Account::Weights, Place::Device, Bytes::gib(100)).unwrap();
    assert_eq!((free(&mut sim, 0), free(&mut sim, 1)), (Bytes::gib(3), Bytes::gib(3)));
}

#[test]
fn devices_of_one_host_agree_on_its_memory() {
    let other = DeviceSpec { driver_reserve: Bytes::gib(5), ..gb10() };
    let spec = MachineSpec { devices: vec![gb10(), other], ..spark() };
    assert!(plimsoll_backend_sim::SimBackend::new(spec).is_err());
}

#[test]
fn a_profile_says_where_the_memory_is() {
    let mut profile = DeviceProfile::of_capacity("a card", Bytes::gib(24));
    let own = DeviceSpec::of_profile(&profile);
    assert_eq!((own.memory, own.granularity), (DeviceMemory::Own, CUDA_GRANULARITY));
    profile.memory = MemoryKind::Integrated;
    profile.smi_total_mib = None;
    let spark = DeviceSpec::of_profile(&profile);
    let common = CommonMemory { free: FreeReading::MemFree, working_set: None };
    assert_eq!((spark.memory, spark.tool_capacity), (DeviceMemory::Common(common), None));
    let (ram, set) = (Bytes::gib(36), Bytes::gib(27));
    profile.platform = Platform::Metal;
    profile.runtime_total = Sourced::new(Estimate::exact(set), Evidence::Rule);
    let older_macos = Sourced::new(set, Evidence::Rule);
    profile.metal = Some(MetalWorkingSet { ram, older_macos, newer_macos: None });
    let mut sim = machine(MachineSpec::new(
        vec![DeviceSpec::of_profile(&profile)],
        HostSpec::of_available(Bytes::ZERO),
    ));
    assert_eq!((free(&mut sim, 0), sim.takeable(Rank(0)).unwrap()), (ram, set));
}
