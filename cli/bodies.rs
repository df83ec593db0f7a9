//! The machine that a scenario runs on: the simulator, real host memory, or a real CUDA device.

use crate::args::{BackendName, Observe};
use plimsoll_backend_cuda::{CudaBackend, CudaSpec};
use plimsoll_backend_host::{self as host, HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::{Backend as _, BackendError},
    units::Bytes,
};
use plimsoll_replay::{
    ballast::Ballast,
    scaled::Scaled,
    start::{self, CaseError, Machine, Readings},
};

/// Builds machines of this kind. Real ones hold what the scenario declares, or answer for themselves.
pub fn machine(
    name: BackendName,
    observe: Observe,
) -> fn(&MachineSpec) -> Result<Machine, CaseError> {
    match (name, observe) {
        (BackendName::Sim, _) => start::simulator,
        // Memory of this process is reserved, not filled: it stands for any size.
        (BackendName::Host, Observe::Declared | Observe::Scaled) => in_memory,
        (BackendName::Host, Observe::Device) => as_the_kernel_says,
        (BackendName::Cuda, Observe::Declared) => on_cards,
        (BackendName::Cuda, Observe::Scaled) => on_small_cards,
        (BackendName::Cuda, Observe::Device) => cards_alone,
    }
}

/// Whose readings decide.
pub const fn readings(observe: Observe) -> Readings {
    match observe {
        Observe::Declared | Observe::Scaled => Readings::Declared,
        Observe::Device => Readings::Device,
    }
}

/// Whether such a machine can be built here at all.
pub fn is_there(name: BackendName) -> Result<(), String> {
    match name {
        BackendName::Sim | BackendName::Host => Ok(()),
        BackendName::Cuda => {
            plimsoll_backend_cuda::probe().map(|_| ()).map_err(|error| error.to_string())
        }
    }
}

/// Every rank in real memory of this process. Weights and pools are reserved; what passes take is touched,
/// as far as this host has memory for it.
fn in_memory(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let real = HostBackend::new(&HostSpec {
        ranks: spec.devices.iter().map(rank_in_memory).collect(),
        host_available: SimBackend::new(spec.clone())?.host_available()?,
        limit: Limit::Broker,
        touch: TouchPolicy::default(),
    })?;
    ballast(spec, Box::new(real))
}

fn rank_in_memory(device: &DeviceSpec) -> RankSpec {
    RankSpec {
        capacity: device.capacity,
        tool_capacity: device.tool_capacity,
        total: match device.total {
            TotalReading::Works => host::TotalReading::Works,
            TotalReading::Fails => host::TotalReading::Fails,
            TotalReading::Wrong(total) => host::TotalReading::Wrong(total),
        },
        driver_reserve: device.driver_reserve,
        others: Bytes::ZERO,
        granularity: device.granularity,
    }
}

/// Every rank in real memory of this process, as much of it as there is: the kernel reads, and the kernel
/// refuses. It refuses by killing, so what is touched stays within the policy.
fn as_the_kernel_says(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let there = host::read_host().map_err(|error| lost(&error))?;
    let group = there.cgroup.as_ref().and_then(|group| group.limit);
    let total = group.map_or(there.total, |limit| limit.min(there.total));
    let rank = RankSpec {
        capacity: total,
        tool_capacity: Some(total),
        total: host::TotalReading::Works,
        driver_reserve: Bytes::ZERO,
        others: Bytes::ZERO,
        granularity: Bytes::ZERO,
    };
    let machine = HostBackend::new(&HostSpec {
        ranks: vec![rank; spec.devices.len()],
        host_available: total,
        limit: Limit::Kernel,
        touch: TouchPolicy::default(),
    })?;
    Ok(Box::new(machine))
}

/// Every rank on a card of its own, with the card's own readings.
fn cards_alone(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let cards = plimsoll_backend_cuda::probe().map_err(|error| lost(&error))?.len();
    let ranks = spec.devices.len();
    if ranks > cards {
        let message =
            format!("{ranks} ranks need {ranks} cards with --observe device, not {cards}");
        return Err(lost(&message));
    }
    whole_cards(ranks)
}

/// The first `ranks` cards, each whole.
fn whole_cards(ranks: usize) -> Result<Machine, CaseError> {
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
    let real = CudaBackend::open(&CudaSpec::whole_cards(ranks)).map_err(|error| lost(&error))?;
    Ok(Box::new(real))
}

fn lost(error: &dyn std::fmt::Display) -> CaseError {
    CaseError::Machine(BackendError::DeviceLost(error.to_string()))
}

/// As many ranks on real cards as there are cards, from the first on; the others are declared only.
fn on_cards(spec: &MachineSpec) -> Result<Machine, CaseError> {
    ballast(spec, cards_for(spec)?)
}

fn cards_for(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let cards = plimsoll_backend_cuda::probe().map_err(|error| lost(&error))?;
    whole_cards(spec.devices.len().min(cards.len()))
}

/// As [`on_cards`], where the cards may be smaller than what is declared.
fn on_small_cards(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let real = cards_for(spec)?;
    let held = spec.devices.iter().take(real.ranks() as usize).map(|device| device.capacity);
    let scaled = Scaled::fitting(real, held.max().unwrap_or_default())?;
    ballast(spec, Box::new(scaled))
}

fn ballast(spec: &MachineSpec, real: Machine) -> Result<Machine, CaseError> {
    Ok(Box::new(Ballast::new(SimBackend::new(spec.clone())?, real)?))
}
