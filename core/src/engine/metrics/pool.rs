//! Token slots and requests over time: sums weighted with the length of each pass.

use super::summary::rounded;
use crate::{sched::Usage, units::Nanos};

/// What is summed over the passes.
#[derive(Clone, Debug, Default)]
pub(super) struct OverTime {
    /// Time in which passes ran.
    pub(super) busy: u64,
    /// Used slots × time.
    used_time: u128,
    /// Requests × time.
    running_time: u128,
    pub(super) pool: u64,
    pub(super) peak_used: u64,
    pub(super) most_running: u64,
    /// Used slots after the latest pass took its own.
    used: u64,
}

impl OverTime {
    /// One pass.
    pub(super) fn pass(&mut self, usage: &Usage, running: u64, elapsed: Nanos) {
        self.pool = usage.pool;
        self.step(usage.used(), running, elapsed.0);
    }

    fn step(&mut self, used: u64, running: u64, elapsed: u64) {
        self.busy = self.busy.saturating_add(elapsed);
        self.used_time += u128::from(used) * u128::from(elapsed);
        self.running_time += u128::from(running) * u128::from(elapsed);
        self.used = used;
        self.peak_used = self.peak_used.max(used);
        self.most_running = self.most_running.max(running);
    }

    /// Decode passes of the same requests. `crossings[i]`: how many requests take a page in every pass
    /// whose number, from 0, is `i` modulo the page size.
    ///
    /// Only the use after the last pass is told; what the pages took leads back to the first. Less before the
    /// first than after the pass before it is a result that was processed between them and gave slots back.
    /// More is growth that pages do not explain (an engine with other groups of blocks): a straight line.
    pub(super) fn quiet(
        &mut self,
        after: &Usage,
        running: u64,
        elapsed: &[Nanos],
        crossings: &[u64],
    ) {
        self.pool = after.pool;
        let (before, page) = (self.used, crossings.len() as u64);
        let whole = elapsed.len() as u64;
        let (rounds, rest) = (whole / page.max(1), elapsed.len() % crossings.len().max(1));
        let in_a_round: u64 = crossings.iter().sum();
        let pages = in_a_round * rounds + crossings.iter().take(rest).sum::<u64>();
        let start = after.used().checked_sub(pages * page).filter(|start| *start <= before);
        if let Some(mut used) = start {
            for (crossed, elapsed) in crossings.iter().cycle().zip(elapsed) {
                used += crossed * page;
                self.step(used, running, elapsed.0);
            }
            return;
        }
        let (before, growth) = (i128::from(before), i128::from(after.used()) - i128::from(before));
        for (done, elapsed) in (1..).zip(elapsed) {
            let used = before + growth * done / i128::from(whole);
            self.step(u64::try_from(used).unwrap_or_default(), running, elapsed.0);
        }
    }

    /// Mean of the used slots, in millionths of the pool.
    pub(super) fn mean_usage_ppm(&self) -> u64 {
        let whole = u128::from(self.pool) * u128::from(self.busy);
        rounded(self.used_time * 1_000_000, whole)
    }

    /// Most used slots, in millionths of the pool.
    pub(super) fn peak_usage_ppm(&self) -> u64 {
        rounded(u128::from(self.peak_used) * 1_000_000, u128::from(self.pool))
    }

    /// Mean of the requests of a pass, in thousandths.
    pub(super) fn mean_running_milli(&self) -> u64 {
        rounded(self.running_time * 1_000, u128::from(self.busy))
    }
}
