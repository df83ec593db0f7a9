//! Quiet stretches: decode steps that bring each running request one token and decide nothing. They are told
//! beforehand and taken in one go, so that a run costs by what happens and not by its tokens.

use super::{
    SglangScheduler,
    config::unsigned,
    request::{Idx, Request},
};
use crate::{
    kv::Run,
    sched::{Mode, results_before_end},
};

impl SglangScheduler {
    /// Turns from here on that launch the batch of the turn before once more and decide nothing, as long as
    /// nothing arrives.
    pub(super) fn quiet(&self) -> u64 {
        if !self.repeats_the_last_batch() {
            return 0;
        }
        let to_an_end = self.running.iter().map(|at| tokens_before_end(&self.requests[*at])).min();
        self.turns_with_room(to_an_end.unwrap_or(0))
    }

    /// Whether the next turn is a decode step of the same requests, if slots and limits allow it.
    fn repeats_the_last_batch(&self) -> bool {
        // Slots by number are handed out one turn after the other.
        let counts = self.slots.counts_only();
        let idle = self.current.is_none() && self.chunked.is_none();
        let full = self.batch_is_full && self.config.priority.is_none();
        let Some(last) = &self.last else { return false };
        counts
            && idle
            && (full || self.waiting.is_empty())
            && last.mode == Mode::Decode
            && last.members == self.running
            && self.nothing_to_poll()
    }

    /// Turns, of `wanted`, before which the pool has room for a page of each request, so that nothing is
    /// evicted.
    fn turns_with_room(&self, wanted: u64) -> u64 {
        let page = self.config.page_size;
        let free = self.slots.available() / page;
        let count = self.running.len() as u64;
        let Some(spare) = free.checked_sub(count).filter(|_| count > 0) else { return 0 };
        // Each request takes one page every `page` turns: whole rounds first, then the turns of the last
        // one in which the spare pages are used up.
        let rounds = spare / count;
        if page == 1 || rounds * page >= wanted {
            return wanted.min((rounds + 1) * page);
        }
        let mut used = rounds * count;
        for turn in 0..page {
            used += self.pages_taken(turn, turn + 1);
            if used > spare {
                return wanted.min(rounds * page + turn + 1);
            }
        }
        wanted.min((rounds + 1) * page)
    }

    /// Pages that the running requests take from turn `from` up to turn `to`, counted from now.
    fn pages_taken(&self, from: u64, to: u64) -> u64 {
        let page = self.config.page_size;
        if page == 1 {
            return (to - from) * self.running.len() as u64;
        }
        let taken = |at: &Idx| {
            let len = self.requests[*at].slots.len();
            (len + to).div_ceil(page) - (len + from).div_ceil(page)
        };
        self.running.iter().map(taken).sum()
    }

    /// Takes `turns` quiet turns with their results.
    pub(super) fn take_quiet(&mut self, turns: u64) {
        let pages = self.pages_taken(0, turns);
        let fits = self.slots.take_counted(pages);
        debug_assert!(fits, "{turns} turns take {pages} pages");
        self.ratio.decay_by(turns);
        for at in &self.running {
            let request = &mut self.requests[*at];
            request.outputs += turns;
            let len = request.slots.len();
            request.slots.push(Run { first: len, len: turns });
        }
    }
}

/// Results that a request takes before one ends it; 0 where it is over or about to leave. In the overlap loop
/// a batch is launched while the last result is still to come, and then leaves out a request that this result
/// ends: one turn later in both loops.
fn tokens_before_end(request: &Request) -> u64 {
    if request.finished.is_some() || request.aborting || request.retracted {
        return 0;
    }
    let limit = unsigned(request.limit);
    results_before_end(request.outputs, limit, request.output_len, request.eos)
}
