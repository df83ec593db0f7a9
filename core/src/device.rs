//! What a device is, as far as memory depends on it: capacity, context, link, compute, each number
//! with its evidence. A profile comes from the catalog or from a real device's readings.

use crate::figure::Estimate;
use crate::units::{Bytes, MIB};
use std::fmt;

/// Which runtime drives the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Platform {
    /// NVIDIA CUDA.
    Cuda,
    /// AMD ROCm (HIP).
    Rocm,
    /// Intel XPU (Level Zero).
    Xpu,
    /// Apple Metal (MLX).
    Metal,
}

/// Whether the device has memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MemoryKind {
    /// Its own memory; the CPU's is elsewhere (Grace boards too).
    Discrete,
    /// One pool with the CPU (`cudaDeviceProp.integrated`, APUs, Apple).
    Integrated,
}

/// How the ranks of one server reach each other; decides what communicators cost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Link {
    /// NVSwitch: NVLink SHARP buffers exist.
    NvSwitch,
    /// NVLink without a switch.
    NvLink,
    /// PCI Express only.
    Pcie,
    /// AMD Infinity Fabric.
    Fabric,
    /// A single device.
    None,
}

/// What a number of a device profile rests on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Evidence {
    /// Read from this machine.
    Measured,
    /// Printed in public logs.
    Observed,
    /// Data files of a public planner (NVIDIA AIConfigurator).
    Planner,
    /// Vendor datasheet, unchecked.
    Datasheet,
    /// Follows from other numbers by a rule.
    Rule,
    /// A guess; the interval is wide.
    Assumed,
}

impl Evidence {
    /// As it is shown beside the number.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured on this machine",
            Self::Observed => "observed in public logs",
            Self::Planner => "a public planner's data",
            Self::Datasheet => "vendor datasheet, unchecked",
            Self::Rule => "rule",
            Self::Assumed => "assumed",
        }
    }
}

/// A number with its evidence and, where there is more to say, a note.
#[derive(Clone, PartialEq, Debug)]
pub struct Sourced<T> {
    /// The number.
    pub value: T,
    /// What it rests on.
    pub evidence: Evidence,
    /// Spread over drivers, inferred inputs; empty when there is nothing to add.
    pub note: String,
}

impl<T> Sourced<T> {
    /// A number without a note.
    pub fn new(value: T, evidence: Evidence) -> Self {
        Self { value, evidence, note: String::new() }
    }

    /// Evidence and note in one line.
    #[must_use]
    pub fn source(&self) -> String {
        if self.note.is_empty() {
            self.evidence.name().to_owned()
        } else {
            format!("{}: {}", self.evidence.name(), self.note)
        }
    }
}

/// A rate known within an interval; `low <= high`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Smallest value given.
    pub low: f64,
    /// Largest value given.
    pub high: f64,
}

impl Rate {
    /// Middle of the interval.
    #[must_use]
    pub fn mid(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }
}

/// CUDA compute capability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ComputeCapability {
    /// Generation: 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell.
    pub major: u32,
    /// Variant.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `recommendedMaxWorkingSetSize` of an Apple machine.
#[derive(Clone, PartialEq, Debug)]
pub struct MetalWorkingSet {
    /// Memory of the machine.
    pub ram: Bytes,
    /// Older macOS: 2/3 of RAM up to 32 GB (rounded up to 16 KiB pages), 3/4 above.
    pub older_macos: Sourced<Bytes>,
    /// Newer macOS, where public logs show it.
    pub newer_macos: Option<Sourced<Bytes>>,
}

/// A MIG slice of a larger device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigSlice {
    /// Catalog key of the whole device.
    pub parent: String,
    /// Compute slices, of 7 (4 on RTX PRO 6000).
    pub compute_slices: u32,
    /// Eighths of the parent's memory.
    pub memory_eighths: u32,
}

/// Dense peak rates in TFLOPS (no sparsity; FP32 accumulation for 16-bit).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DenseTflops {
    /// bfloat16 (float16 before Ampere).
    pub bf16: Option<Sourced<Rate>>,
    /// FP8.
    pub fp8: Option<Sourced<Rate>>,
    /// FP4.
    pub fp4: Option<Sourced<Rate>>,
}

/// A device, as the estimates and the time model need it.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceProfile {
    /// Catalog key (`h100-sxm-80gb`) or an index of a live device (`cuda:0`).
    pub key: String,
    /// Name as the driver prints it.
    pub name: String,
    /// Other names people use.
    pub aliases: Vec<String>,
    /// Runtime.
    pub platform: Platform,
    /// Own or shared memory.
    pub memory: MemoryKind,
    /// Link between devices of one server.
    pub link: Link,
    /// Architecture: compute capability as text on CUDA (`9.0`), `gfx942`, `xe2`, `metal`.
    pub arch: String,
    /// Streaming multiprocessors (compute units on AMD, Xe cores on Intel).
    pub sms: Option<Sourced<u64>>,
    /// Total in MiB as `nvidia-smi --query-gpu=memory.total` prints it; none on unified machines and
    /// MIG slices. SGLang's tiers and reserve go by this number.
    pub smi_total_mib: Option<Sourced<u64>>,
    /// Total as the runtime reports it (`cudaMemGetInfo`, second value): smi total − driver reserve.
    /// vLLM's `gpu_memory_utilization` is a fraction of this number.
    pub runtime_total: Sourced<Estimate>,
    /// Memory bandwidth in GB/s (10^9).
    pub bandwidth_gb_s: Option<Sourced<Rate>>,
    /// Dense compute.
    pub tflops: DenseTflops,
    /// What a process's context takes before any allocation, where it was seen.
    pub context: Option<Sourced<Estimate>>,
    /// Unit in which the driver hands out memory.
    pub granularity: Bytes,
    /// Apple machines.
    pub metal: Option<MetalWorkingSet>,
    /// MIG slices.
    pub mig: Option<MigSlice>,
}

/// Granularity of `cuMemCreate` and of large `cudaMalloc` on discrete NVIDIA devices.
/// Source: PyTorch and NCCL align to it; measured for cudaMalloc on driver 5xx.
pub const CUDA_GRANULARITY: Bytes = Bytes::mib(2);

impl DeviceProfile {
    /// The compute capability, on CUDA.
    #[must_use]
    pub fn compute_capability(&self) -> Option<ComputeCapability> {
        let (major, minor) = self.arch.split_once('.')?;
        Some(ComputeCapability { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Driver and firmware reserve: smi total − runtime total. `None` without an smi total.
    #[must_use]
    pub fn driver_reserve(&self) -> Option<Estimate> {
        let smi = Bytes(self.smi_total_mib.as_ref()?.value * MIB);
        Some(Estimate::exact(smi).minus(self.runtime_total.value))
    }

    /// Capacity in MiB as SGLang reads it on this device: the smi total, else the runtime total
    /// floored to MiB (MIG, GB10; Metal: the recommended working set), of the best single value.
    ///
    /// Source: SGLang 0.5.2 to 0.5.23, device memory capacity probe.
    #[must_use]
    pub fn sglang_gpu_mem_mib(&self) -> u64 {
        let runtime = self.runtime_total.value.mid.0 / MIB;
        self.smi_total_mib.as_ref().map_or(runtime, |smi| smi.value)
    }
}

/// What `cudaMalloc(size)` takes from the device, amortised over many equal allocations.
///
/// Above 1 MiB: a multiple of 2 MiB. Above 512 KiB: 1 MiB. Smaller ones come from shared 2 MiB pages:
/// about `size × 17/16`, in steps of 8 KiB, at least 8 KiB (exact steps differ by one; measured on consumer cards, driver 5xx).
#[must_use]
pub fn cuda_malloc_footprint(size: Bytes) -> Bytes {
    const STEP: Bytes = Bytes(8 << 10);
    match size.0 {
        0 => Bytes::ZERO,
        s if s > MIB => size.round_up_to(CUDA_GRANULARITY),
        s if s > MIB / 2 => Bytes(MIB),
        s if s <= STEP.0 => STEP,
        s if (16 << 10..=64 << 10).contains(&s) => size.round_up_to(STEP),
        s => Bytes(s.saturating_mul(17) / 16).round_up_to(STEP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footprints_match_the_measured_table() {
        let kib = |n: u64| Bytes(n << 10);
        for (size, footprint) in [
            (Bytes(400), kib(8)),
            (kib(4), kib(8)),
            (kib(10), kib(16)),
            (kib(16), kib(16)),
            (kib(64), kib(64)),
            (kib(96), kib(104)),
            (kib(384), kib(408)), // Measured 416: the rule is a step short here.
            (kib(600), kib(1024)),
            (kib(1536), kib(2048)),
            (kib(3072), kib(4096)),
        ] {
            assert_eq!(cuda_malloc_footprint(size), footprint, "{size}");
        }
    }
}
