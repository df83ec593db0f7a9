//! Connections of clients whose number is limited: the semaphore of a benchmark client.

use plimsoll_core::units::Nanos;
use std::collections::VecDeque;

/// Connections of a part of the workload.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    /// Not used yet.
    fresh: u64,
    /// When those that were used are free again, ascending.
    free_at: VecDeque<Nanos>,
}

impl Connections {
    pub(super) const fn new(fresh: u64) -> Self {
        Self { fresh, free_at: VecDeque::new() }
    }

    /// When one is free; `None`: all are under way.
    pub(super) fn next(&self) -> Option<Nanos> {
        if self.fresh > 0 { Some(Nanos(0)) } else { self.free_at.front().copied() }
    }

    pub(super) fn take(&mut self) {
        match self.fresh.checked_sub(1) {
            Some(rest) => self.fresh = rest,
            None => {
                self.free_at.pop_front();
            }
        }
    }

    /// One is free from then on.
    pub(super) fn give_back(&mut self, free: Nanos) {
        let at = self.free_at.partition_point(|time| *time <= free);
        self.free_at.insert(at, free);
    }
}

/// When one of these is free, where they are limited; `None`: all are under way.
pub(super) fn free(connections: Option<&Connections>) -> Option<Nanos> {
    connections.map_or(Some(Nanos(0)), Connections::next)
}
