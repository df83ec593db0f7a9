//! The host of a machine, from what is known of its memory; and devices that live in it.

use super::{Case, CaseLaunch, sglang::host_available};
use plimsoll_backend_sim::{CgroupSpec, CommonMemory, DeviceMemory, FreeReading, HostSpec};
use plimsoll_core::{
    device::{DeviceProfile, MemoryKind, Platform},
    estimate::Figure,
    figure::{Estimate, Tag},
    policy::{
        sglang::readings::{self, FreeSource},
        vllm::rules::Rules,
    },
    units::Bytes,
};

/// What is known of the host's memory besides what is available; `None` leaves it out of account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostMemory {
    /// In all.
    pub ram: Option<Bytes>,
    /// Page cache at first, given back under pressure.
    pub page_cache: Option<Bytes>,
    /// Held by other programs at first.
    pub others: Option<Bytes>,
    /// What programs could still take before the start, page cache included.
    pub available: Option<Bytes>,
}

impl HostMemory {
    /// Whether what the system holds is known, so that no estimate of it is needed.
    const fn system_known(&self) -> bool {
        self.others.is_some() || self.available.is_some()
    }
}

/// The host at the start. Available memory is free memory and page cache; RAM beside it that no program
/// is known to hold is the kernel's. A control group's limit is taken as what is left of it.
pub(super) fn host(case: &Case) -> HostSpec {
    let known = case.facts.host;
    let others = known.others.unwrap_or_default();
    let available = match (&case.facts.host_available, known.ram) {
        (None, Some(ram)) => ram.saturating_sub(others),
        _ => host_available(case),
    };
    let ram = known.ram.unwrap_or(available.saturating_add(others));
    let page_cache = known.page_cache.unwrap_or_default().min(available);
    let kept = ram.saturating_sub(others).saturating_sub(available);
    let cgroup = case.facts.cgroup_limit.map(|limit| CgroupSpec { limit, used: Bytes::ZERO });
    HostSpec { ram, others, page_cache, kept, cgroup }
}

/// Where the device of a case has its memory: on its own, or in common with the host, read as this engine
/// and release reads it.
///
/// Source: SGLang `get_available_gpu_memory`; vLLM `MemorySnapshot.measure` (available memory from 0.12).
pub(super) fn device_memory(case: &Case) -> DeviceMemory {
    if case.device.memory == MemoryKind::Discrete {
        return DeviceMemory::Own;
    }
    DeviceMemory::Common(CommonMemory { free: free_reading(case), working_set: None })
}

fn free_reading(case: &Case) -> FreeReading {
    let system = match (case.device.platform, &case.launch) {
        (Platform::Metal, _) => true,
        (Platform::Cuda, CaseLaunch::Sglang(args)) => {
            let memory = shared_memory(&case.device);
            readings::cuda_free_source(args.version, memory) == FreeSource::System
        }
        (Platform::Cuda, CaseLaunch::Vllm(args)) => {
            Rules::of(args.version, None).unified_free_is_available.exists()
        }
        (Platform::Rocm | Platform::Xpu, _) => false,
    };
    if system { FreeReading::MemAvailable } else { FreeReading::MemFree }
}

/// SGLang knows three boards by their compute capability: Orin, Thor and GB10.
fn shared_memory(device: &DeviceProfile) -> readings::DeviceMemory {
    match device.compute_capability().map(|cc| (cc.major, cc.minor)) {
        Some((8, 7) | (11, 0) | (12, 1)) => readings::DeviceMemory::SharedKnownBoard,
        _ => readings::DeviceMemory::SharedOther,
    }
}

/// The host that shares a device's memory, of which programs can hold `usable` in all. What is not said to
/// be available is other programs', or the kernel's where theirs is known too.
pub(super) fn common_host(case: &Case, usable: Bytes) -> HostSpec {
    let known = case.facts.host;
    let rest = known.available.map_or(Bytes::ZERO, |available| usable.saturating_sub(available));
    let others = known.others.unwrap_or(rest);
    let left = usable.saturating_sub(others);
    HostSpec {
        ram: usable,
        others,
        page_cache: known.page_cache.unwrap_or_default().min(left),
        kept: rest.saturating_sub(others),
        cgroup: case.facts.cgroup_limit.map(|limit| CgroupSpec { limit, used: Bytes::ZERO }),
    }
}

/// The host of a machine whose devices can hold `usable` bytes each.
pub(super) fn host_beside(case: &Case, usable: Bytes) -> HostSpec {
    match device_memory(case) {
        DeviceMemory::Own => host(case),
        DeviceMemory::Common(_) => common_host(case, usable),
    }
}

/// What the host's side holds of a device's memory at the start, as the engine's reading counts it; nothing
/// where the device has its own.
pub(super) fn held_by_host(case: &Case, usable: Bytes) -> Bytes {
    let DeviceMemory::Common(common) = device_memory(case) else { return Bytes::ZERO };
    let host = common_host(case, usable);
    host.others.saturating_add(match common.free {
        FreeReading::MemFree => host.page_cache,
        FreeReading::MemAvailable => host.kept,
    })
}

/// An estimate of free memory less what the host's side is known to hold, in place of the estimate of that.
pub(super) fn beside_the_host(case: &Case, free: Figure, system: &Figure, usable: Bytes) -> Figure {
    let held = held_by_host(case, usable);
    let known = case.facts.host.system_known();
    if held == Bytes::ZERO && !known {
        return free;
    }
    let mut value = free.value.minus(Estimate::exact(held));
    if known {
        value = value.plus(Estimate::exact(system.value.mid));
    }
    let mut why = free.why.with("held by the host's side", held);
    if known {
        why = why.with("system", "as held by the host's side");
    }
    why.tag = why.tag.max(Tag::Calibrated);
    Figure { value, why }
}
