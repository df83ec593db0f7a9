//! A KV group as its rules see it.

use super::super::config::{GroupKind, GroupSpec, StateMode};
use crate::kv::blocks::Space;

/// Rounds down to a multiple of `unit`, which is at least 1.
pub(in super::super) const fn floor_to(count: u64, unit: u64) -> u64 {
    count / unit * unit
}

/// A group's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) at: usize,
    pub(super) kind: GroupKind,
    pub(super) block: u64,
    /// Keys of its whole blocks.
    pub(super) space: Space,
    /// Most blocks that one request holds at once, where that is asked at admission.
    pub(super) most: Option<u64>,
}

impl Group {
    pub(super) fn new(at: usize, spec: GroupSpec, unit: u64) -> Self {
        let group = u32::try_from(at).unwrap_or(u32::MAX);
        let space = Space { group, coarse: spec.block_size != unit };
        Self { at, kind: spec.kind, block: spec.block_size, space, most: None }
    }

    /// Blocks of `tokens`.
    pub(super) const fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block)
    }

    pub(super) const fn is_mamba(&self) -> bool {
        matches!(self.kind, GroupKind::Mamba(_))
    }

    /// Whether it keeps the latest state only.
    pub(super) const fn aligns(&self) -> bool {
        matches!(self.kind, GroupKind::Mamba(StateMode::Align { .. }))
    }

    /// Alignment of states inside a chunk, where it has them.
    pub(super) const fn checkpoints(&self) -> Option<u64> {
        match self.kind {
            GroupKind::Mamba(StateMode::Align { checkpoints }) => checkpoints,
            _ => None,
        }
    }

    /// Leading tokens that a request with `computed` tokens needs no more.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.get_num_skipped_tokens`.
    const fn skipped_tokens(&self, computed: u64, skips_states: bool) -> u64 {
        match self.kind {
            GroupKind::Full => 0,
            GroupKind::Window { window } => (computed + 1).saturating_sub(window),
            GroupKind::Chunked { chunk } => floor_to(computed, chunk),
            GroupKind::Mamba(_) if skips_states => computed.saturating_sub(1),
            GroupKind::Mamba(_) => 0,
        }
    }

    /// Whole blocks of these tokens.
    pub(super) fn skipped(&self, computed: u64, skips_states: bool) -> usize {
        index(self.skipped_tokens(computed, skips_states) / self.block)
    }
}

/// A count as a place in a list.
pub(super) fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
