//! What the simulated machine does, subject by subject, and what always holds.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod device;
mod faults;
mod host;
mod properties;
mod unified;

use plimsoll_backend_sim::{DeviceSpec, HostSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend as _, Rank, StepWork},
    device::CUDA_GRANULARITY,
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};

/// A card of 10 GiB of which the driver keeps one, in units of 2 MiB.
fn card() -> DeviceSpec {
    DeviceSpec {
        driver_reserve: Bytes::gib(1),
        granularity: CUDA_GRANULARITY,
        ..DeviceSpec::of_capacity(Bytes::gib(10))
    }
}

/// Two such cards in a host with 4 GiB available.
fn two_cards() -> MachineSpec {
    MachineSpec::new(vec![card(); 2], HostSpec::of_available(Bytes::gib(4)))
}

fn machine(spec: MachineSpec) -> SimBackend {
    SimBackend::new(spec).unwrap()
}

fn free(sim: &mut SimBackend, rank: u32) -> Bytes {
    sim.memory(Rank(rank)).unwrap().free
}

fn held(sim: &SimBackend, rank: u32, account: Account) -> Bytes {
    let all = sim.held(Rank(rank)).unwrap();
    all.into_iter().filter(|(a, _)| *a == account).map(|(_, bytes)| bytes).sum()
}

fn step(nanos: u64) -> StepWork {
    StepWork { mode: Mode::Decode, tokens: 1, requests: 1, time: Nanos(nanos) }
}
