//! What the engine will hold.

pub use plimsoll_backend_host::model::KvFormat;
use plimsoll_backend_host::read_host;
use plimsoll_checkpoint::Checkpoint;
use plimsoll_core::{
    tape::own::{ArenaPlan, StepLimits, Workspace, tape},
    units::Bytes,
};

use crate::start::{Ask, DEFAULT_CONTEXT};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

/// A plan.
#[derive(Clone, Debug)]
pub struct PlannedMemory {
    /// By account; they add up to the limit.
    pub rows: Vec<(String, Bytes)>,
    /// Pages of the pool.
    pub pool_pages: u64,
    /// As planned.
    pub chunked_prefill_size: u64,
    /// As planned.
    pub max_running_requests: u64,
    /// As planned.
    pub context_length: u64,
    /// Of the model.
    pub threads: usize,
    /// The largest step.
    pub limits: StepLimits,
}

/// Plans.
pub(crate) fn memory(ask: &Ask, checkpoint: &Checkpoint) -> Result<PlannedMemory, PlanError> {
    let wrong = |error: String| PlanError(error);
    let shape = &checkpoint.shape;
    let context_length = ask.context_length.unwrap_or(DEFAULT_CONTEXT).min(shape.context);
    let limits = StepLimits {
        tokens: ask.chunked_prefill_size + ask.max_running_requests,
        outputs: ask.max_running_requests,
    };
    let host = read_host().map_err(|error| wrong(error.to_string()))?;
    let room = host.headroom().unwrap_or(host.total);
    let limit = ask.memory_limit.unwrap_or(room).min(room);
    let own = tape(shape, Workspace::None).map_err(|error| wrong(error.to_string()))?;
    let arena = ArenaPlan::new(&own, limits).map_err(|error| wrong(error.to_string()))?.total;
    let weights = Bytes(checkpoint.weights.stored_bytes());
    let cell = shape.kv_width() * 2 * shape.layers.len() as u64 * ask.kv.bytes();
    let page = (cell * ask.page_size).next_multiple_of(4096);
    let margin = ask.margin.unwrap_or(Bytes::mib(256));
    let left = limit.0.saturating_sub(weights.0 + arena.0 + margin.0) / page;
    let wanted = ask.max_total_tokens.unwrap_or(ask.max_running_requests * context_length);
    let pool_pages = left.min(wanted.div_ceil(ask.page_size));
    let pool = Bytes(pool_pages * page);
    let rows = [("weights", weights), ("arena", arena), ("kv_pool", pool), ("margin", margin)];
    let threads = ask.threads.unwrap_or(2);
    Ok(PlannedMemory {
        rows: rows.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec(),
        pool_pages,
        chunked_prefill_size: ask.chunked_prefill_size,
        max_running_requests: ask.max_running_requests,
        context_length,
        threads,
        limits,
    })
}
