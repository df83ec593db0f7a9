//! The simulator and ballast on a card give the same answers to the same calls, whatever the calls are.

use super::{on_one_card, start};
use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend, BackendError, KvMove, Place, RangeId, Rank, SegmentId, StepWork},
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};
use proptest::{prelude::*, test_runner::TestRunner};

const RANKS: u32 = 2;
/// Ranges are mapped in slots of this size, the card's page.
const SLOT: u64 = 2;

fn machine() -> MachineSpec {
    let device = DeviceSpec {
        tool_capacity: None,
        driver_reserve: Bytes::mib(3),
        others: Bytes::mib(5),
        ..DeviceSpec::of_capacity(Bytes::mib(64))
    };
    MachineSpec::new(vec![device; RANKS as usize], HostSpec::of_available(Bytes::mib(40)))
}

/// One call. Ranks, segments and sizes that do not exist or fit are meant too.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate(u32, Account, Place, Bytes),
    Free(usize),
    Others(u32, Bytes),
    HostOthers(Bytes),
    Reserve(u32, u64),
    Map(usize, u64, u64),
    Unmap(usize, u64, u64),
    Unreserve(usize),
    Capture(u32, Bytes),
    Pass(u32),
}

fn call() -> impl Strategy<Value = Call> {
    let rank = || 0..=RANKS;
    let small = (0..9_u64, 0..5000_u64).prop_map(|(mib, more)| Bytes((mib << 20) + more));
    let size = || prop_oneof![small.clone(), (0..70_u64).prop_map(Bytes::mib)];
    let account = prop::sample::select(vec![
        Account::Weights,
        Account::KvPool,
        Account::Workspaces,
        Account::Activations,
    ]);
    let place = prop_oneof![4 => Just(Place::Device), 1 => Just(Place::Host)];
    prop_oneof![
        5 => (rank(), account, place, size()).prop_map(|(r, a, p, s)| Call::Allocate(r, a, p, s)),
        3 => (0..12_usize).prop_map(Call::Free),
        2 => (rank(), size()).prop_map(|(r, s)| Call::Others(r, s)),
        1 => size().prop_map(Call::HostOthers),
        1 => (rank(), 1..40_u64).prop_map(|(r, n)| Call::Reserve(r, n)),
        4 => (0..3_usize, 0..20_u64, 1..6_u64).prop_map(|(r, at, n)| Call::Map(r, at, n)),
        3 => (0..3_usize, 0..20_u64, 1..6_u64).prop_map(|(r, at, n)| Call::Unmap(r, at, n)),
        1 => (0..3_usize).prop_map(Call::Unreserve),
        2 => (rank(), size()).prop_map(|(r, s)| Call::Capture(r, s)),
        1 => any::<u32>().prop_map(Call::Pass),
    ]
}

/// A machine and the names that it gave.
struct Driven<B> {
    machine: B,
    segments: Vec<SegmentId>,
    ranges: Vec<RangeId>,
}

impl<B: Backend> Driven<B> {
    const fn new(machine: B) -> Self {
        Self { machine, segments: Vec::new(), ranges: Vec::new() }
    }

    fn make(&mut self, call: Call) -> Result<(), BackendError> {
        let slots = |n: u64| Bytes::mib(SLOT * n);
        let segment = |at: usize| self.segments.get(at).copied().unwrap_or(SegmentId(u64::MAX));
        let range = |at: usize| self.ranges.get(at).copied().unwrap_or(RangeId(u64::MAX));
        match call {
            Call::Allocate(rank, account, place, size) => {
                let made = self.machine.allocate(Rank(rank), account, place, size)?;
                self.segments.push(made);
                Ok(())
            }
            Call::Free(at) => self.machine.free(segment(at)),
            Call::Others(rank, held) => self.machine.set_others(Rank(rank), held),
            Call::HostOthers(held) => self.machine.set_host_others(held),
            Call::Reserve(rank, n) => {
                let made = self.machine.reserve(Rank(rank), Account::Activations, slots(n))?;
                self.ranges.push(made);
                Ok(())
            }
            Call::Map(at, from, n) => self.machine.map(range(at), slots(from), slots(n)),
            Call::Unmap(at, from, n) => self.machine.unmap(range(at), slots(from), slots(n)),
            Call::Unreserve(at) => self.machine.unreserve(range(at)),
            Call::Capture(rank, planned) => {
                let made = self.machine.capture(Rank(rank), 8, planned)?;
                self.segments.push(made);
                Ok(())
            }
            Call::Pass(time) => {
                let time = Nanos(u64::from(time));
                let step = StepWork { mode: Mode::Decode, tokens: 1, requests: 1, time };
                assert_eq!(self.machine.execute(&step)?.elapsed, time);
                self.machine.move_kv(Rank(0), KvMove::ToHost, Bytes::ZERO)
            }
        }
    }

    /// All that decides: readings without what a card measured, and every row.
    fn sees(&mut self) -> Vec<String> {
        let mut seen = vec![format!("{:?}", self.machine.host_available())];
        for rank in (0..RANKS).map(Rank) {
            let reading = self.machine.memory(rank).unwrap();
            let decides = (reading.capacity, reading.total, reading.free, reading.others);
            seen.push(format!("{decides:?} {:?}", self.machine.held(rank)));
        }
        seen
    }
}

/// The words for a mistake may differ.
fn kind(answer: Result<(), BackendError>) -> Result<(), BackendError> {
    answer.map_err(|error| match error {
        BackendError::Unknown(_) => BackendError::Unknown("name"),
        other => other,
    })
}

/// What the child does.
pub(super) fn answers_alike() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() };
    let run = TestRunner::new(config).run(&prop::collection::vec(call(), 1..60), |calls| {
        let mut sim = Driven::new(SimBackend::new(machine()).unwrap());
        let mut real = Driven::new(on_one_card(&machine()).unwrap());
        for call in calls {
            let before = real.sees();
            let (simulated, done) = (kind(sim.make(call)), kind(real.make(call)));
            prop_assert_eq!(simulated, done.clone(), "{:?}", call);
            let after = real.sees();
            prop_assert_eq!(&sim.sees(), &after, "after {:?}", call);
            if done.is_err() {
                prop_assert_eq!(&before, &after, "a failed {:?}", call);
            }
        }
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}

#[test]
fn the_simulator_and_a_card_answer_alike() {
    if let Some(ended) = start("lockstep") {
        assert!(ended.report["requests"] > 2000, "{:?}", ended.report);
        assert!(ended.report["launches"] > 100, "{:?}", ended.report);
    }
}
