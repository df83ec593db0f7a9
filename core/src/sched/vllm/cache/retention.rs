//! Which blocks of windows and recurrent states stay findable.

use super::{BlockCache, Group, Sequence, floor_to, index};
use crate::sched::vllm::config::GroupKind;

/// Blocks of one request and group that are registered.
pub(super) struct Retention {
    /// Blocks `i` with `i % length >= length - tail`; `None` where no distance is set.
    every: Option<(usize, usize)>,
    /// Ends, in blocks, of those before a boundary.
    ends: [usize; 2],
    /// Blocks before such an end.
    tail: usize,
    all: bool,
}

impl Retention {
    const ALL: Self = Self { every: None, ends: [0; 2], tail: 0, all: true };

    /// The same without what is kept for the prompt's own sake.
    pub(super) const fn without_boundaries(mut self) -> Self {
        self.ends = [0; 2];
        self
    }

    pub(super) fn keeps(&self, block: usize) -> bool {
        let periodic = self.every.is_some_and(|(length, tail)| block % length >= length - tail);
        let bounds = |end: &usize| block < *end && block + self.tail >= *end;
        self.all || periodic || self.ends.iter().any(bounds)
    }
}

impl BlockCache {
    /// What is kept of a group of this request.
    ///
    /// Source: vLLM 0.33.0 `SlidingWindowManager`, `MambaManager`, sparse retention.
    pub(super) fn retention(&self, of: &Sequence, group: &Group) -> Retention {
        if !self.rules.registers_sparsely() {
            return Retention::ALL;
        }
        let (tail, interval) = match (group.kind, self.retention) {
            (GroupKind::Window { window }, interval) => {
                if !self.align.is_multiple_of(group.block) {
                    return Retention::ALL;
                }
                (index((window - 1).div_ceil(group.block)), interval.or(Some(self.align)))
            }
            (GroupKind::Mamba(_), Some(interval)) => (1, Some(interval)),
            _ => return Retention::ALL,
        };
        let length = interval.filter(|n| *n > 0).map(|n| index(n / group.block));
        if length.is_some_and(|length| tail >= length) {
            return Retention::ALL;
        }
        let end = |tokens: u64| index(floor_to(tokens, self.align) / group.block);
        let boundaries = self.retention.is_some();
        let ends = match boundaries {
            true => [end(of.prompt.saturating_sub(1)), end(of.boundary)],
            false => [0; 2],
        };
        Retention { every: length.map(|length| (length, tail)), ends, tail, all: false }
    }
}
