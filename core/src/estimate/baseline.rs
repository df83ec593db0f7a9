//! Memory that is free on a rank before weights load: what SGLang prints at "Load weight begin" and
//! vLLM calls free on startup. Runtime total − context and loaded code − communicators − other
//! programs.

use super::{Engine, Figure, gib, mib};
use crate::device::{DeviceProfile, Link, MemoryKind, Platform};
use crate::figure::{Estimate, Tag, Why};
use crate::policy::sglang::version::Version;

/// Groups of ranks beside the tensor-parallel one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ExtraGroups {
    /// None.
    Absent,
    /// Expert or data parallelism: more communicators, more of them for point to point.
    ExpertOrData,
}

/// What the baseline depends on.
#[derive(Clone, Copy, Debug)]
pub struct BaselineInputs<'a> {
    /// The device of the rank.
    pub device: &'a DeviceProfile,
    /// Engine.
    pub engine: Engine,
    /// Release of the engine.
    pub version: Version,
    /// Ranks of the tensor-parallel group (× pipeline stages when there are any).
    pub ranks: u64,
    /// Expert or data parallelism.
    pub groups: ExtraGroups,
    /// What other programs hold on the device (on unified memory: beside the system itself).
    pub others: Estimate,
}

/// The baseline and what it is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Baseline {
    /// Free before loading.
    pub free: Figure,
    /// Total as the runtime reports it.
    pub total: Figure,
    /// Context and code loaded until the reading.
    pub context: Figure,
    /// NCCL or RCCL groups and custom all-reduce buffers.
    pub communicators: Figure,
    /// System and page cache, on unified memory; zero elsewhere.
    pub system: Figure,
}

/// Estimates the baseline. The parts are not independent of each other, so the interval of `free`
/// is the root of the sum of squares of theirs (what others hold is added in full).
///
/// Calibrated on `sglang-startup.csv`, `vllm-startup.csv` and single reports; residuals are in the
/// tests.
#[must_use]
pub fn baseline(inputs: &BaselineInputs<'_>) -> Baseline {
    let device = inputs.device;
    let total = &device.runtime_total;
    let total = Figure {
        value: total.value,
        why: Why::new(Tag::Calibrated, "total of the runtime (cudaMemGetInfo)", total.source())
            .with("device", &device.name),
    };
    let context = context(device);
    let communicators = communicators(inputs);
    let system = system(device);
    let mid = [&context, &communicators, &system]
        .iter()
        .fold(total.value.mid, |free, part| free.saturating_sub(part.value.mid))
        .saturating_sub(inputs.others.mid);
    let parts = [total.value, context.value, communicators.value, system.value];
    // Driver releases move the reserve beyond what was seen: up to 0.3 GiB on large devices.
    let drivers = (0.003 * total.value.mid.as_gib_f64()).min(0.3);
    // Releases before the known range came with other torch and CUDA releases: 0.3 to 0.5 GiB off in
    // two logs.
    let old = inputs.engine == Engine::Sglang && inputs.version < Version::new(0, 4, 6);
    let release = if old { 0.5 } else { 0.0 };
    let sides = |total_high| {
        let each = parts.iter().enumerate();
        let each = each.map(move |(i, part)| side(*part, (i == 0) == total_high));
        root_sum(each.chain([drivers, release]))
    };
    let (down, up) = (sides(false), sides(true));
    let others_up = inputs.others.mid.as_gib_f64() - inputs.others.low.as_gib_f64();
    let others_down = inputs.others.high.as_gib_f64() - inputs.others.mid.as_gib_f64();
    let value = gib(
        mid.as_gib_f64() - down - others_down,
        mid.as_gib_f64(),
        (mid.as_gib_f64() + up + others_up).min(total.value.high.as_gib_f64()),
    );
    let why = Why::new(
        Tag::Calibrated,
        "total − context − communicators − system − other programs",
        "fitted on public startup logs",
    )
    .with("total", total.value.mid)
    .with("context", context.value.mid)
    .with("communicators", communicators.value.mid)
    .with("system", system.value.mid)
    .with("other programs", inputs.others.mid);
    Baseline { free: Figure { value, why }, total, context, communicators, system }
}

/// Half-width of a part toward its high (`true`) or low end, in GiB.
fn side(part: Estimate, high: bool) -> f64 {
    if high {
        part.high.as_gib_f64() - part.mid.as_gib_f64()
    } else {
        part.mid.as_gib_f64() - part.low.as_gib_f64()
    }
}

fn root_sum(sides: impl Iterator<Item = f64>) -> f64 {
    sides.map(|s| s * s).sum::<f64>().sqrt()
}

/// Context, cuBLAS handles and code until the reading: seen for the device, else by its
/// multiprocessors, `90 MiB + 3.2 MiB × SM ± 130` (15 readings of idle processes and single-rank
/// starts: residuals −146 … +205 MiB, 13 of them within 130).
#[must_use]
pub fn context(device: &DeviceProfile) -> Figure {
    if let Some(seen) = &device.context {
        let why = Why::new(Tag::Calibrated, "context as seen on this device", seen.source());
        return Figure { value: seen.value, why };
    }
    match (device.platform, &device.sms) {
        (Platform::Cuda, Some(sms)) => {
            let mid = 90.0 + 3.2 * sms.value as f64;
            let why = Why::new(
                Tag::Calibrated,
                "90 MiB + 3.2 MiB × SM ± 130 MiB",
                "fitted on 15 public readings of idle processes and single-rank starts",
            );
            Figure { value: mib((mid - 130.0).max(90.0), mid, mid + 130.0), why }
                .with("SM", sms.value)
        }
        (Platform::Metal, _) => Figure::none("Metal has no context of its own", "rule"),
        _ => Figure {
            value: gib(0.2, 0.6, 0.95),
            why: Why::new(Tag::Assumed, "runtime and code", "no reading of this platform"),
        },
    }
}

/// What the groups of ranks take before the reading.
///
/// SGLang reads after all groups and the custom all-reduce exist, vLLM from 0.11 too (0.8 to 0.10:
/// before, so nothing is missing there and it counts as non-torch memory later). Most NCCL buffers
/// come at first use.
#[must_use]
pub fn communicators(inputs: &BaselineInputs<'_>) -> Figure {
    if inputs.ranks <= 1 && inputs.groups == ExtraGroups::Absent {
        return Figure::none("one rank: no communicator", "rule");
    }
    let early = inputs.engine == Engine::Vllm && inputs.version < Version::new(0, 11, 0);
    if early {
        let rule = "the reading precedes the groups";
        return Figure::none(rule, "vLLM 0.8.5 to 0.10, worker initialisation");
    }
    let (mut value, seen) = group_buffers(inputs.device, inputs.engine, inputs.ranks);
    let mut tag = Tag::Calibrated;
    if inputs.groups == ExtraGroups::ExpertOrData {
        value = value.plus(gib(0.0, 0.7, 2.2));
        tag = Tag::Assumed;
    }
    let why = Why::new(tag, "groups of ranks before loading", seen)
        .with("ranks", inputs.ranks)
        .with("link", format!("{:?}", inputs.device.link));
    Figure { value, why }
}

/// Buffers of the groups of ranks right after they were made, and where that was seen.
pub(super) fn group_buffers(
    device: &DeviceProfile,
    engine: Engine,
    ranks: u64,
) -> (Estimate, &'static str) {
    let switched = matches!(device.link, Link::NvSwitch | Link::Fabric);
    let rocm = device.platform == Platform::Rocm;
    let (value, seen) = match (switched, engine, ranks) {
        (true, Engine::Sglang, 0..=2) => ((0.1, 0.6, 1.1), "between the tp 1 and tp 4 readings"),
        (true, Engine::Sglang, _) if rocm => ((1.3, 3.3, 4.2), "8 x MI355X 3.6"),
        (true, Engine::Sglang, _) => {
            ((0.95, 1.28, 1.65), "8 x H100 1.25 (printed), 8 x H200 about 1.3, 4 x B200 about 1.45")
        }
        (true, Engine::Vllm, 0..=2) => ((0.0, 0.15, 0.6), "2 x H200 about 0.05"),
        (true, Engine::Vllm, _) => ((0.1, 0.8, 1.6), "no reading without expert parallelism"),
        (false, _, 0..=2) => {
            ((0.2, 0.52, 0.85), "2 x 3090 0.3, 2 x 5090 0.35 to 0.5, 2 x RTX PRO 6000 0.6 and 0.8")
        }
        (false, ..) => ((0.15, 0.42, 0.85), "8 x RTX PRO 6000 0.33 (back-solved)"),
    };
    (gib(value.0, value.1, value.2), seen)
}

/// What system and page cache hold on a machine with unified memory: 6 to 9.5 % of the total, as
/// five starts on GB10 with nothing else running show (7.7 to 11.3 of 121.7 GiB). On Apple the
/// working set is already below the memory by more than this.
fn system(device: &DeviceProfile) -> Figure {
    if device.memory == MemoryKind::Discrete || device.platform == Platform::Metal {
        return Figure::none("memory of its own", "rule");
    }
    let total = device.runtime_total.value.mid.as_gib_f64();
    let why = Why::new(
        Tag::Calibrated,
        "7.9 % of the total (6.0 to 9.5 %)",
        "five GB10 starts with nothing else running; a page cache in use takes much more",
    );
    Figure { value: gib(0.060 * total, 0.079 * total, 0.095 * total), why }
}
