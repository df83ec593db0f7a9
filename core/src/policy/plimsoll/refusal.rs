//! Why there is no plan, with the numbers and the flag that would change it.

use super::{Limit, Part};
use crate::{tape::own, units::Bytes};

/// The largest row that a flag can change, and that flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WayOut {
    /// The row.
    pub part: Part,
    /// Its size.
    pub bytes: Bytes,
    /// The flag.
    pub flag: &'static str,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A flag out of its range.
    #[error("{flag} is {value}; allowed: 1 to {most}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// As given.
        value: u64,
        /// The largest that is allowed.
        most: u64,
    },
    /// No tape of this shape.
    #[error(transparent)]
    Shape(#[from] own::ShapeError),
    /// No arena for the largest step.
    #[error(transparent)]
    Arena(#[from] own::PlanError),
    /// The limit is below the weights alone.
    #[error(
        "the weights take {weights}, and the limit is {} ({}): {} too little. Raise the limit, or \
         keep the weights in fewer bits (--precision)",
        limit.bytes, limit.from, weights.saturating_sub(limit.bytes)
    )]
    BelowWeights {
        /// The limit.
        limit: Limit,
        /// Weights as they would be kept.
        weights: Bytes,
    },
    /// Without any pool, the engine holds more than the limit.
    #[error(
        "without a pool the engine holds {needs} (weights {weights}, margin {margin}), and the limit is \
         {} ({}): {} too little. {} takes {}: a smaller {} would change that",
        limit.bytes, limit.from, needs.saturating_sub(limit.bytes), way.part.label(), way.bytes, way.flag
    )]
    BelowEngine {
        /// The limit.
        limit: Limit,
        /// All rows but the pool.
        needs: Bytes,
        /// Weights of that.
        weights: Bytes,
        /// Margin of that.
        margin: Bytes,
        /// What would help.
        way: WayOut,
    },
    /// The pool does not hold one request's chunk and a page more.
    #[error(
        "the pool has {pages} pages of {page}, and {least} are needed for one chunk of a prompt and a page \
         more: {} too little of {} ({}). A smaller --chunked-prefill-size or --page-size, a smaller \
         --mem-margin or a larger limit would change that",
        Bytes(page.0.saturating_mul(least.saturating_sub(*pages))), limit.bytes, limit.from
    )]
    PoolTooSmall {
        /// The limit.
        limit: Limit,
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
