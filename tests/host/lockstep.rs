//! The simulator and real memory give the same answers to the same calls, whatever the calls are.

use plimsoll_backend_host as host;
use plimsoll_backend_host::{HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{self as sim, DeviceSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend, BackendError, KvMove, Place, RangeId, Rank, SegmentId, StepWork},
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const RANKS: usize = 2;
const CAPACITY: Bytes = Bytes::mib(64);
const RESERVE: Bytes = Bytes::mib(3);
const OTHERS: Bytes = Bytes::mib(5);
const ON_HOST: Bytes = Bytes::mib(40);
/// Ranges are mapped in slots of this size.
const SLOT: Bytes = Bytes::mib(2);

fn both() -> (SimBackend, HostBackend) {
    let device = DeviceSpec {
        tool_capacity: None,
        driver_reserve: RESERVE,
        others: OTHERS,
        ..DeviceSpec::of_capacity(CAPACITY)
    };
    let rank = RankSpec {
        capacity: CAPACITY,
        tool_capacity: None,
        total: host::TotalReading::Works,
        driver_reserve: RESERVE,
        others: OTHERS,
        granularity: Bytes::ZERO,
    };
    let sim = MachineSpec::new(vec![device; RANKS], sim::HostSpec::of_available(ON_HOST));
    let spec = HostSpec {
        ranks: vec![rank; RANKS],
        host_available: ON_HOST,
        limit: Limit::Broker,
        touch: TouchPolicy {
            total: Bytes::mib(9),
            neighbours: Bytes::mib(2),
            step: Bytes(8192),
            copy: Bytes::mib(1),
        },
    };
    (SimBackend::new(sim).unwrap(), HostBackend::new(&spec).unwrap())
}

/// One call. Numbers beyond what there is are meant: a call may be a mistake.
#[derive(Clone, Debug)]
enum Call {
    Allocate(u32, usize, Place, Bytes),
    Free(usize),
    Others(u32, Bytes),
    HostOthers(Bytes),
    Reserve(u32, usize, u64),
    Map(usize, u64, u64),
    Unmap(usize, u64, u64),
    Unreserve(usize),
    Capture(u32, Bytes),
    Execute(u64),
    Move(u32, Bytes),
}

fn call() -> impl Strategy<Value = Call> {
    // Three in range, one beyond.
    let rank = || 0..4_u32;
    let size = || {
        prop_oneof![0..70_u64, 0..8_u64].prop_flat_map(|mib| {
            prop_oneof![
                Just(Bytes::mib(mib)),
                (0..5000_u64).prop_map(move |b| Bytes((mib << 20) + b))
            ]
        })
    };
    let place = || prop_oneof![3 => Just(Place::Device), 1 => Just(Place::Host)];
    let account = || 0..Account::ALL.len() - 1;
    prop_oneof![
        4 => (rank(), account(), place(), size()).prop_map(|(r, a, p, s)| Call::Allocate(r, a, p, s)),
        3 => (0..12_usize).prop_map(Call::Free),
        2 => (rank(), size()).prop_map(|(r, s)| Call::Others(r, s)),
        1 => size().prop_map(Call::HostOthers),
        1 => (rank(), account(), 0..40_u64).prop_map(|(r, a, n)| Call::Reserve(r, a, n)),
        4 => (0..4_usize, 0..20_u64, 0..6_u64).prop_map(|(r, at, n)| Call::Map(r, at, n)),
        4 => (0..4_usize, 0..20_u64, 0..6_u64).prop_map(|(r, at, n)| Call::Unmap(r, at, n)),
        1 => (0..4_usize).prop_map(Call::Unreserve),
        1 => (rank(), size()).prop_map(|(r, s)| Call::Capture(r, s)),
        1 => any::<u32>().prop_map(|n| Call::Execute(u64::from(n))),
        1 => (rank(), size()).prop_map(|(r, s)| Call::Move(r, s)),
    ]
}

/// One machine, and the names it gave.
struct Driven<'a> {
    machine: &'a mut dyn Backend,
    segments: Vec<SegmentId>,
    ranges: Vec<RangeId>,
}

impl Driven<'_> {
    fn segment(&self, index: usize) -> SegmentId {
        self.segments.get(index).copied().unwrap_or(SegmentId(u64::MAX))
    }

    fn range(&self, index: usize) -> RangeId {
        self.ranges.get(index).copied().unwrap_or(RangeId(u64::MAX))
    }

    fn make(&mut self, call: &Call) -> Result<(), BackendError> {
        let account = |index: &usize| Account::ALL[*index];
        match call {
            Call::Allocate(rank, index, place, size) => {
                let id = self.machine.allocate(Rank(*rank), account(index), *place, *size)?;
                self.segments.push(id);
                Ok(())
            }
            Call::Free(index) => self.machine.free(self.segment(*index)),
            Call::Others(rank, held) => self.machine.set_others(Rank(*rank), *held),
            Call::HostOthers(held) => self.machine.set_host_others(*held),
            Call::Reserve(rank, index, slots) => {
                let size = Bytes(SLOT.0 * slots);
                let id = self.machine.reserve(Rank(*rank), account(index), size)?;
                self.ranges.push(id);
                Ok(())
            }
            Call::Map(index, slot, slots) => {
                self.machine.map(self.range(*index), Bytes(SLOT.0 * slot), Bytes(SLOT.0 * slots))
            }
            Call::Unmap(index, slot, slots) => {
                self.machine.unmap(self.range(*index), Bytes(SLOT.0 * slot), Bytes(SLOT.0 * slots))
            }
            Call::Unreserve(index) => self.machine.unreserve(self.range(*index)),
            Call::Capture(rank, planned) => {
                let id = self.machine.capture(Rank(*rank), 8, *planned)?;
                self.segments.push(id);
                Ok(())
            }
            Call::Execute(time) => {
                let (mode, time) = (Mode::Decode, Nanos(*time));
                let step = StepWork { mode, tokens: 1, requests: 1, time };
                let report = self.machine.execute(&step)?;
                assert_eq!(report.elapsed, time);
                Ok(())
            }
            Call::Move(rank, size) => self.machine.move_kv(Rank(*rank), KvMove::ToHost, *size),
        }
    }

    /// All that decides: readings without what a real machine measured, and every row.
    fn sees(&mut self) -> Vec<String> {
        let mut seen = vec![format!("{:?}", self.machine.host_available())];
        for rank in (0..=RANKS as u32).map(Rank) {
            let reading = self.machine.memory(rank);
            let reading = reading.map(|r| (r.capacity, r.total, r.free, r.others));
            seen.push(format!("{rank:?} {reading:?} {:?}", self.machine.held(rank)));
        }
        seen
    }
}

/// Names of a mistake may be worded differently.
fn kind(result: Result<(), BackendError>) -> Result<(), BackendError> {
    result.map_err(|error| match error {
        BackendError::Unknown(_) => BackendError::Unknown("name"),
        other => other,
    })
}

fn driven(machine: &mut dyn Backend) -> Driven<'_> {
    Driven { machine, segments: Vec::new(), ranges: Vec::new() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn simulator_and_host_memory_answer_alike(calls in prop::collection::vec(call(), 1..60)) {
        let (mut sim, mut real) = both();
        let meter = real.meter();
        let at_rest = meter.read();
        let (mut sim, mut real) = (driven(&mut sim), driven(&mut real));
        let start = real.sees();
        let mut mapped = BTreeSet::new();
        for call in &calls {
            let before = real.sees();
            let (simulated, done) = (kind(sim.make(call)), kind(real.make(call)));
            // The simulator also asks whether both tiers are held, which real memory leaves to it.
            let lenient = matches!(call, Call::Move(rank, _) if (*rank as usize) < RANKS);
            prop_assert!(simulated == done || lenient, "{:?}: {:?} {:?}", call, simulated, done);
            let after = real.sees();
            prop_assert_eq!(&sim.sees(), &after, "after {:?}", call);
            if done.is_err() {
                prop_assert_eq!(&before, &after, "a failed {:?}", call);
            }
            match (call, &done) {
                (Call::Map(index, slot, slots), Ok(())) => {
                    mapped.extend((*slot..slot + slots).map(|slot| (*index, slot)));
                }
                (Call::Unmap(index, slot, slots), Ok(())) => {
                    mapped.retain(|(i, s)| i != index || !(*slot..slot + slots).contains(s));
                }
                _ => {}
            }
            let print = meter.read();
            prop_assert!(print.touched <= Bytes::mib(9), "{:?}", print);
        }
        // Everything ends.
        for (index, slot) in mapped {
            real.make(&Call::Unmap(index, slot, 1)).unwrap();
        }
        for segment in real.segments.clone() {
            let _ = real.machine.free(segment);
        }
        real.make(&Call::HostOthers(Bytes::ZERO)).unwrap();
        // What may be touched went to who came first: all of it comes back before it is shared anew.
        for held in [Bytes::ZERO, OTHERS] {
            for rank in 0..RANKS as u32 {
                real.make(&Call::Others(rank, held)).unwrap();
            }
        }
        prop_assert_eq!(start, real.sees());
        let print = meter.read();
        prop_assert_eq!((print.mapped, print.touched), (at_rest.mapped, at_rest.touched));
    }
}
