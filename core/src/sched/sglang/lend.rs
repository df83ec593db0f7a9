//! Pages of the pool that the rest of the machine has for a while. Plimsoll's own: SGLang keeps its pool.

use std::cmp::Reverse;

use super::{SglangScheduler, intake::Entry, memory::Keep, request::Idx};
use crate::{kv::Runs, sched::Decision};

/// Lent pages, by number, in the order of lending.
#[derive(Clone, Debug, Default)]
pub(super) struct Lent {
    pages: Runs,
}

impl Lent {
    pub(super) const fn pages(&self) -> u64 {
        self.pages.len()
    }
}

impl SglangScheduler {
    /// Pages that are lent.
    #[must_use]
    pub const fn lent_pages(&self) -> u64 {
        self.lent.pages()
    }

    /// Pages of the whole pool.
    #[must_use]
    pub fn pool_pages(&self) -> u64 {
        self.config.slots() / self.config.page_size
    }

    /// Lends or takes back until `target` pages are lent, as far as that is possible now. Called between
    /// turns, with no results outstanding; asked again, it goes on.
    ///
    /// Free pages go first, then what the prefix cache keeps for nobody, then those of running requests: the
    /// one with the fewest outputs gives its slots back and waits with its outputs, like any retraction. A
    /// request whose prompt is under way keeps its pages, and those that the rest of its prompt takes: the next
    /// chunk must go on.
    pub fn set_lent(&mut self, target: u64, log: &mut Vec<Decision>) {
        let target = target.min(self.pool_pages());
        if target < self.lent.pages() {
            self.take_pages_back(self.lent.pages() - target);
        } else if target > self.lent.pages() {
            self.lend(target);
        }
        self.tell_slots(&[]);
        log.append(&mut self.log);
    }

    fn take_pages_back(&mut self, count: u64) {
        let keep = self.lent.pages() - count;
        let pages = self.lent.pages.slice(keep, self.lent.pages());
        self.lent.pages.truncate(keep);
        self.slots.take_back(&pages);
        self.batch_is_full = false;
        self.deferred = None;
        self.log.push(Decision::TakenBack { pages, lent: keep });
    }

    fn lend(&mut self, target: u64) {
        let page = self.config.page_size;
        let promised = self.promised_to_chunk();
        let wanted = (target - self.lent.pages()) * page + promised;
        self.evict_if_short(wanted);
        self.filter_running();
        let mut victims = Vec::new();
        while self.slots.available() < wanted {
            let Some(at) = self.next_to_yield() else { break };
            self.running.retain(|other| *other != at);
            self.retract_one(at);
            victims.push(at);
            self.evict_if_short(wanted);
        }
        for at in victims {
            self.enqueue(at, Entry::Again);
        }
        let most = self.slots.available().saturating_sub(promised) / page;
        let pages = self.slots.lend(most.min(target - self.lent.pages()));
        if pages.is_empty() {
            return;
        }
        self.lent.pages.extend(&pages);
        let lent = self.lent.pages();
        self.log.push(Decision::Lent { pages, lent, asked: target });
    }

    /// Slots that the rest of the prompt under way takes.
    fn promised_to_chunk(&self) -> u64 {
        let Some(at) = self.chunked else { return 0 };
        let request = &self.requests[at];
        let left = request.len().saturating_sub(request.slots.len());
        left.next_multiple_of(self.config.page_size) + self.config.page_size
    }

    /// Pages that would come back first, were `target` to be lent.
    #[must_use]
    pub fn pages_to_take_back(&self, target: u64) -> Runs {
        let lent = self.lent.pages();
        self.lent.pages.slice(target.min(lent), lent)
    }

    /// Who gives way first: fewest outputs, then the longest prompt, then the latest, as in a retraction.
    fn next_to_yield(&self) -> Option<Idx> {
        let key = |at: &&Idx| {
            let request = &self.requests[**at];
            (request.outputs, Reverse(request.prompt_len))
        };
        self.running.iter().rev().min_by_key(key).copied()
    }

    /// Takes a request's slots; it keeps its outputs and is to be queued again.
    pub(super) fn retract_one(&mut self, at: Idx) {
        let (request, outputs) = (self.requests[at].id, self.requests[at].outputs);
        let slots = self.release(at, Keep::Nothing);
        self.log.push(Decision::Retracted { request, outputs, slots });
        self.reset(at);
        self.batch_is_full = false;
    }
}
