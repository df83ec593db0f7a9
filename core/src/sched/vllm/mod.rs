//! vLLM's V1 scheduler: how many tokens of which request are computed next, and in which blocks.
//!
//! The rules of 0.11.2, 0.19.0 and 0.33.0 were learned by running the engine, turn by turn; `rules` says
//! which release has which. One engine process: speculative decoding, encoder inputs, structured output,
//! KV connectors and pipeline stages have no place here yet.

mod cache;
mod config;
mod detail;
mod intake;
mod quiet;
mod request;
mod results;
mod rules;
mod running;
mod split;
#[cfg(test)]
mod tests;
mod turn;
mod waiting;

pub use cache::NewBlocks;
pub use config::{
    AdmissionGate, ChunkedPrefill, ConfigError, GroupKind, GroupSpec, LoopKind, PrefixCaching,
    QueuePolicy, StateMode, VllmConfig,
};
pub use detail::{RowKind, Scheduled, TurnDetail};
pub use intake::too_long;

use std::collections::{BTreeMap, VecDeque};

use self::{
    cache::BlockCache,
    request::{Idx, Slab, Status},
    rules::Rules,
    turn::Launched,
};
use super::{
    Batch, Decision, Deferral, Fatal, LogDetail, Mode, NewRequest, RequestId, Scheduler, Turn,
    Usage,
};
use crate::kv::{
    Run, Runs,
    blocks::{BlockId, Change},
};

/// Batches that are scheduled before the oldest result is processed.
///
/// Source: vLLM `EngineCore`, depth of the batch queue.
const BATCHES: usize = 2;

/// The scheduler.
#[derive(Clone, Debug)]
pub struct VllmScheduler {
    config: VllmConfig,
    rules: Rules,
    cache: BlockCache,
    requests: Slab,
    by_id: BTreeMap<RequestId, Idx>,
    waiting: VecDeque<Idx>,
    running: Vec<Idx>,
    /// Batches whose results are outstanding.
    launched: VecDeque<Launched>,
    /// Whether this turn ends without a result.
    result_is_due: bool,
    /// Requests that ended since the workers were told.
    untold: Vec<RequestId>,
    /// Requests that arrived.
    arrived: u64,
    /// Turns that scheduled something, and the last one that began or went on with a prompt.
    turns: u64,
    last_prefill: Option<u64>,
    /// The queue was not emptied when it was last looked at.
    capacity_bound: bool,
    deferred: Option<(RequestId, Deferral)>,
    log: Vec<Decision>,
    slot_detail: LogDetail,
    detail: TurnDetail,
}

impl VllmScheduler {
    /// An idle scheduler with an empty pool.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for settings that no scheduler can be made from.
    pub fn new(config: VllmConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            rules: Rules::of(config.version),
            cache: BlockCache::new(&config),
            requests: Slab::default(),
            by_id: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            launched: VecDeque::new(),
            result_is_due: false,
            untold: Vec::new(),
            arrived: 0,
            turns: 0,
            last_prefill: None,
            capacity_bound: false,
            deferred: None,
            log: Vec::new(),
            slot_detail: LogDetail::default(),
            detail: TurnDetail::default(),
            config,
        })
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &VllmConfig {
        &self.config
    }

    /// What the latest turn looked at.
    #[must_use]
    pub const fn detail(&self) -> &TurnDetail {
        &self.detail
    }

    /// Whether a turn would do anything: also tell the workers who is over, or process a result.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.must_schedule() || !self.launched.is_empty()
    }

    /// Whether [`Scheduler::complete`] will process a result.
    #[must_use]
    pub fn result_is_due(&self) -> bool {
        self.result_is_due && !self.launched.is_empty()
    }

    /// Waiting requests in queue order.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|at| self.requests[*at].id)
    }

    /// Running requests in their order.
    pub fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.running.iter().map(|at| self.requests[*at].id)
    }

    /// Blocks of a request, one list a group; `None` for one that is not open.
    #[must_use]
    pub fn tables(&self, request: RequestId) -> Option<Vec<&[BlockId]>> {
        let at = self.by_id.get(&request)?;
        let tables = &self.requests[*at].sequence.tables;
        Some(tables.iter().map(|table| table.blocks.as_slice()).collect())
    }

    /// Free blocks in the order in which they will be taken; those that can still be found are free too.
    pub fn free_blocks(&self) -> impl Iterator<Item = Run> + '_ {
        self.cache.pool.free_runs()
    }

    /// Blocks that can be found by what they hold.
    #[must_use]
    pub fn cached_blocks(&self) -> u64 {
        self.cache.pool.keyed()
    }

    /// By group, leading blocks that all running requests share (`num_common_prefix_blocks`), after
    /// [`Scheduler::turn`].
    #[must_use]
    pub fn common_prefix_blocks(&self) -> Vec<u64> {
        let first = self.running.first().map(|at| &self.requests[*at].sequence);
        self.cache.common_prefix(first)
    }

    const fn tokens_of_blocks(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.config.block_size)
    }

    fn must_schedule(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty() || !self.untold.is_empty()
    }

    /// Tells what changed hands since the last call, where that is asked for; what was taken is that of
    /// `request`.
    fn tell_slots(&mut self, request: RequestId) {
        if self.slot_detail != LogDetail::Slots {
            return;
        }
        for change in self.cache.pool.take_trace() {
            let told = match change {
                Change::Taken(id) => Decision::SlotsTaken { request, slots: self.slots_of(id) },
                Change::Freed(id) => Decision::SlotsFreed { slots: self.slots_of(id) },
            };
            self.log.push(told);
        }
    }

    fn slots_of(&self, id: BlockId) -> Runs {
        Runs::of(self.tokens_of_blocks(u64::from(id)), self.config.block_size)
    }
}

impl Scheduler for VllmScheduler {
    fn submit(&mut self, request: NewRequest, log: &mut Vec<Decision>) {
        self.receive(request);
        log.append(&mut self.log);
    }

    fn abort(&mut self, request: RequestId, log: &mut Vec<Decision>) {
        self.give_up(request);
        log.append(&mut self.log);
    }

    fn turn(&mut self, log: &mut Vec<Decision>) -> Result<Turn, Fatal> {
        let turn = self.next_turn();
        log.append(&mut self.log);
        Ok(turn)
    }

    fn results_due(&self) -> usize {
        // A batch of nothing is no pass.
        let oldest = self.launched.front().filter(|_| self.result_is_due);
        usize::from(oldest.is_some_and(|batch| !batch.rows.is_empty()))
    }

    fn complete(&mut self, log: &mut Vec<Decision>) -> Result<(), Fatal> {
        self.process_due();
        log.append(&mut self.log);
        Ok(())
    }

    fn quiet_turns(&self) -> u64 {
        self.quiet()
    }

    fn skip(&mut self, turns: u64) {
        self.take_quiet(turns);
    }

    fn beside(&self, batch: &Batch) -> u64 {
        // Those of the batch run already.
        let others = self.running.len().saturating_sub(batch.rows.len());
        if batch.mode == Mode::Prefill { others as u64 } else { 0 }
    }

    fn is_done(&self) -> bool {
        let open = |batch: &Launched| batch.rows.iter().any(|row| self.requests.is_open(row.at));
        self.waiting.is_empty() && self.running.is_empty() && !self.launched.iter().any(open)
    }

    fn usage(&self) -> Usage {
        let pool = &self.cache.pool;
        let kept = pool.free_and_keyed();
        Usage {
            pool: self.tokens_of_blocks(pool.total() - 1),
            available: self.tokens_of_blocks(pool.free() - kept),
            evictable: self.tokens_of_blocks(kept),
            running: self.running.len() as u64,
            waiting: self.waiting.len() as u64,
            window: None,
        }
    }

    fn set_detail(&mut self, detail: LogDetail) {
        self.slot_detail = detail;
        if detail == LogDetail::Slots {
            self.cache.pool.keep_trace();
        }
    }

    fn cached_slots(&self) -> Runs {
        let size = self.config.block_size;
        let slots = |id| Run { first: self.tokens_of_blocks(u64::from(id)), len: size };
        self.cache.pool.kept().map(slots).collect()
    }
}
