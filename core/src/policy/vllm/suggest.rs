//! The `--kv-cache-memory` values that the engine suggests after graph capture.

use super::budget::Requested;
use crate::units::{Bytes, GIB, MIB};

/// Taken off both suggestions. Source: vLLM `Worker.compile_or_warm_up_model`.
pub const MARGIN: u64 = 150 * MIB;

/// What the engine measured by the end of graph capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Weights and memory outside torch ("consumed memory").
    pub consumed: Bytes,
    /// Activation peak.
    pub activation_peak: Bytes,
    /// What the graphs really took; may be negative (a known fault of 0.11).
    pub graphs: i64,
}

/// The two suggestions, bytes; negative when not even the rest fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suggestion {
    /// Fits into the budget ("to fit into requested memory").
    pub fit_requested: i64,
    /// Uses all that was free at the start ("to fully utilize gpu memory").
    pub use_all_free: i64,
}

/// `requested - consumed - peak - graphs - 150 MiB`, and the same from what was free at the start;
/// toward zero to a whole byte. Source: vLLM 0.11+ `Worker.compile_or_warm_up_model`.
#[must_use]
pub fn suggest(requested: &Requested, usage: Usage) -> Suggestion {
    let used = i128::from(usage.consumed.0)
        + i128::from(usage.activation_peak.0)
        + i128::from(usage.graphs)
        + i128::from(MARGIN);
    let narrow = |x: i128| i64::try_from(x).unwrap_or(if x < 0 { i64::MIN } else { i64::MAX });
    Suggestion {
        fit_requested: (requested.bytes - used as f64) as i64,
        use_all_free: narrow(i128::from(requested.free_at_start.0) - used),
    }
}

/// A suggestion in GiB, for the line.
#[must_use]
pub fn gib(bytes: i64) -> f64 {
    bytes as f64 / GIB as f64
}
