//! The scheduler's rules that differ between releases, each with the releases in which it holds.
//!
//! Known from running the engine are 0.5.8 and 0.5.23; a release between them follows the nearer one, one
//! outside the nearest.

use super::config::FinishKey;
use crate::{
    kv::{PageFree, RowOrder, TreeClock},
    policy::sglang::version::Version,
};

/// Rules of one release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    version: Version,
}

impl Rules {
    pub(super) const fn of(version: Version) -> Self {
        Self { version }
    }

    /// Whether the release is nearer to 0.5.23 than to 0.5.8.
    const fn late(self) -> bool {
        self.version.since(5, 16)
    }

    /// Key of a finished request. Source: `RadixCache.cache_finished_req`; prompt and outputs in 0.4.6,
    /// 0.5.2 and 0.5.23, what the last prefill covered in 0.5.8.
    pub(super) const fn finish_key(self) -> FinishKey {
        if self.late() || !self.version.since(5, 6) {
            FinishKey::Committed
        } else {
            FinishKey::Filled
        }
    }

    /// After an insert the request moves to the inserted path without a second match, the prompt is split
    /// off, and duplicates are freed node by node. Source: 0.5.23 `UnifiedRadixCache`.
    pub(super) const fn inserts_in_place(self) -> bool {
        self.late()
    }

    /// Requests that ignore the end of sequence are estimated at their full limit. Source: 0.5.23
    /// `PrefillAdder`.
    pub(super) const fn full_estimate_without_eos(self) -> bool {
        self.late()
    }

    /// Each request is charged a page on top. Source: 0.5.23 `PrefillBudget`.
    pub(super) const fn charges_extra_page(self) -> bool {
        self.late()
    }

    /// One memory test under the lock, then the input limit where prompts are not cut; a spent budget
    /// stops before the next request is matched. Source: 0.5.23 `PrefillAdder.add_one_req`.
    pub(super) const fn asks_before_matching(self) -> bool {
        self.late()
    }

    /// The end of a chunk stands on a page, not its length. Source: 0.5.23 `PrefillAdder.add_one_req`.
    pub(super) const fn aligns_chunk_end(self) -> bool {
        self.late()
    }

    /// A full batch is full only while something runs or was admitted; before, an idle server that
    /// refused its first request hangs. Source: 0.5.23 `Scheduler.get_new_batch_prefill`.
    pub(super) const fn idle_batch_is_never_full(self) -> bool {
        self.late()
    }

    /// Finished requests leave the running batch at each turn. Source: 0.5.23
    /// `Scheduler.get_next_batch_to_run`.
    pub(super) const fn filters_each_turn(self) -> bool {
        self.late()
    }

    /// A request between chunks keeps its row. Source: 0.5.23 `ScheduleBatch.prepare_for_extend`.
    pub(super) const fn chunks_keep_row(self) -> bool {
        self.late()
    }

    /// Rows that are taken. Source: `ReqToTokenPool.alloc`.
    pub(super) const fn row_order(self) -> RowOrder {
        if self.late() { RowOrder::FromBack } else { RowOrder::FromFront }
    }

    /// The need of a decode step goes by the slots that exist, not by the outputs that are known. Source:
    /// 0.5.23 `ScheduleBatch.new_tokens_required_next_decode`.
    pub(super) const fn need_by_committed(self) -> bool {
        self.late()
    }

    /// The last request of a batch that cannot go on is aborted, before: the scheduler dies. Source:
    /// 0.5.23 `ScheduleBatch.retract_decode`.
    pub(super) const fn aborts_the_last(self) -> bool {
        self.late()
    }

    /// Running requests join a prefill batch only where their next slots fit. Source: 0.5.23
    /// `ScheduleBatch.mix_with_running`.
    pub(super) const fn mixes_with_check(self) -> bool {
        self.late()
    }

    /// The limit of new tokens is never negative and fits the pool with the prompt. Source: 0.5.23
    /// `Scheduler`, request intake.
    pub(super) const fn limit_fits_pool(self) -> bool {
        self.late()
    }

    /// At every 32nd ordering the head of the queue refreshes its prefixes in the cache. Source: 0.5.23
    /// `SchedulePolicy.calc_priority`.
    pub(super) const fn refreshes_queue(self) -> bool {
        self.late()
    }

    /// The longest prefix counts to the prompt's last token but one. Source: 0.5.23 `SchedulePolicy`.
    pub(super) const fn caps_sorted_match(self) -> bool {
        self.late()
    }

    /// Eviction is asked for what is missing, before: for all that is needed. Source:
    /// `mem_cache.common.evict_from_tree_cache`.
    pub(super) const fn evicts_shortfall(self) -> bool {
        self.late()
    }

    /// An idle server counts its window pool and ends itself where that does not add up. Source: 0.5.8
    /// `SchedulerRuntimeCheckerMixin`; later releases were not run with one.
    pub(super) const fn counts_window_when_idle(self) -> bool {
        !self.late()
    }

    /// A finished request whose window slots are all gone is cached nevertheless, and counted as if it had
    /// them (pages longer than the window). Source: 0.5.8 `SWARadixCache._insert_helper`; later releases
    /// keep count, which is taken as not caching it.
    pub(super) const fn caches_without_window(self) -> bool {
        !self.late()
    }

    /// A retracted request forgets what it gave back of its window and how often it was decoded. Source:
    /// 0.5.23 `Req.reset_for_retract`; 0.5.8 keeps both, so that its next life gives back too early.
    pub(super) const fn forgets_window(self) -> bool {
        self.late()
    }

    /// Order in which pages return. Source: `PagedTokenToKVPoolAllocator.free`.
    pub(super) const fn page_free(self) -> PageFree {
        if self.late() { PageFree::InPlace } else { PageFree::Ascending }
    }

    /// Clock of the prefix cache.
    pub(super) const fn tree_clock(self) -> TreeClock {
        if self.late() { TreeClock::PerNode } else { TreeClock::PerCall }
    }

    /// Clock of the prefix cache with a host tier. Source: `HiRadixCache`; from 0.5.23 as the plain tree's.
    pub(super) const fn tiered_tree_clock(self) -> TreeClock {
        if self.late() { TreeClock::PerNode } else { TreeClock::PerVisit }
    }

    /// A request is one hit of a node, however often it inserts it; before, an insert is one unless the
    /// prompt goes on. Source: 0.5.23 `UnifiedRadixCache`, `cache_inserted_len`.
    pub(super) const fn counts_hits_once(self) -> bool {
        self.late()
    }

    /// Transfers between the tiers are looked at in every turn; before, only when a prefill is tried, so
    /// that their locks last while the queue is empty or the batch full. Source: 0.5.23
    /// `Scheduler.get_next_batch_to_run`; `Scheduler.get_new_batch_prefill`.
    pub(super) const fn polls_each_turn(self) -> bool {
        self.late()
    }

    /// Requests that the token in flight ends are left out of the next decode (overlap loop), and the step
    /// is skipped rather than that others are retracted for them. Source: 0.5.23
    /// `Scheduler.update_running_batch`.
    pub(super) const fn leaves_out_ending(self) -> bool {
        self.late()
    }

    /// An aborted request stops before its next chunk. Source: 0.5.23 `Scheduler`.
    pub(super) const fn abort_stops_chunks(self) -> bool {
        self.late()
    }

    /// The ratio starts again only when nothing waits either. Source: 0.5.23 `Scheduler`, idle work.
    pub(super) const fn idle_means_empty(self) -> bool {
        self.late()
    }

    /// A last token that is both the end of sequence and the last that is allowed counts as the end of
    /// sequence; before, as the limit. Source: ends recorded from 0.5.23
    /// (`tests/oracle/sched.rs`).
    pub(super) const fn stop_before_length(self) -> bool {
        self.late()
    }

    /// A prompt that is under way goes on although as many requests run as may. Source: 0.5.23
    /// `Scheduler.get_new_batch_prefill`; in 0.5.8 the case does not arise.
    pub(super) const fn chunk_passes_limit(self) -> bool {
        self.late()
    }

    /// Free rows limit the requests of a batch. Source: 0.5.23 `Scheduler.get_num_allocatable_reqs`.
    pub(super) const fn rows_limit_batch(self) -> bool {
        self.late()
    }
}
