//! The CUDA backend over the fake driver library decides as the simulator does. Each case runs in a
//! process of its own that finds that library.

mod lockstep;
mod observed;
mod runs;
#[path = "../backend-cuda/tests/driver/support.rs"]
pub(crate) mod support;

use plimsoll_backend_cuda::{CudaBackend, CudaSpec, Declared, HostSpec};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend};
use plimsoll_core::{
    backend::{Backend, BackendError},
    units::Bytes,
};
use support::{CHILD, Ended, build, child as run_child};

/// Page-locked memory that a case may take; the rest of its host pools is accounted only.
const PINNED: Bytes = Bytes::mib(64);

fn declared(device: &DeviceSpec) -> Declared {
    Declared {
        capacity: device.capacity,
        tool_capacity: device.tool_capacity,
        total: device.readable_total(),
        driver_reserve: device.driver_reserve,
        others: device.others,
        granularity: device.granularity,
    }
}

/// The simulator's machine with all its ranks on one card.
fn on_one_card(machine: &MachineSpec) -> Result<CudaBackend, BackendError> {
    let shares: Vec<Declared> = machine.devices.iter().map(declared).collect();
    let mut spec = CudaSpec::on_one_card(0, &shares);
    let available = SimBackend::new(machine.clone())?.host_available()?;
    spec.host = HostSpec { available: Some(available), pinned_limit: PINNED };
    spec.copy_limit = Bytes::mib(1);
    CudaBackend::open(&spec).map_err(|error| BackendError::DeviceLost(error.to_string()))
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "lockstep" => lockstep::answers_alike(),
        "scenarios" => runs::scenarios_decide_alike(),
        other => panic!("no part {other}"),
    }
}

/// A card of 16 TiB: eight ranks of any real device fit on it.
fn start(part: &str) -> Option<Ended> {
    let settings = [("FAKE_CUDA_TOTAL", "17592186044416")];
    let ended = run_child("cuda::child", part, &build(&[])?, &settings);
    ended.nothing_leaked();
    Some(ended)
}
