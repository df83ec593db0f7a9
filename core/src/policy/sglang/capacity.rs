//! Device capacity `gpu_mem` in MiB, by backend and version; unknown is an answer, not an error.

use super::{args::Platform, rules::RulesFor, version::Version};
use crate::{
    figure::{Tag, Why},
    units::{Bytes, MIB},
};

/// What `nvidia-smi --query-gpu=memory.total` gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SmiReading {
    /// Totals in MiB of every card in the box, whatever `CUDA_VISIBLE_DEVICES` says.
    Totals(Vec<u64>),
    /// It ran, but no value parses (MIG, `[N/A]` on GB10).
    NoNumber,
    /// Missing or failed.
    #[default]
    Failed,
}

/// What the machine reports about itself; only the fields of its platform are read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CapacityProbe {
    /// NVIDIA's tool.
    pub smi: SmiReading,
    /// Driver totals of the visible devices, the current one first (CUDA, XPU, NPU, MUSA).
    pub device_totals: Vec<Bytes>,
    /// `rocminfo` pools or the vendor tool's totals in MiB (ROCm, Gaudi, MUSA).
    pub tool_totals_mib: Vec<u64>,
    /// `SGLANG_ZBAL_LOCAL_MEM_SIZE` in MB (NPU); 0 is unset.
    pub zbal_local_mem_mb: u64,
    /// Total RAM.
    pub ram_total: Option<Bytes>,
    /// Total RAM of each NUMA node; empty when the system does not say.
    pub numa_totals: Vec<Bytes>,
    /// cgroup v2 `memory.max`, when it is a number.
    pub cgroup_max: Option<Bytes>,
    /// `SGLANG_CPU_OMP_THREADS_BIND` is set.
    pub cpu_omp_threads_bind: bool,
    /// Metal's recommended max working-set size.
    pub metal_working_set: Option<Bytes>,
    /// What an out-of-tree platform plug-in reports.
    pub plugin_total: Option<Bytes>,
}

/// The capacity that the tiers and the reserve see.
#[derive(Clone, PartialEq, Debug)]
pub struct Capacity {
    /// MiB; whole except for plug-ins. `None` when the engine goes on without knowing it.
    pub mib: Option<f64>,
    /// How it came to be.
    pub why: Why,
}

/// The probe failed in a way that stops the start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("SGLang {version} cannot read the device capacity: {reason}")]
pub struct CapacityError {
    /// Version asked for.
    pub version: Version,
    /// What was missing.
    pub reason: String,
}

/// Device capacity in MiB, rounded down.
///
/// Source: SGLang `get_device_memory_capacity` and the platform functions it calls, 0.4.6 to 0.5.23.
///
/// # Errors
/// [`CapacityError`] where the engine raises: no readable card on CUDA.
pub fn capacity(
    version: Version,
    platform: Platform,
    probe: &CapacityProbe,
) -> Result<Capacity, CapacityError> {
    let v = RulesFor::version(version).used;
    if let Some(total) = probe.plugin_total {
        let mib = v.since(5, 11).then(|| total.0 as f64 / MIB as f64);
        return Ok(found(v, mib, "plug-in total / 2^20"));
    }
    let whole = |mib: Option<u64>, rule: &str| Ok(found(v, mib.map(|m| m as f64), rule));
    match platform {
        Platform::Cuda => cuda(v, probe).map_err(|reason| CapacityError { version, reason }),
        Platform::Rocm => whole(min(&probe.tool_totals_mib), "smallest rocminfo pool"),
        Platform::Hpu => whole(min(&probe.tool_totals_mib), "smallest hl-smi total"),
        Platform::Musa => {
            let known = if v.since(5, 9) { min(&probe.tool_totals_mib) } else { None };
            whole(known, "smallest mthreads-gmi total")
        }
        Platform::Npu => whole(npu(v, probe), "mem_get_info total // 2^20"),
        Platform::Xpu => {
            let first = probe.device_totals.first().map(|b| b.0 / MIB);
            whole(if v.since(5, 6) { first } else { None }, "device total // 2^20")
        }
        Platform::Cpu => whole(cpu(v, probe), "RAM of the smallest NUMA node"),
        Platform::Mps | Platform::Mlx => {
            let set = probe.metal_working_set.map(|b| b.0 / MIB);
            whole(if v.since(5, 22) { set } else { None }, "recommended working set // 2^20")
        }
    }
}

fn found(version: Version, mib: Option<f64>, rule: &str) -> Capacity {
    let shown = mib.map_or("unknown".to_owned(), |m| format!("{m} MiB"));
    let why = Why::new(
        Tag::Measured,
        format!("gpu_mem = {rule}"),
        format!("SGLang {version} get_device_memory_capacity"),
    )
    .with("gpu_mem", shown);
    Capacity { mib, why }
}

fn min(values: &[u64]) -> Option<u64> {
    values.iter().copied().min()
}

fn cuda(v: Version, probe: &CapacityProbe) -> Result<Capacity, String> {
    if let SmiReading::Totals(totals) = &probe.smi
        && let Some(smallest) = min(totals)
    {
        return Ok(found(v, Some(smallest as f64), "smallest nvidia-smi total of all cards"));
    }
    let fallback = if v.since(5, 10) {
        probe.device_totals.iter().map(|b| b.0 / MIB).min()
    } else if v.since_post(4, 9, 3) && probe.smi == SmiReading::NoNumber {
        probe.device_totals.first().map(|b| b.0 / MIB)
    } else {
        None
    };
    match fallback {
        Some(mib) => Ok(found(v, Some(mib as f64), "driver total of the device // 2^20")),
        None => Err("nvidia-smi gives no usable number".to_owned()),
    }
}

fn npu(v: Version, probe: &CapacityProbe) -> Option<u64> {
    if v.since(5, 12) && probe.zbal_local_mem_mb > 0 {
        return Some(probe.zbal_local_mem_mb);
    }
    if v.since(4, 8) { probe.device_totals.first().map(|b| b.0 / MIB) } else { None }
}

fn cpu(v: Version, probe: &CapacityProbe) -> Option<u64> {
    if !v.since(5, 3) || probe.cpu_omp_threads_bind {
        return None;
    }
    let nodes = &probe.numa_totals;
    if v.since(5, 23) {
        let ram = probe.ram_total?;
        let usable = probe.cgroup_max.map_or(ram, |max| max.min(ram));
        return Some(usable.0 / (nodes.len().max(1) as u64) / MIB);
    }
    nodes.iter().copied().min().or(probe.ram_total).map(|b| b.0 / MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(text: &str, platform: Platform, probe: &CapacityProbe) -> Option<f64> {
        capacity(text.parse().unwrap(), platform, probe).unwrap().mib
    }

    #[test]
    fn a_small_card_lowers_the_capacity_for_all() {
        let smi = SmiReading::Totals(vec![97_887, 24_564]);
        let probe = CapacityProbe { smi, ..CapacityProbe::default() };
        assert_eq!(mib("0.5.8", Platform::Cuda, &probe), Some(24_564.0));
    }

    #[test]
    fn without_a_number_the_driver_total_counts_from_0_4_10() {
        let probe = CapacityProbe {
            smi: SmiReading::NoNumber,
            device_totals: vec![Bytes::mib(122_502), Bytes::mib(100)],
            ..CapacityProbe::default()
        };
        assert!(capacity(Version::new(0, 4, 9), Platform::Cuda, &probe).is_err());
        assert_eq!(mib("0.4.9.post3", Platform::Cuda, &probe), Some(122_502.0));
        assert_eq!(mib("0.5.10", Platform::Cuda, &probe), Some(100.0));
        let failed = CapacityProbe { smi: SmiReading::Failed, ..probe };
        assert!(capacity(Version::new(0, 5, 9), Platform::Cuda, &failed).is_err());
        assert_eq!(mib("0.5.23", Platform::Cuda, &failed), Some(100.0));
    }

    #[test]
    fn laptops_are_unknown_before_0_5_22() {
        let probe = CapacityProbe {
            metal_working_set: Some(Bytes(55_662_788_608)),
            ..CapacityProbe::default()
        };
        assert_eq!(mib("0.5.21", Platform::Mlx, &probe), None);
        assert_eq!(mib("0.5.23", Platform::Mlx, &probe), Some(53_084.0));
    }

    #[test]
    fn cpus_share_ram_over_numa_nodes() {
        let probe = CapacityProbe {
            ram_total: Some(Bytes::gib(256)),
            numa_totals: vec![Bytes::gib(120), Bytes::gib(136)],
            cgroup_max: Some(Bytes::gib(64)),
            ..CapacityProbe::default()
        };
        assert_eq!(mib("0.5.2", Platform::Cpu, &probe), None);
        assert_eq!(mib("0.5.22", Platform::Cpu, &probe), Some(120.0 * 1024.0));
        assert_eq!(mib("0.5.23", Platform::Cpu, &probe), Some(32.0 * 1024.0));
    }
}
