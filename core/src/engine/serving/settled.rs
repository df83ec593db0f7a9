//! Passes whose outcome in memory is known: played before, on allocators as they are now, they took nothing
//! from the device and left everything as it was. They need not be played again.

use super::pass::Pass;
use crate::units::Bytes;
use std::collections::BTreeMap;

/// What such a pass does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Play {
    /// Most that an allocator has live in it, and what it has reserved; the worst rank of each.
    pub(super) peak: Bytes,
    pub(super) reserved: Bytes,
    /// Largest request to an allocator.
    pub(super) largest: Bytes,
    /// Whether the allocators are as before.
    pub(super) settles: bool,
}

/// Most passes that are remembered.
const MOST: usize = 1 << 15;

/// Passes by what their tapes depend on. All were played in the state that the allocators are in.
#[derive(Debug, Default)]
pub(super) struct Known {
    plays: BTreeMap<Pass, Play>,
}

impl Known {
    pub(super) fn get(&self, key: &Pass) -> Option<Play> {
        self.plays.get(key).copied()
    }

    /// Notes a pass that was played; one that changed an allocator makes all others unknown.
    pub(super) fn note(&mut self, key: Pass, play: Play) {
        if !play.settles || self.plays.len() >= MOST {
            self.plays.clear();
        }
        if play.settles {
            self.plays.insert(key, play);
        }
    }
}
