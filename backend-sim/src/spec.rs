//! What a machine is: its devices, its hosts, its faults. Data only.

use crate::faults::{FailAt, Fault};
use plimsoll_core::{
    device::{DeviceProfile, MemoryKind, Platform},
    units::{Bytes, MIB},
};

/// What the runtime tells programs as the device's total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TotalReading {
    /// Capacity without the driver's reserve.
    Works,
    /// Nothing: the engine goes on without knowing the capacity.
    Fails,
    /// Another figure than what is there (a parent device under MIG, an old driver).
    Wrong(Bytes),
}

/// Which figure of the host a device with common memory reports as free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeReading {
    /// `MemFree`: page cache counts as used. Source: `cudaMemGetInfo` on GB10, measured by writing a
    /// 60 GB file (free 103.25 → 41.52 GiB while `MemAvailable` stayed at 115.8).
    MemFree,
    /// `MemAvailable`: page cache counts as free. Source: what SGLang's MLX backend asks `psutil` for.
    MemAvailable,
}

/// Memory that device and host have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonMemory {
    /// What a program reads as free. What it can take is more, where page cache can be given back.
    pub free: FreeReading,
    /// Most that all programs together may hold for the device: Metal's
    /// `recommendedMaxWorkingSetSize`, or `iogpu.wired_limit_mb` where it is set. `None`: no limit.
    ///
    /// Assumed: a request beyond it fails. Real macOS refuses some requests and swaps for others.
    pub working_set: Option<Bytes>,
}

/// Where a device's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceMemory {
    /// Its own. Grace boards too: their HBM has its own total.
    Own,
    /// The host's (GB10, Jetson, Apple): one pool, from which programs on both sides take.
    Common(CommonMemory),
}

/// One rank's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Physical memory.
    pub capacity: Bytes,
    /// What the vendor's tool prints; `None` when it cannot say.
    pub tool_capacity: Option<Bytes>,
    /// What programs can read as total.
    pub total: TotalReading,
    /// What the driver keeps; no program sees it.
    pub driver_reserve: Bytes,
    /// Held by other programs at the start.
    pub others: Bytes,
    /// Unit in which the driver hands out memory; 0 keeps sizes exact.
    ///
    /// At 2 MiB or more, segments of up to half a unit are carved out of shared units, as `cudaMalloc`
    /// does ([`plimsoll_core::device::cuda_malloc_footprint`]); all others are rounded up to the unit.
    /// Parts of a virtual range must be multiples of it.
    pub granularity: Bytes,
    /// Where the memory is.
    pub memory: DeviceMemory,
    /// Which host the device is in, from 0. Devices of one host share its RAM.
    pub node: u32,
}

impl DeviceSpec {
    /// A device of `capacity` whose readings all work: no reserve, nothing held, exact sizes, own memory.
    #[must_use]
    pub const fn of_capacity(capacity: Bytes) -> Self {
        Self {
            capacity,
            tool_capacity: Some(capacity),
            total: TotalReading::Works,
            driver_reserve: Bytes::ZERO,
            others: Bytes::ZERO,
            granularity: Bytes::ZERO,
            memory: DeviceMemory::Own,
            node: 0,
        }
    }

    /// A device as a profile describes it, at its likeliest total, with nothing on it.
    ///
    /// Memory in common with the host is read as `MemFree` on CUDA (GB10, Jetson). On Apple machines it is
    /// the whole RAM, read as available memory and limited by the working set of newer macOS releases
    /// where one is known.
    #[must_use]
    pub fn of_profile(profile: &DeviceProfile) -> Self {
        let total = profile.runtime_total.value.mid;
        let tool = profile.smi_total_mib.as_ref().map(|mib| Bytes(mib.value.saturating_mul(MIB)));
        let set = profile.metal.as_ref().map(|metal| match &metal.newer_macos {
            Some(newer) => newer.value,
            None => metal.older_macos.value,
        });
        let ram = profile.metal.as_ref().map(|metal| metal.ram);
        let capacity = ram.or(tool).unwrap_or(total).max(total);
        let free = match profile.platform {
            Platform::Metal => FreeReading::MemAvailable,
            Platform::Cuda | Platform::Rocm | Platform::Xpu => FreeReading::MemFree,
        };
        Self {
            tool_capacity: set.or(tool),
            driver_reserve: match ram {
                Some(_) => Bytes::ZERO,
                None => capacity.saturating_sub(total),
            },
            granularity: profile.granularity,
            memory: match profile.memory {
                MemoryKind::Discrete => DeviceMemory::Own,
                MemoryKind::Integrated => {
                    DeviceMemory::Common(CommonMemory { free, working_set: set })
                }
            },
            ..Self::of_capacity(capacity)
        }
    }

    /// The total that programs read.
    #[must_use]
    pub fn readable_total(&self) -> Option<Bytes> {
        match self.total {
            TotalReading::Works => self.capacity.checked_sub(self.driver_reserve),
            TotalReading::Fails => None,
            TotalReading::Wrong(total) => Some(total),
        }
    }

    /// What programs could hold if nobody else were there: capacity − driver reserve, zero at least.
    #[must_use]
    pub const fn usable(&self) -> Bytes {
        self.capacity.saturating_sub(self.driver_reserve)
    }
}

/// The control group that the server runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CgroupSpec {
    /// `memory.max` (version 2), `memory.limit_in_bytes` (version 1).
    pub limit: Bytes,
    /// What the group's processes hold beside what the simulation takes.
    pub used: Bytes,
}

/// RAM of one host. A machine of several hosts has equal ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpec {
    /// `MemTotal`. Not read where a device has its memory in common with the host: the pool is that
    /// device's then.
    pub ram: Bytes,
    /// Memory of other programs at the start, not reclaimable.
    pub others: Bytes,
    /// Page cache at the start; given back under pressure.
    pub page_cache: Bytes,
    /// What the kernel never hands out (its watermarks). `MemAvailable` is free + page cache − this; the
    /// kernel's own formula also keeps a part of the cache.
    pub kept: Bytes,
    /// Control group of the server, where one limits it. Only host pools count in it: memory that a
    /// driver takes for a device is charged to no group (assumed).
    pub cgroup: Option<CgroupSpec>,
}

impl HostSpec {
    /// A host of which only the available memory is known: all of it free.
    #[must_use]
    pub const fn of_available(available: Bytes) -> Self {
        let zero = Bytes::ZERO;
        Self { ram: available, others: zero, page_cache: zero, kept: zero, cgroup: None }
    }
}

/// A machine: one device a rank, their hosts, and what goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineSpec {
    /// In rank order.
    pub devices: Vec<DeviceSpec>,
    /// Each host.
    pub host: HostSpec,
    /// Faults, in the order in which they happen when several happen at once.
    pub faults: Vec<Fault>,
    /// Calls that are refused as out of memory whatever is free.
    pub fail_at: Option<FailAt>,
}

impl MachineSpec {
    /// A machine without faults.
    #[must_use]
    pub const fn new(devices: Vec<DeviceSpec>, host: HostSpec) -> Self {
        Self { devices, host, faults: Vec::new(), fail_at: None }
    }
}
