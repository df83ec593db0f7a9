//! The scheduler's rules that differ between releases, each with the releases in which it holds.
//!
//! Known from running the engine are 0.11.2, 0.19.0 and 0.33.0. A rule that changed between two of them is
//! dated to the later one: a release between follows the earlier, one outside the nearest.

use super::config::{AdmissionGate, LoopKind};
use crate::{kv::blocks::Release, policy::sglang::version::Version};

/// Rules of one release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    version: Version,
}

impl Rules {
    pub(super) const fn of(version: Version) -> Self {
        Self { version }
    }

    /// Default loop. Source: `VllmConfig.__post_init__`; on by default by 0.15.
    pub(super) const fn loop_kind(self) -> LoopKind {
        if self.version.since(15, 0) { LoopKind::Asynchronous } else { LoopKind::Synchronous }
    }

    /// Default admission. Source: 0.19.0 `SchedulerConfig.scheduler_reserve_full_isl`.
    pub(super) const fn gate(self) -> AdmissionGate {
        if self.has_gate() { AdmissionGate::WholeSequence } else { AdmissionGate::NextChunk }
    }

    /// Admission may ask for the whole sequence. Source: 0.19.0 `KVCacheManager.allocate_slots`.
    pub(super) const fn has_gate(self) -> bool {
        self.version.since(19, 0)
    }

    /// That question counts no more of a window or chunk than can be held at once. Source: 0.33.0
    /// `SlidingWindowManager`, admission cap.
    pub(super) const fn gate_knows_windows(self) -> bool {
        self.version.since(33, 0)
    }

    /// A share of the pool stays free at admission. Source: 0.33.0 `KVCacheManager`.
    pub(super) const fn has_watermark(self) -> bool {
        self.version.since(33, 0)
    }

    /// Where free blocks go. Source: `BlockPool.free_blocks`.
    pub(super) const fn release(self) -> Release {
        if self.version.since(33, 0) { Release::UnfoundFirst } else { Release::Back }
    }

    /// Blocks that a hit does not need are never held, and those needed are counted by what is held.
    /// Before, they are touched and dropped at the next turn. Source: 0.19.0
    /// `SingleTypeKVCacheManager.get_num_blocks_to_allocate`.
    pub(super) const fn nulls_skipped_hits(self) -> bool {
        self.version.since(19, 0)
    }

    /// Tokens in flight still need their blocks. Source: 0.33.0 `KVCacheManager.allocate_slots`.
    pub(super) const fn keeps_blocks_in_flight(self) -> bool {
        self.version.since(33, 0)
    }

    /// A request whose first blocks were refused leaves an empty table behind. Source: 0.11.2
    /// `SingleTypeKVCacheManager.get_num_blocks_to_allocate`.
    pub(super) const fn failure_leaves_table(self) -> bool {
        !self.version.since(19, 0)
    }

    /// Recurrent states: latest state only, kept where chunks end. Source: 0.19.0 `MambaManager`.
    pub(super) const fn skips_states(self) -> bool {
        self.version.since(19, 0)
    }

    /// States inside a chunk, given-back entries that stay so, and a table that need not grow. Source:
    /// 0.33.0 `MambaManager`.
    pub(super) const fn has_checkpoints(self) -> bool {
        self.version.since(33, 0)
    }

    /// Any kinds of groups are searched until all agree. Source: 0.19.0 `HybridKVCacheCoordinator`.
    pub(super) const fn joins_many_kinds(self) -> bool {
        self.version.since(19, 0)
    }

    /// A hit ends where the blocks of all groups end. Source: 0.19.0
    /// `SingleTypeKVCacheManager.find_longest_cache_hit`.
    pub(super) const fn aligns_hits(self) -> bool {
        self.version.since(19, 0)
    }

    /// A kind of full attention that was searched clips by what it found, before: by its block. Source:
    /// 0.33.0 `HybridKVCacheCoordinator.find_longest_cache_hit`.
    pub(super) const fn clips_by_found(self) -> bool {
        self.version.since(33, 0)
    }

    /// Windows and states are registered sparsely, in steps of all groups; what another group found
    /// further on is a boundary. Source: 0.33.0 `KVCacheCoordinator.cache_blocks`.
    pub(super) const fn registers_sparsely(self) -> bool {
        self.version.since(33, 0)
    }

    /// A prompt beyond the turn's budget stops admission where prompts are not cut; before, those behind it
    /// are tried, and the ones left out return in reversed order. Source: `Scheduler.schedule`.
    pub(super) const fn whole_prompt_stops(self) -> bool {
        self.version.since(19, 0)
    }

    /// The limit for long prompts holds only where there is another request, and may adapt. Source: 0.33.0
    /// `Scheduler.schedule`.
    pub(super) const fn threshold_needs_others(self) -> bool {
        self.version.since(33, 0)
    }

    /// A request whose last token is in flight is passed over; before, its limit clips what is new. Source:
    /// 0.19.0 `Scheduler.schedule`.
    pub(super) const fn passes_over_ending(self) -> bool {
        self.version.since(19, 0)
    }

    /// A preempted request's tokens in flight count no more. Source: 0.33.0 `Scheduler._preempt_request`.
    pub(super) const fn stales_preempted(self) -> bool {
        self.version.since(33, 0)
    }

    /// By priority, the place in the running list follows every victim before it, and who preempted itself
    /// does not end the phase. Source: 0.33.0 `Scheduler.schedule`.
    pub(super) const fn follows_victims(self) -> bool {
        self.version.since(33, 0)
    }

    /// Prompts may go on in some turns only. Source: 0.33.0 `Scheduler`, `prefill_schedule_interval`.
    pub(super) const fn paces_prefills(self) -> bool {
        self.version.since(33, 0)
    }

    /// Leading blocks that all running requests share are counted. Source: to 0.19.0
    /// `KVCacheManager.get_num_common_prefix_blocks`; 0 in 0.33.0.
    pub(super) const fn counts_common_prefix(self) -> bool {
        !self.version.since(33, 0)
    }

    /// With work left, an empty batch is not waited for. Source: 0.33.0 `EngineCore.step_with_batch_queue`.
    pub(super) const fn waits_while_work(self) -> bool {
        self.version.since(33, 0)
    }
}
