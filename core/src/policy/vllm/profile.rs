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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::vllm::{
            budget::{self, AtStart},
            testing::{device, settings},
        },
        units::GIB,
    };

    const TERMS: Profile = Profile {
        weights: Bytes::gib(16),
        non_torch: Bytes::gib(1),
        activation_peak: Bytes::gib(2),
        baseline: Bytes::gib(4),
        fragmentation: Bytes::gib(3),
        graph_estimate: Bytes::gib(5),
    };

    #[test]
    fn each_release_charges_its_own_terms() {
        let charged = |minor| {
            let s = settings(minor, 4096, |_| {});
            let at = AtStart::free(Bytes::gib(80));
            let requested = budget::requested(&s, &device(), at).unwrap();
            let available = available_kv(&s, &requested, &TERMS);
            ((requested.bytes as i64 - available.bytes) as f64 / GIB as f64).round()
        };
        assert_eq!(charged(7), 19.0); // V0.
        assert_eq!(charged(9), 23.0); // Context, NCCL and other processes too.
        assert_eq!((charged(10), charged(19)), (19.0, 19.0));
        assert_eq!((charged(20), charged(24)), (24.0, 24.0)); // Graphs.
        assert_eq!(charged(27), 27.0); // Graphs and fragmentation.
    }

    #[test]
    fn given_bytes_skip_the_measurement() {
        let s = settings(20, 4096, |a| a.kv_cache_memory_bytes = Some(12_345));
        let at = AtStart::free(Bytes::gib(80));
        let requested = budget::requested(&s, &device(), at).unwrap();
        let available = available_kv(&s, &requested, &TERMS);
        assert_eq!((available.bytes, available.charged.len()), (12_345, 0));
        // The start check still runs.
        assert!(budget::requested(&s, &device(), AtStart::free(Bytes::gib(70))).is_err());
    }

    #[test]
    fn unified_memory_reads_the_host_from_0_12() {
        let mut unified = device();
        unified.memory = crate::policy::vllm::defaults::MemoryKind::Unified;
        let at = AtStart { host_available: Some(Bytes::gib(78)), ..AtStart::free(Bytes::gib(40)) };
        let free = |minor| budget::free_seen(&settings(minor, 4096, |_| {}), &unified, at);
        assert_eq!((free(11), free(12)), (Bytes::gib(40), Bytes::gib(78)));
        assert_eq!(budget::free_seen(&settings(12, 4096, |_| {}), &device(), at), Bytes::gib(40));
    }
}
