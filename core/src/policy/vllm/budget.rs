//! The budget: a fraction of total memory, and the check of free memory before the model loads.

use super::{
    defaults::{Device, MemoryKind},
    refusal::Refusal,
    rules::{RequestedRounding, StartCheck},
    settings::Settings,
};
use crate::{
    figure::{Tag, Why},
    pyfloat,
    units::Bytes,
};

/// What the device and the host report when the worker has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtStart {
    /// Free device memory (first value of `cudaMemGetInfo`).
    pub free: Bytes,
    /// Host memory available (`psutil.virtual_memory().available`); used on unified memory.
    pub host_available: Option<Bytes>,
    /// Index of the device, for the message.
    pub device_index: u32,
    /// Weights held by another process (0.33), taken off the budget first.
    pub external_weights: Bytes,
}

impl AtStart {
    /// Device 0 with `free` bytes, nothing held elsewhere.
    #[must_use]
    pub const fn free(free: Bytes) -> Self {
        Self { free, host_available: None, device_index: 0, external_weights: Bytes::ZERO }
    }
}

/// The budget of one instance.
#[derive(Clone, PartialEq, Debug)]
pub struct Requested {
    /// `total * utilization` in float64, rounded as the release does; bytes.
    pub bytes: f64,
    /// Total memory.
    pub total: Bytes,
    /// Free memory as the engine sees it at the start.
    pub free_at_start: Bytes,
    /// Derivation.
    pub why: Why,
}

impl Requested {
    /// The budget in whole bytes, rounded down.
    #[must_use]
    pub fn floor(&self) -> Bytes {
        Bytes(self.bytes.max(0.0) as u64)
    }
}

/// `total * utilization`, bytes: the product of the doubles, `ceil` of it from 0.15 on.
#[must_use]
pub fn product(rounding: RequestedRounding, total: Bytes, utilization: f64) -> f64 {
    let product = total.0 as f64 * utilization;
    match rounding {
        RequestedRounding::Product => product,
        RequestedRounding::Ceil => product.ceil(),
    }
}

/// Free memory as the engine reads it: on unified memory (0.12+) what the host calls available.
#[must_use]
pub fn free_seen(settings: &Settings, device: &Device, at_start: AtStart) -> Bytes {
    let unified =
        device.memory == MemoryKind::Unified && settings.rules.unified_free_is_available.exists();
    if unified { at_start.host_available.unwrap_or(at_start.free) } else { at_start.free }
}

/// The budget before any check.
#[must_use]
pub fn budget(settings: &Settings, device: &Device, at_start: AtStart) -> Requested {
    let rules = &settings.rules;
    let utilization = settings.gpu_memory_utilization;
    let full = product(rules.requested, device.total, utilization);
    let rule = match rules.requested {
        RequestedRounding::Product => "total * gpu_memory_utilization (float64)",
        RequestedRounding::Ceil => "ceil(total * gpu_memory_utilization)",
    };
    let mut why = Why::new(Tag::Computed, rule, format!("{} request_memory", rules.release()))
        .with("total", format!("{:?}", device.total))
        .with("gpu_memory_utilization", pyfloat::repr(utilization));
    if at_start.external_weights > Bytes::ZERO {
        why = why.with("external weights", format!("{:?}", at_start.external_weights));
    }
    Requested {
        bytes: full - at_start.external_weights.0 as f64,
        total: device.total,
        free_at_start: free_seen(settings, device, at_start),
        why,
    }
}

/// The budget, after the start check of the release.
///
/// Source: vLLM 0.10 to 0.12 `Worker.init_device`, 0.15+ `worker_utils.request_memory`.
///
/// # Errors
/// [`Refusal::FreeBelowRequested`] when less is free than the budget (0.10+).
pub fn requested(
    settings: &Settings,
    device: &Device,
    at_start: AtStart,
) -> Result<Requested, Refusal> {
    let requested = budget(settings, device, at_start);
    let (free, bytes) = (requested.free_at_start, requested.bytes);
    if settings.rules.start_check != StartCheck::Absent && (free.0 as f64) < bytes {
        return Err(Refusal::FreeBelowRequested {
            free,
            total: device.total,
            utilization: settings.gpu_memory_utilization,
            requested: bytes,
            device_index: at_start.device_index,
            external_weights: at_start.external_weights,
        });
    }
    Ok(requested)
}

/// The check after profiling: free memory must not have grown while the engine profiled.
///
/// Source: vLLM `Worker.determine_available_memory`.
///
/// # Errors
/// [`Refusal::MemoryGrew`] when it grew (before 0.24 also when it stayed equal).
pub fn check_growth(settings: &Settings, initial: Bytes, current: Bytes) -> Result<(), Refusal> {
    let accepted = if settings.rules.equal_free_accepted.exists() {
        initial >= current
    } else {
        initial > current
    };
    if accepted { Ok(()) } else { Err(Refusal::MemoryGrew { initial, current }) }
}
