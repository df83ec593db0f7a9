//! The window of `gpu_memory_utilization`: from what would serve one request to what would start.

use super::{
    budget::{self, Requested},
    capacity::{self, Rank},
    groups, hybrid,
    profile::{self, Profile},
    refusal::Refusal,
    settings::{MaxModelLen, Settings},
    spec::LayerSpec,
};
use crate::{
    figure::{Tag, Why},
    units::{Bytes, Tokens},
};

/// Utilizations in steps of one ten-thousandth; `None` where no value up to 1 does.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    /// Smallest at which the pool has a block: below it the engine refuses to start.
    pub one_block: Option<f64>,
    /// Smallest that serves one request of `max_model_len`.
    pub one_request: Option<f64>,
    /// Largest that passes the check of free memory at the start. Not a promise for the run: what
    /// graphs, other processes and the heaviest prefill take above the budget is not in it.
    pub ceiling: Option<f64>,
    /// Derivation.
    pub why: Why,
}

/// Steps of the search in one unit of utilization.
const STEPS: u64 = 10_000;

/// One launch of which only the utilization varies.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// All settings; its utilization is replaced.
    pub settings: &'a Settings,
    /// Total memory.
    pub total: Bytes,
    /// Free memory at the start, as the engine sees it.
    pub free_at_start: Bytes,
    /// What profiling charges (it does not depend on the utilization).
    pub profile: &'a Profile,
    /// Layers of the rank.
    pub layers: &'a [LayerSpec],
}

impl Launch<'_> {
    /// Available KV bytes at `utilization`.
    #[must_use]
    pub fn available_at(&self, utilization: f64) -> i64 {
        let rounding = self.settings.rules.requested;
        let requested = Requested {
            bytes: budget::product(rounding, self.total, utilization),
            total: self.total,
            free_at_start: self.free_at_start,
            why: Why::new(Tag::Computed, "total * gpu_memory_utilization", "search"),
        };
        profile::available_kv(self.settings, &requested, self.profile).bytes
    }

    /// Tokens of the "KV cache size" line at `utilization`.
    ///
    /// # Errors
    /// What the engine would refuse there.
    pub fn tokens_at(&self, utilization: f64) -> Result<Tokens, Refusal> {
        let rank = Rank { layers: self.layers.to_vec(), available: self.available_at(utilization) };
        capacity::size_pool(self.settings, &[rank]).map(|pool| pool.kv_cache_tokens)
    }

    /// The window. With `kv_cache_memory_bytes` the lower ends are the first step if they hold at
    /// all, for the pool no longer depends on the utilization.
    ///
    /// # Errors
    /// [`Refusal::CannotUnify`] and [`Refusal::NoLayers`], which no utilization mends.
    pub fn window(&self) -> Result<Window, Refusal> {
        let settings = self.settings;
        let (layers, _) = hybrid::apply(settings, self.layers);
        let grouping = groups::group(settings, &layers)?;
        if grouping.bytes_per_block == Bytes::ZERO {
            return Err(Refusal::NoLayers);
        }
        let usable = |u: f64| capacity::usable_bytes(settings, &grouping, self.available_at(u));
        let needed = match settings.max_model_len {
            MaxModelLen::Tokens(len) => capacity::needed_bytes(settings, &grouping, len),
            MaxModelLen::Auto { .. } => capacity::needed_bytes(settings, &grouping, 1),
        };
        let block = grouping.bytes_per_block;
        let holds = |u: f64, bytes: Bytes| i128::from(usable(u)) >= i128::from(bytes.0);
        let starts = |u: f64| {
            budget::product(settings.rules.requested, self.total, u) <= self.free_at_start.0 as f64
        };
        let why = Why::new(
            Tag::Computed,
            "smallest steps with one block and one request; largest with requested <= free",
            format!("{} request_memory, check_enough_kv_cache_memory", settings.rules.release()),
        )
        .with("total", format!("{:?}", self.total))
        .with("free at start", format!("{:?}", self.free_at_start))
        .with("bytes of one request", needed.0)
        .with("bytes_per_block", block.0);
        Ok(Window {
            one_block: first_step(|u| holds(u, block)),
            one_request: first_step(|u| holds(u, needed)),
            ceiling: last_step(starts),
            why,
        })
    }
}

fn step(n: u64) -> f64 {
    n as f64 / STEPS as f64
}

/// Smallest step at which a rising condition holds.
fn first_step(holds: impl Fn(f64) -> bool) -> Option<f64> {
    let (mut low, mut high) = (1, STEPS + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(step(middle)) { high = middle } else { low = middle + 1 }
    }
    (low <= STEPS).then(|| step(low))
}

/// Largest step at which a falling condition holds.
fn last_step(holds: impl Fn(f64) -> bool) -> Option<f64> {
    match first_step(|u| !holds(u)) {
        None => Some(1.0),
        Some(first_bad) => {
            let n = (first_bad * STEPS as f64).round() as u64 - 1;
            (n > 0).then(|| step(n))
        }
    }
}
