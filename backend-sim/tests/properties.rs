//! What holds after any calls on any machine.

use plimsoll_backend_sim::{
    CgroupSpec, CommonMemory, DeviceMemory, DeviceSpec, FreeReading, HostHeld, HostSpec,
    MachineSpec, SimBackend,
};
use plimsoll_core::{
    backend::{Backend as _, BackendError, Place, RangeId, Rank, SegmentId},
    memory::ledger::Account,
    units::{Bytes, KIB},
};
use proptest::prelude::*;

/// A call; numbers are taken modulo what exists.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate(u32, Place, u64),
    Free(usize),
    Others(u32, u64),
    HostOthers(u64),
    PageCache(u64),
    Reserve(u32, u64),
    Map(usize, u64, u64),
    Unmap(usize, u64, u64),
    Unreserve(usize),
    Capture(u32, u64),
}

fn call() -> impl Strategy<Value = Call> {
    // Sizes from bytes to more than a device, in KiB and in units of 2 MiB.
    let size = || prop_oneof![0_u64..4096, (0..2048_u64).prop_map(|k| k * KIB), 0..80_u64 << 20];
    let unit = || (0..24_u64).prop_map(|n| n << 21);
    let place = prop_oneof![3 => Just(Place::Device), 1 => Just(Place::Host)];
    prop_oneof![
        6 => (0..3_u32, place, size()).prop_map(|(r, p, s)| Call::Allocate(r, p, s)),
        4 => any::<usize>().prop_map(Call::Free),
        1 => (0..3_u32, size()).prop_map(|(r, s)| Call::Others(r, s)),
        1 => size().prop_map(Call::HostOthers),
        1 => size().prop_map(Call::PageCache),
        1 => (0..3_u32, unit()).prop_map(|(r, s)| Call::Reserve(r, s)),
        4 => (any::<usize>(), unit(), unit()).prop_map(|(i, o, s)| Call::Map(i, o, s)),
        3 => (any::<usize>(), unit(), unit()).prop_map(|(i, o, s)| Call::Unmap(i, o, s)),
        1 => any::<usize>().prop_map(Call::Unreserve),
        1 => (0..3_u32, size()).prop_map(|(r, s)| Call::Capture(r, s)),
    ]
}

/// Two ranks of 64 MiB: own or common memory, exact sizes or units, with or without a control group.
fn spec() -> impl Strategy<Value = MachineSpec> {
    let memory = prop_oneof![
        Just(DeviceMemory::Own),
        (any::<bool>(), prop::option::of(0..80_u64 << 20)).prop_map(|(free, set)| {
            let free = if free { FreeReading::MemFree } else { FreeReading::MemAvailable };
            DeviceMemory::Common(CommonMemory { free, working_set: set.map(Bytes) })
        }),
    ];
    let cgroup = prop::option::of((0..64_u64, 0..8_u64)).prop_map(|group| {
        group.map(|(limit, used)| CgroupSpec { limit: Bytes::mib(limit), used: Bytes::mib(used) })
    });
    let unit = prop_oneof![Just(0_u64), Just(16 << 10), Just(2 << 20)];
    (memory, cgroup, unit, 0..16_u64, 0..16_u64, 0..2_u32).prop_map(
        |(memory, cgroup, unit, cache, kept, node)| {
            let device = DeviceSpec {
                driver_reserve: Bytes::mib(4),
                granularity: Bytes(unit),
                memory,
                ..DeviceSpec::of_capacity(Bytes::mib(64))
            };
            let host = HostSpec {
                ram: Bytes::mib(60),
                others: Bytes::mib(3),
                page_cache: Bytes::mib(cache),
                kept: Bytes::mib(kept),
                cgroup,
            };
            MachineSpec::new(vec![device, DeviceSpec { node, ..device }], host)
        },
    )
}

#[derive(Default)]
struct Made {
    segments: Vec<SegmentId>,
    ranges: Vec<(RangeId, Vec<(u64, u64)>)>,
}

impl Made {
    fn call(&mut self, sim: &mut SimBackend, call: Call) -> Result<(), BackendError> {
        let nothing = Err(BackendError::Unknown("nothing made yet"));
        let account = Account::Weights;
        match call {
            Call::Allocate(rank, place, size) => {
                self.segments.push(sim.allocate(Rank(rank), account, place, Bytes(size))?);
            }
            Call::Capture(rank, size) => {
                self.segments.push(sim.capture(Rank(rank), 1, Bytes(size))?);
            }
            Call::Free(at) if !self.segments.is_empty() => {
                sim.free(self.segments.swap_remove(at % self.segments.len()))?;
            }
            Call::Others(rank, held) => sim.set_others(Rank(rank), Bytes(held))?,
            Call::HostOthers(held) => sim.set_host_others(Bytes(held))?,
            Call::PageCache(size) => sim.set_page_cache(0, Bytes(size))?,
            Call::Reserve(rank, size) => {
                let id = sim.reserve(Rank(rank), Account::Activations, Bytes(size))?;
                self.ranges.push((id, Vec::new()));
            }
            Call::Map(at, offset, size) if !self.ranges.is_empty() => {
                let at = at % self.ranges.len();
                sim.map(self.ranges[at].0, Bytes(offset), Bytes(size))?;
                self.ranges[at].1.push((offset, size));
            }
            Call::Unmap(at, offset, size) if !self.ranges.is_empty() => {
                let at = at % self.ranges.len();
                sim.unmap(self.ranges[at].0, Bytes(offset), Bytes(size))?;
                self.ranges[at].1 = without(&self.ranges[at].1, offset, size);
            }
            Call::Unreserve(at) if !self.ranges.is_empty() => {
                let at = at % self.ranges.len();
                sim.unreserve(self.ranges[at].0)?;
                self.ranges.swap_remove(at);
            }
            _ => return nothing,
        }
        Ok(())
    }

    fn give_all_back(self, sim: &mut SimBackend) {
        self.segments.into_iter().for_each(|id| sim.free(id).unwrap());
        for (range, mapped) in self.ranges {
            for (offset, size) in mapped {
                sim.unmap(range, Bytes(offset), Bytes(size)).unwrap();
            }
            sim.unreserve(range).unwrap();
        }
    }
}

/// Parts of 2 MiB that stay mapped: the plainest model of a range.
fn without(mapped: &[(u64, u64)], offset: u64, size: u64) -> Vec<(u64, u64)> {
    let unit = 1_u64 << 21;
    let units = |(start, size): (u64, u64)| (0..size / unit).map(move |n| start + n * unit);
    let gone: Vec<u64> = units((offset, size)).collect();
    mapped
        .iter()
        .flat_map(|part| units(*part))
        .filter(|start| !gone.contains(start))
        .map(|start| (start, unit))
        .collect()
}

type View = (Vec<Vec<(Account, Bytes)>>, Vec<Option<HostHeld>>, Vec<Bytes>);

fn view(sim: &SimBackend) -> View {
    let held = (0..2).map(|rank| sim.held(Rank(rank)).unwrap()).collect();
    let takeable = (0..2).map(|rank| sim.takeable(Rank(rank)).unwrap()).collect();
    (held, (0..2).map(|node| sim.host_held(node)).collect(), takeable)
}

fn check(sim: &mut SimBackend, (held, hosts, takeable): &View) {
    for (rank, held) in (0..).zip(held) {
        let all: Bytes = held.iter().map(|(_, bytes)| *bytes).sum();
        assert_eq!(all, Bytes::mib(64), "rank {rank}: {held:?}");
        let free = crate::held(sim, rank, Account::Free);
        assert_eq!(sim.memory(Rank(rank)).unwrap().free, free);
    }
    for host in hosts.iter().flatten() {
        let parts = [host.others, host.page_cache, host.pools, host.devices, host.free];
        assert_eq!(parts.into_iter().sum::<Bytes>(), host.ram);
    }
    for (rank, room) in (0..).zip(takeable) {
        // What is called takeable can be taken, and not a byte more.
        let mut copy = sim.clone();
        assert!(copy.capture(Rank(rank), 1, *room).is_ok());
        assert!(sim.clone().capture(Rank(rank), 1, Bytes(room.0 + 1)).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_byte_has_an_account_and_a_failed_call_changes_nothing(
        spec in spec(),
        calls in prop::collection::vec(call(), 1..60),
    ) {
        // Kept watermarks and cache may exceed a small host: such machines are refused.
        let Ok(mut sim) = SimBackend::new(spec) else { return Ok(()) };
        let mut made = Made::default();
        let mut before = view(&sim);
        for call in calls {
            let result = made.call(&mut sim, call);
            let after = view(&sim);
            if result.is_err() {
                prop_assert_eq!(&before, &after, "{:?}", call);
            }
            check(&mut sim, &after);
            before = after;
        }
    }

    #[test]
    fn giving_everything_back_returns_to_the_start(
        spec in spec(),
        calls in prop::collection::vec(call(), 1..60),
    ) {
        let Ok(mut sim) = SimBackend::new(spec.clone()) else { return Ok(()) };
        let mut made = Made::default();
        for call in calls {
            let _ = made.call(&mut sim, call);
        }
        made.give_all_back(&mut sim);
        for rank in 0..2 {
            sim.set_others(Rank(rank), Bytes::ZERO).unwrap();
        }
        sim.set_host_others(spec.host.others).unwrap();
        let fresh = SimBackend::new(spec).unwrap();
        let mut copy = fresh.clone();
        prop_assert_eq!(sim.host_available(), copy.host_available());
        // Page cache that gave way does not come back by itself; all else does.
        let no_cache = |mut machine: SimBackend| {
            for node in 0..2 {
                let _ = machine.set_page_cache(node, Bytes::ZERO);
            }
            view(&machine)
        };
        prop_assert_eq!(no_cache(sim), no_cache(fresh));
    }
}
