//! SGLang's scheduler: which requests are computed next, and whose slots are given to whom.
//!
//! The rules of 0.5.8 and 0.5.23 were learned by running the engine, step by step; `rules` says which
//! release has which. One scheduler process with plain attention or a sliding window in some layers (`swa`):
//! speculative decoding has no place here yet. It would come as a step between the queue and the budget
//! (`prefill`).
//!
//! Known and left as the engine has it: in 0.5.8 an idle server whose first request was refused for lack of
//! slots idles for ever, and requests that were preempted for a batch that then failed are lost.

mod budget;
mod cache;
mod config;
mod decode;
mod detail;
mod host;
mod ignore_eos;
mod intake;
mod lend;
mod live;
mod memory;
mod prefill;
mod priority;
mod queue;
mod quiet;
mod ratio;
mod request;
mod results;
mod rules;
mod swa;
#[cfg(test)]
mod tests;

pub use config::{
    ConfigError, FinishKey, LoopKind, MixedChunk, PrefixCache, PriorityOptions, PriorityOrder,
    QueuePolicy, SglangConfig, SwaOptions, TooLong,
};
pub use detail::{BudgetView, Consideration, Considered, Placed, Preemption, TurnDetail, Verdict};
pub use ratio::NewTokenRatio;

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use self::{
    cache::{Cache, Slots},
    lend::Lent,
    request::{Idx, Slab},
    rules::Rules,
};
use super::{
    Batch, Decision, Deferral, Fatal, LogDetail, Mode, NewRequest, PoolUse, RequestId, Row,
    Scheduler, Turn, Usage,
};
use crate::kv::{
    PerPool, RadixTree, RequestRows, Runs, SlotAllocator, SwaAllocator, SwaTree, TreeOptions,
};

/// A batch that was launched.
#[derive(Clone, Debug)]
struct Launched {
    mode: Mode,
    members: Vec<Idx>,
    /// Members from here on decode.
    decode_from: usize,
    /// The request whose prompt goes on, as it was then.
    chunked: Option<Idx>,
    /// No member may make a token.
    prefill_only: bool,
}

/// What differs between the pool now and the state that the engine's loop keeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StateView {
    /// Free slots.
    pub available: u64,
    /// Slots of the prefix cache that nobody uses.
    pub evictable: u64,
    /// Slots of the prefix cache that running requests use.
    pub protected: u64,
    /// The window pool of a hybrid model; the figures above are the full pool's.
    pub window: Option<PoolUse>,
    /// The new-token ratio.
    pub new_token_ratio: f64,
    /// Whether the running batch is closed to new requests.
    pub batch_is_full: bool,
    /// Free rows of the request table.
    pub free_rows: u64,
    /// Free slots of the host tier.
    pub host_available: u64,
    /// Copies to the host tier whose end the loop has not looked at yet.
    pub pending_writes: u64,
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct SglangScheduler {
    config: SglangConfig,
    rules: Rules,
    slots: Slots,
    tree: Option<Cache>,
    rows: RequestRows,
    requests: Slab,
    by_id: BTreeMap<RequestId, Idx>,
    waiting: VecDeque<Idx>,
    running: Vec<Idx>,
    batch_is_full: bool,
    /// Batch of this turn.
    current: Option<Rc<Launched>>,
    /// Batch of the turn before.
    last: Option<Rc<Launched>>,
    results: VecDeque<Rc<Launched>>,
    chunked: Option<Idx>,
    ratio: NewTokenRatio,
    /// Requests queued so far.
    entries: u64,
    /// Orderings of a queue that was not empty.
    orderings: u64,
    /// Requests that the engine forgot.
    lost: Vec<Idx>,
    deferred: Option<(RequestId, Deferral)>,
    /// Pages that the rest of the machine has.
    lent: Lent,
    log: Vec<Decision>,
    detail: TurnDetail,
}

impl SglangScheduler {
    /// An idle scheduler with an empty pool.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for settings that no scheduler can be made from.
    pub fn new(config: SglangConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let rules = Rules::of(config.version);
        let page_size = config.page_size;
        let tree = match (config.prefix_cache, config.window_len()) {
            (PrefixCache::Off, _) => None,
            // A hybrid's cache knows neither strategies nor a host tier.
            (_, Some(window)) => Some(Cache::Swa(SwaTree::new(page_size, window))),
            (PrefixCache::Radix(eviction), None) => {
                let clock = rules.tree_clock();
                Some(Cache::Radix(RadixTree::new(TreeOptions { page_size, eviction, clock })))
            }
            (PrefixCache::Hierarchical(eviction, host), None) => {
                let clock = rules.tiered_tree_clock();
                let options = TreeOptions { page_size, eviction, clock };
                Some(Cache::Radix(RadixTree::with_host(options, host)))
            }
        };
        let (page, order) = (config.page_size, rules.page_free());
        let slots = match config.swa {
            Some(swa) => {
                let tokens = PerPool { full: config.pool_tokens, window: swa.pool_tokens };
                Slots::Two(SwaAllocator::new(tokens, page, order))
            }
            None => Slots::One(SlotAllocator::new(config.pool_tokens, page, order)),
        };
        Ok(Self {
            slots,
            tree,
            rows: RequestRows::new(config.request_rows, rules.row_order()),
            ratio: NewTokenRatio::new(config.conservativeness),
            rules,
            requests: Slab::default(),
            by_id: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            batch_is_full: false,
            current: None,
            last: None,
            results: VecDeque::new(),
            chunked: None,
            entries: 0,
            orderings: 0,
            lost: Vec::new(),
            deferred: None,
            lent: Lent::default(),
            log: Vec::new(),
            detail: TurnDetail::default(),
            config,
        })
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &SglangConfig {
        &self.config
    }

    /// What the latest turn looked at.
    #[must_use]
    pub const fn detail(&self) -> &TurnDetail {
        &self.detail
    }

    /// State of the pool and of the loop.
    #[must_use]
    pub fn state(&self) -> StateView {
        StateView {
            available: self.slots.available(),
            evictable: self.evictable(),
            protected: self.tree.as_ref().map_or(0, Cache::protected),
            window: self.window_use(),
            new_token_ratio: self.ratio.now(),
            batch_is_full: self.batch_is_full,
            free_rows: self.rows.available(),
            host_available: self.tiered().map_or(0, RadixTree::host_available),
            pending_writes: self.tiered().map_or(0, RadixTree::pending_writes),
        }
    }

    /// Waiting requests in queue order.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|at| self.requests[*at].id)
    }

    /// The running batch in its order.
    pub fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.running.iter().map(|at| self.requests[*at].id)
    }

    /// The request whose prompt goes on in the next batch.
    #[must_use]
    pub fn chunked(&self) -> Option<RequestId> {
        self.chunked.map(|at| self.requests[at].id)
    }

    /// The next batch.
    ///
    /// Source: SGLang `Scheduler.get_next_batch_to_run`.
    fn next_batch(&mut self) -> Result<Option<Launched>, Fatal> {
        if self.rules.polls_each_turn() {
            self.acknowledge_transfers();
        }
        let before = self.chunked;
        self.stash_chunked()?;
        self.merge_last(before);
        if self.rules.filters_each_turn() {
            self.filter_running();
        }
        if let Some(batch) = self.try_prefill()? {
            return Ok(Some(batch));
        }
        if self.running.is_empty() { Ok(None) } else { self.try_decode() }
    }

    /// Brings what was prefilled in the turn before into the running batch.
    fn merge_last(&mut self, chunked: Option<Idx>) {
        let Some(last) = self.last.as_mut().filter(|last| last.mode != Mode::Decode) else {
            return;
        };
        // The results keep theirs.
        let last = Rc::make_mut(last);
        let count = last.members.len();
        let mut members = std::mem::take(&mut last.members);
        let remembered = last.chunked;
        members.retain(|at| {
            self.requests[*at].finished.is_none() && Some(*at) != chunked && Some(*at) != remembered
        });
        if members.len() < count {
            self.batch_is_full = false;
        }
        if members.is_empty() || last.prefill_only {
            return;
        }
        if self.running.is_empty() {
            // The batch itself takes the place of the empty one, with its own flag.
            self.running = members;
            self.batch_is_full = false;
        } else {
            self.running.append(&mut members);
        }
    }

    /// Takes finished requests out of the running batch.
    fn filter_running(&mut self) {
        let count = self.running.len();
        let requests = &self.requests;
        self.running.retain(|at| requests[*at].finished.is_none());
        if self.running.len() < count {
            self.batch_is_full = false;
        }
    }

    /// The batch as the engine's loop sees it, whose results are outstanding from here on.
    fn rows_of(&mut self, batch: &Launched) -> Batch {
        let (requests, chunked) = (&mut self.requests, self.chunked);
        let row = |(place, at): (usize, &Idx)| {
            let request = &mut requests[*at];
            request.in_flight += 1;
            let decodes = place >= batch.decode_from;
            let have = request.slots.len();
            let extend = if decodes { 1 } else { request.extend };
            let more_follows = !decodes && chunked == Some(*at);
            Row { request: request.id, extend, prefix: have.saturating_sub(extend), more_follows }
        };
        Batch { mode: batch.mode, rows: batch.members.iter().enumerate().map(row).collect() }
    }

    /// Frees the places of requests that are over and in no list.
    fn sweep(&mut self) {
        if !self.requests.wants_sweep() {
            return;
        }
        let batches = self.results.iter().chain(&self.last).chain(&self.current);
        let mut kept: Vec<Idx> = batches.flat_map(|batch| batch.members.iter().copied()).collect();
        kept.extend(self.running.iter().copied());
        kept.sort_unstable();
        self.requests.sweep(&kept);
    }

    /// Work of a turn without a batch.
    ///
    /// Source: SGLang `Scheduler.self_check_during_idle`.
    fn idle(&mut self) -> Result<(), Fatal> {
        let empty = self.waiting.is_empty() && self.running.is_empty();
        if empty || !self.rules.idle_means_empty() {
            self.ratio.reset();
        }
        self.check_hybrid()
    }
}

impl Scheduler for SglangScheduler {
    fn submit(&mut self, request: NewRequest, log: &mut Vec<Decision>) {
        self.receive(request);
        log.append(&mut self.log);
    }

    fn abort(&mut self, request: RequestId, log: &mut Vec<Decision>) {
        self.give_up(request);
        log.append(&mut self.log);
    }

    fn turn(&mut self, log: &mut Vec<Decision>) -> Result<Turn, Fatal> {
        self.detail.clear();
        let batch = self.next_batch();
        let batch = self.host_death().map_or(batch, Err);
        self.tell_slots(&[]);
        log.append(&mut self.log);
        let Some(batch) = batch? else { return Ok(Turn::Idle) };
        let rows = self.rows_of(&batch);
        let batch = Rc::new(batch);
        self.results.push_back(Rc::clone(&batch));
        self.current = Some(batch);
        Ok(Turn::Run(rows))
    }

    fn results_due(&self) -> usize {
        let due = match self.config.loop_kind {
            LoopKind::Normal => self.current.is_some(),
            LoopKind::Overlap => self.last.is_some(),
        };
        usize::from(due)
    }

    fn complete(&mut self, log: &mut Vec<Decision>) -> Result<(), Fatal> {
        if self.results_due() > 0 {
            if let Some(batch) = self.results.pop_front() {
                self.process(&batch)?;
            }
        } else if self.current.is_none() {
            self.idle()?;
        }
        self.last = self.current.take();
        self.sweep();
        self.tell_slots(&[]);
        log.append(&mut self.log);
        Ok(())
    }

    fn beside(&self, batch: &Batch) -> u64 {
        // Those of the batch run from the next turn on.
        if batch.mode == Mode::Prefill { self.usage().running } else { 0 }
    }

    fn is_done(&self) -> bool {
        let running = self.running.iter().any(|at| self.requests[*at].finished.is_none());
        self.waiting.is_empty()
            && !running
            && self.results.is_empty()
            && self.chunked.is_none()
            && self.lost.is_empty()
            && self.last.as_ref().is_none_or(|last| {
                last.members.iter().all(|at| self.requests[*at].finished.is_some())
            })
    }

    fn usage(&self) -> Usage {
        let running = self.running.iter().filter(|at| self.requests[**at].finished.is_none());
        Usage {
            pool: self.config.slots() - self.lent.pages() * self.config.page_size,
            available: self.slots.available(),
            evictable: self.evictable(),
            window: self.window_use().map(PoolUse::within_pool),
            running: running.count() as u64,
            waiting: self.waiting.len() as u64,
        }
    }

    fn quiet_turns(&self) -> u64 {
        self.quiet()
    }

    fn skip(&mut self, turns: u64) {
        self.take_quiet(turns);
    }

    fn set_detail(&mut self, detail: LogDetail) {
        match detail {
            LogDetail::Slots => self.slots.keep_trace(),
            LogDetail::Decisions => {
                self.slots.count_only();
            }
        }
    }

    fn cached_slots(&self) -> Runs {
        self.tree.as_ref().map_or_else(Runs::new, |tree| tree.all_slots().ascending())
    }
}
