//! Why an engine does not fit a device, with the numbers and the flags that would change it.

use super::DevicePart;
use crate::units::Bytes;

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceRefusal {
    /// The weights alone do not fit.
    #[error(
        "the weights of this rank take {weights}, and {free} of the device's {total} is free: {} too little. \
         Use a larger device, more of them (--tp-size), or stop what else runs there (`nvidia-smi`)",
        weights.saturating_sub(*free)
    )]
    BelowWeights {
        /// Weights of the rank.
        weights: Bytes,
        /// Free before anything is loaded.
        free: Bytes,
        /// Total of the device.
        total: Bytes,
    },
    /// Without any pool, the engine and its margin hold more than what is free.
    #[error(
        "without a pool the engine holds {needs} (weights {weights}, margin {margin}), and {free} is free: {} \
         too little. {} takes {bytes}: a smaller {flag} would change that",
        needs.saturating_sub(*free), part.label()
    )]
    BelowEngine {
        /// All rows but other programs and the pool.
        needs: Bytes,
        /// Weights of that.
        weights: Bytes,
        /// Margin of that.
        margin: Bytes,
        /// Free before anything is loaded.
        free: Bytes,
        /// The largest row that a flag can change.
        part: DevicePart,
        /// Its size.
        bytes: Bytes,
        /// That flag.
        flag: &'static str,
    },
    /// The pool does not hold one request's chunk and a page more.
    #[error(
        "the pool has {pages} pages of {page}, and {least} are needed for one chunk of a prompt and a page \
         more: {} too little. A smaller --chunked-prefill-size, --page-size, --mem-margin or \
         --max-running-requests would change that",
        Bytes(page.0.saturating_mul(least.saturating_sub(*pages)))
    )]
    PoolTooSmall {
        /// Pages that fit.
        pages: u64,
        /// Pages that are needed.
        least: u64,
        /// Size of a page.
        page: Bytes,
    },
    /// `--max-total-tokens` is below one chunk and a page.
    #[error(
        "--max-total-tokens {tokens} is {pages} pages; one chunk of a prompt and a page more are {least}. \
         Raise it, or lower --chunked-prefill-size"
    )]
    TotalTooSmall {
        /// As given.
        tokens: u64,
        /// Pages of that.
        pages: u64,
        /// Pages that are needed.
        least: u64,
    },
}
