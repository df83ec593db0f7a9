//! What the profile run charges before KV, by release; available KV is the rest of the budget.

use super::{
    budget::Requested,
    rules::ProfileRule,
    settings::{Settings, Switch},
};
use crate::{
    figure::{Tag, Why},
    units::Bytes,
};

/// Memory terms of one rank. Terms that a release does not charge are ignored by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Weights ("Model loading took").
    pub weights: Bytes,
    /// Increase outside torch since the baseline reading.
    pub non_torch: Bytes,
    /// Peak of torch during the profile run above the weights.
    pub activation_peak: Bytes,
    /// Outside torch already before the baseline: context, NCCL, other processes. Charged by V1
    /// 0.8 and 0.9 only.
    pub baseline: Bytes,
    /// Reserved by torch but unallocated after the cache was emptied. Charged from 0.27 on.
    pub fragmentation: Bytes,
    /// The engine's estimate of its graphs ([`super::graphs`]).
    pub graph_estimate: Bytes,
}

/// Memory for KV of one rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Available {
    /// Bytes; may be negative. The engine prints it as "Available KV cache memory".
    pub bytes: i64,
    /// What was charged, by name, in the order of the engine's report.
    pub charged: Vec<(&'static str, Bytes)>,
    /// Derivation.
    pub why: Why,
}

/// The terms that the release charges, by name.
#[must_use]
pub fn charged(settings: &Settings, profile: &Profile) -> Vec<(&'static str, Bytes)> {
    let mut terms = vec![
        ("weights", profile.weights),
        ("non-torch memory", profile.non_torch),
        ("activation peak", profile.activation_peak),
    ];
    match settings.rules.profile {
        ProfileRule::V0Increase | ProfileRule::Increase => {}
        ProfileRule::WholeDevice => {
            terms.push(("context, NCCL and other processes", profile.baseline));
        }
        ProfileRule::Consumed => terms.push(("allocator fragmentation", profile.fragmentation)),
    }
    if settings.graphs_charged == Switch::On {
        terms.push(("CUDA graph estimate", profile.graph_estimate));
    }
    terms
}

/// Available KV memory: the budget minus what is charged, toward zero to a whole byte; exactly
/// `kv_cache_memory_bytes` when that is given.
///
/// Source: vLLM V0 `Worker.determine_num_available_blocks`, V1 `Worker.determine_available_memory`.
#[must_use]
pub fn available_kv(settings: &Settings, requested: &Requested, profile: &Profile) -> Available {
    let release = settings.rules.release();
    if let Some(bytes) = settings.kv_cache_memory_bytes {
        let why = Why::new(
            Tag::Measured,
            "kv_cache_memory_bytes as given; nothing is measured",
            format!("{release} Worker.determine_available_memory"),
        );
        return Available { bytes: clamp(bytes), charged: Vec::new(), why };
    }
    let charged = charged(settings, profile);
    let total: u64 = charged.iter().fold(0, |sum, (_, b)| sum.saturating_add(b.0));
    let bytes = (requested.bytes - total as f64) as i64;
    let source = match settings.rules.profile {
        ProfileRule::V0Increase => "Worker.determine_num_available_blocks",
        _ => "Worker.determine_available_memory",
    };
    let mut why = Why::new(
        Tag::Computed,
        "requested memory - what profiling charges",
        format!("{release} {source}"),
    )
    .with("requested", format!("{} B", requested.bytes));
    for (name, amount) in &charged {
        why = why.with(*name, format!("{amount:?}"));
    }
    Available { bytes, charged, why }
}

fn clamp(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}
