//! Host memory: pools of the server, other programs, page cache, control group.

use crate::{card, machine, two_cards};
use plimsoll_backend_sim::{CgroupSpec, DeviceSpec, HostSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend as _, BackendError, HostLimit, Place, Rank},
    memory::ledger::Account,
    units::Bytes,
};

fn pool(sim: &mut SimBackend, rank: u32, size: Bytes) -> Result<(), BackendError> {
    sim.allocate(Rank(rank), Account::KvPool, Place::Host, size).map(|_| ())
}

fn limit(result: Result<(), BackendError>) -> Option<HostLimit> {
    match result {
        Err(BackendError::HostOutOfMemory { limit, .. }) => Some(limit),
        _ => None,
    }
}

#[test]
fn the_host_is_shared_by_the_ranks() {
    let mut sim = machine(two_cards());
    pool(&mut sim, 0, Bytes::gib(3)).unwrap();
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(1));
    let second = pool(&mut sim, 1, Bytes::gib(3)).unwrap_err();
    assert_eq!(
        second,
        BackendError::HostOutOfMemory {
            rank: Rank(1),
            account: Account::KvPool,
            limit: HostLimit::Host,
            requested: Bytes::gib(3),
            free: Bytes::gib(1),
        }
    );
    assert!(second.to_string().contains("would kill the process"), "{second}");
    // Host memory is nothing to the devices.
    assert_eq!(crate::free(&mut sim, 0), Bytes::gib(9));
}

#[test]
fn each_host_has_its_own_memory() {
    let far = DeviceSpec { node: 1, ..card() };
    let spec = MachineSpec::new(vec![card(), far], HostSpec::of_available(Bytes::gib(4)));
    let mut sim = machine(spec);
    pool(&mut sim, 0, Bytes::gib(3)).unwrap();
    pool(&mut sim, 1, Bytes::gib(3)).unwrap();
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(1));
    assert!(sim.set_host_others(Bytes::gib(2)).is_err());
}

/// HiCache over 8 ranks: the pools fit one by one, and the last does not.
#[test]
fn eight_pools_of_48_gb_need_as_much_as_they_need() {
    let spec = MachineSpec::new(vec![card(); 8], HostSpec::of_available(Bytes(370_000_000_000)));
    let mut sim = machine(spec);
    let each = Bytes(48_000_000_000);
    for rank in 0..7 {
        pool(&mut sim, rank, each).unwrap();
    }
    assert_eq!(limit(pool(&mut sim, 7, each)), Some(HostLimit::Host));
    assert!(pool(&mut sim, 7, Bytes(34_000_000_000)).is_ok());
}

#[test]
fn page_cache_gives_way_and_other_programs_do_not() {
    let mut spec = two_cards();
    spec.host.page_cache = Bytes::gib(3);
    let mut sim = machine(spec);
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(4));
    pool(&mut sim, 0, Bytes::gib(2)).unwrap();
    let held = sim.host_held(0).unwrap();
    assert_eq!((held.page_cache, held.free), (Bytes::gib(2), Bytes::ZERO));
    sim.set_host_others(Bytes::gib(1)).unwrap();
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(1));
    assert!(sim.set_host_others(Bytes(Bytes::gib(2).0 + 1)).is_err());
    sim.set_host_others(Bytes::ZERO).unwrap();
    // Cache that was given back stays free until files are read again.
    let held = sim.host_held(0).unwrap();
    assert_eq!((held.page_cache, held.free), (Bytes::gib(1), Bytes::gib(1)));
    sim.set_page_cache(0, Bytes::gib(60)).unwrap();
    assert_eq!(sim.host_held(0).unwrap().free, Bytes::ZERO);
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(2));
}

#[test]
fn a_control_group_decides_when_it_is_tighter_and_only_then() {
    let mut spec = two_cards();
    spec.host.cgroup = Some(CgroupSpec { limit: Bytes::gib(3), used: Bytes::gib(1) });
    let mut sim = machine(spec);
    // /proc/meminfo knows nothing of the group.
    assert_eq!(sim.host_available().unwrap(), Bytes::gib(4));
    let refused = pool(&mut sim, 0, Bytes::gib(3));
    assert_eq!(limit(refused), Some(HostLimit::Cgroup));
    pool(&mut sim, 0, Bytes::gib(1)).unwrap();
    sim.set_host_others(Bytes(Bytes::gib(2).0 + Bytes::mib(512).0)).unwrap();
    let refused = pool(&mut sim, 0, Bytes::gib(1));
    assert_eq!(limit(refused), Some(HostLimit::Host));
    let never = pool(&mut sim, 0, Bytes::gib(5));
    assert!(matches!(never, Err(BackendError::TooLarge { .. })));
}
