//! The machine that a scenario runs on: the simulator, real host memory, or a real CUDA device.

use crate::args::BackendName;
use plimsoll_backend_cuda::{CudaBackend, CudaSpec};
use plimsoll_backend_host::{self as host, HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::{Backend as _, BackendError},
    units::Bytes,
};
use plimsoll_replay::{
    ballast::Ballast,
    start::{self, CaseError, Machine},
};

/// Builds machines of this kind. Real ones hold what the scenario declares.
pub fn machine(name: BackendName) -> fn(&MachineSpec) -> Result<Machine, CaseError> {
    match name {
        BackendName::Sim => start::simulator,
        BackendName::Host => in_memory,
        BackendName::Cuda => on_cards,
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

/// As many ranks on real cards as there are cards, from the first on; the others are declared only.
fn on_cards(spec: &MachineSpec) -> Result<Machine, CaseError> {
    let lost = |error: &dyn std::fmt::Display| {
        CaseError::Machine(BackendError::DeviceLost(error.to_string()))
    };
    let cards = plimsoll_backend_cuda::probe().map_err(|error| lost(&error))?;
    let ranks = spec.devices.len().min(cards.len());
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
    let real = CudaBackend::open(&CudaSpec::whole_cards(ranks)).map_err(|error| lost(&error))?;
    ballast(spec, Box::new(real))
}

fn ballast(spec: &MachineSpec, real: Machine) -> Result<Machine, CaseError> {
    Ok(Box::new(Ballast::new(SimBackend::new(spec.clone())?, real)?))
}
