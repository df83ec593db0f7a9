//! Readings of free memory: what is read, when, and how ranks are reduced to one.

use super::{args::Platform, refusal::Refusal, rules::RulesFor, version::Version};
use crate::units::{Bytes, GIB};

/// One reading of the start-up sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// Start of the distributed baseline; only for a log line.
    Baseline,
    /// P: after the groups exist, before weights; the minimum over ranks. Enters the budget.
    PreLoad,
    /// This rank's own free memory beside P; the unbalanced check.
    Local,
    /// Before weights, for the log.
    BeforeWeights,
    /// After weights, for the log; the difference is the weights figure.
    AfterWeights,
    /// A: when the pool is sized; the minimum over ranks. Enters the budget.
    Profiling,
    /// After the pools, for the log.
    PoolEnd,
    /// Around each graph capture, for the log.
    Capture,
    /// The scheduler's last line; the allocator's cache is not emptied first.
    Scheduler,
}

/// The readings of a start in order. Draft weights are resident at [`Reading::Profiling`] only from
/// 0.5.14. Source: SGLang `ModelRunner` and `Scheduler`, 0.4.6 to 0.5.23.
#[must_use]
pub const fn order() -> [Reading; 9] {
    use Reading::{
        AfterWeights, Baseline, BeforeWeights, Capture, Local, PoolEnd, PreLoad, Profiling,
        Scheduler,
    };
    [Baseline, PreLoad, Local, BeforeWeights, AfterWeights, Profiling, PoolEnd, Capture, Scheduler]
}

/// Whether the draft's weights count as used when the pool is sized (0.5.14 and later).
#[must_use]
pub fn draft_weights_resident(version: Version) -> bool {
    RulesFor::version(version).used.since(5, 14)
}

/// Free bytes of all ranks as the budget sees them, GiB.
///
/// One rank is exact. With more, each count is rounded to float32 before the minimum is taken: steps
/// of 4 KiB at 32 to 64 GiB, 8 KiB at 64 to 128 GiB, 16 KiB at 128 to 256 GiB. No ranks give 0.
/// Source: SGLang `get_available_gpu_memory(distributed=True)`, all releases.
#[must_use]
pub fn min_over_ranks(ranks: &[Bytes]) -> f64 {
    match ranks {
        [] => 0.0,
        [one] => one.0 as f64 / GIB as f64,
        many => {
            let least = many.iter().map(|b| b.0 as f32).fold(f32::INFINITY, f32::min);
            f64::from(least) / GIB as f64
        }
    }
}

/// The float32 value of a byte count, as bytes.
#[must_use]
pub fn through_float32(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 as f32 as u64)
}

/// Whether ranks may start with unequal free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnbalancedRanks {
    /// The default: an error.
    Refused,
    /// The environment switch: a warning, the least free rank decides.
    Allowed,
}

/// The check after P is read: this rank may not have more than 1/0.9 of the least free rank.
///
/// Source: SGLang `ModelRunner.init_torch_distributed`, all releases, with more than one tp rank.
///
/// # Errors
/// [`Refusal::UnbalancedRanks`].
pub fn check_balance(
    pre_load_free_gib: f64,
    local: Bytes,
    tp_size: u32,
    unbalanced: UnbalancedRanks,
) -> Result<(), Refusal> {
    let poor = tp_size > 1 && pre_load_free_gib < 0.9 * local.as_gib_f64();
    if !poor || unbalanced == UnbalancedRanks::Allowed {
        return Ok(());
    }
    Err(Refusal::UnbalancedRanks { least: Bytes::from_gib_f64(pre_load_free_gib), local })
}

/// What one rank can read of its memory; only the fields of its platform are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeProbe {
    /// Free by the driver (CUDA, ROCm, NPU, Gaudi, MUSA).
    pub driver_free: Bytes,
    /// Total by the driver (XPU).
    pub driver_total: Bytes,
    /// Allocated by this process through torch (XPU).
    pub torch_allocated: Bytes,
    /// Allocated on Metal by this process.
    pub metal_allocated: Bytes,
    /// Metal's recommended working set.
    pub metal_working_set: Bytes,
    /// "Available" RAM of the system.
    pub os_available: Bytes,
    /// cgroup `memory.max - memory.current`, when limited.
    pub cgroup_headroom: Option<Bytes>,
    /// NUMA nodes; 0 counts as 1.
    pub numa_nodes: u64,
    /// Which memory the device has.
    pub device_memory: DeviceMemory,
}

/// Whether a CUDA device shares the system's RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceMemory {
    /// Its own.
    #[default]
    Dedicated,
    /// Shared; compute capability 8.7 (Orin), 11.0 (Thor) or 12.1 (GB10).
    SharedKnownBoard,
    /// Shared ("integrated"), any other capability.
    SharedOther,
}

/// Which figure a CUDA rank takes as free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeSource {
    /// The driver's: on shared memory the kernel's `MemFree`, page cache counted as used.
    Driver,
    /// What the system calls available: page cache counted as free.
    System,
}

/// Where the free memory of a CUDA rank comes from.
///
/// Source: SGLang `get_available_gpu_memory`: boards by capability from 0.5.4, every device that says it is
/// integrated from 0.5.9.
#[must_use]
pub fn cuda_free_source(version: Version, memory: DeviceMemory) -> FreeSource {
    let v = RulesFor::version(version).used;
    let system = match memory {
        DeviceMemory::Dedicated => false,
        DeviceMemory::SharedKnownBoard => v.since(5, 4),
        DeviceMemory::SharedOther => v.since(5, 9),
    };
    if system { FreeSource::System } else { FreeSource::Driver }
}

/// Free memory of one rank in GiB, before ranks are reduced.
///
/// Source: SGLang `get_available_gpu_memory`, 0.4.6 to 0.5.23.
#[must_use]
pub fn free_gib(version: Version, platform: Platform, probe: &FreeProbe) -> f64 {
    let v = RulesFor::version(version).used;
    let plain = |bytes: Bytes| bytes.as_gib_f64();
    match platform {
        Platform::Cuda => plain(match cuda_free_source(version, probe.device_memory) {
            FreeSource::System => probe.os_available,
            FreeSource::Driver => probe.driver_free,
        }),
        Platform::Xpu => {
            let own = probe.driver_total.saturating_sub(probe.torch_allocated);
            let both = v.since(5, 15) && !v.since(5, 17);
            plain(if both { own.min(probe.driver_free) } else { own })
        }
        Platform::Cpu => cpu_free(v, probe),
        Platform::Mlx if v.since(5, 10) => plain(probe.os_available),
        Platform::Mps if v.since(5, 22) => {
            let metal = probe.metal_working_set.saturating_sub(probe.metal_allocated);
            plain(metal.min(probe.os_available))
        }
        Platform::Mps if v.since(5, 10) => plain(probe.os_available),
        Platform::Mps | Platform::Mlx => 0.0,
        Platform::Rocm | Platform::Npu | Platform::Hpu | Platform::Musa => plain(probe.driver_free),
    }
}

fn cpu_free(v: Version, probe: &FreeProbe) -> f64 {
    let mut free = probe.os_available;
    if let Some(headroom) = probe.cgroup_headroom.filter(|_| v.since(5, 23)) {
        free = free.min(headroom);
    }
    let gib = free.as_gib_f64();
    if !v.since(5, 2) {
        return gib;
    }
    crate::pyfloat::round_digits(gib / probe.numa_nodes.max(1) as f64, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_rounded_to_float32_before_the_minimum() {
        assert_eq!(min_over_ranks(&[Bytes(66_593_764_412)]), 66_593_764_412.0 / GIB as f64);
        let two = [Bytes(66_593_764_412), Bytes(70_000_000_000)];
        assert_eq!(min_over_ranks(&two), 62.0202751159668);
        assert_eq!(min_over_ranks(&[]), 0.0);
    }

    #[test]
    fn a_rank_below_nine_tenths_stops_the_start() {
        let check = |p, tp, how| check_balance(p, Bytes::gib(80), tp, how);
        assert!(check(71.9, 8, UnbalancedRanks::Refused).is_err());
        assert!(check(72.0, 8, UnbalancedRanks::Refused).is_ok());
        assert!(check(10.0, 1, UnbalancedRanks::Refused).is_ok());
        assert!(check(10.0, 8, UnbalancedRanks::Allowed).is_ok());
    }

    #[test]
    fn shared_memory_boards_read_the_system() {
        let probe = FreeProbe {
            driver_free: Bytes::gib(10),
            os_available: Bytes::gib(90),
            device_memory: DeviceMemory::SharedKnownBoard,
            ..FreeProbe::default()
        };
        let free = |v: &str| free_gib(v.parse().unwrap(), Platform::Cuda, &probe);
        assert_eq!(free("0.5.3"), 10.0);
        assert_eq!(free("0.5.8"), 90.0);
        let other = FreeProbe { device_memory: DeviceMemory::SharedOther, ..probe };
        let free = |v: &str| free_gib(v.parse().unwrap(), Platform::Cuda, &other);
        assert_eq!(free("0.5.8"), 10.0);
        assert_eq!(free("0.5.9"), 90.0);
    }
}
