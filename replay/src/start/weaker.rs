//! Devices of the ranks, of which some may be weaker than the others.

use super::{Case, CaseError, host::held_by_host};
use plimsoll_backend_sim::{DeviceMemory, DeviceSpec};
use plimsoll_core::{estimate::Figure, units::Bytes};

/// One device a rank: all as `usual`, those of weaker ranks with less capacity or more other programs.
pub(super) fn devices(case: &Case, usual: &DeviceSpec) -> Vec<DeviceSpec> {
    let device = |rank| {
        let mut device = *usual;
        if device.memory != DeviceMemory::Own {
            // One board, one memory: ranks on several boards are ranks on several hosts.
            device.node = rank;
        }
        let Some(weaker) = case.facts.weaker.iter().find(|weaker| weaker.rank == rank) else {
            return device;
        };
        if let Some(capacity) = weaker.capacity {
            device.capacity = capacity;
            // A tool that reads the others reads this one too.
            device.tool_capacity = device.tool_capacity.map(|_| capacity);
        }
        device.others = weaker.others_hold.unwrap_or(device.others);
        device
    };
    (0..case.ranks).map(device).collect()
}

/// Most that programs can hold of a device beside the other programs, those on the host too where the
/// memory is common.
fn usable(case: &Case, device: &DeviceSpec) -> Bytes {
    let beside = held_by_host(case, device.usable());
    device.usable().saturating_sub(device.others).saturating_sub(beside)
}

/// Context of each rank such that the free memory before loading is what is declared. Where it is
/// estimated, the estimate is that of the usual device, and all ranks have the context that follows.
pub(super) fn contexts(
    case: &Case,
    usual: &DeviceSpec,
    devices: &[DeviceSpec],
    free: &Figure,
) -> Result<Vec<Bytes>, CaseError> {
    let declared = case.facts.free_before_load.as_ref();
    let context = |(rank, device): (usize, &DeviceSpec)| {
        let (usable, free, from) = match declared {
            Some(fact) => (usable(case, device), fact.get(rank), usable(case, device)),
            None => (usable(case, device), free.value.mid, usable(case, usual)),
        };
        from.checked_sub(free).filter(|context| *context <= usable).ok_or_else(|| {
            let there = device.usable();
            let held = device.others.saturating_add(held_by_host(case, there));
            CaseError::Impossible(format!(
                "rank {rank} cannot have {free} free before loading: the device has {there}, other \
                 programs hold {held}"
            ))
        })
    };
    devices.iter().enumerate().map(context).collect()
}
