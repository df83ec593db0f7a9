//! The host of a machine, from what is known of its memory.

use super::{Case, sglang::host_available};
use plimsoll_backend_sim::{CgroupSpec, HostSpec};
use plimsoll_core::units::Bytes;

/// What is known of the host's memory besides what is available; `None` leaves it out of account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostMemory {
    /// In all.
    pub ram: Option<Bytes>,
    /// Page cache at first, given back under pressure.
    pub page_cache: Option<Bytes>,
    /// Held by other programs at first.
    pub others: Option<Bytes>,
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
