//! Quiet stretches of decode: passes that repeat the one before them, with nothing decided, allocated or
//! changed between. They are taken in one go, and leave the log, the totals and the memory as if each had
//! been taken by itself.

use super::{PassRecord, QuietRun, ServeEnd, Server, TimedChange, When, largest, pass::Pass};
use crate::{
    estimate::roofline::StepShape,
    units::{Bytes, Nanos},
};

/// Whether quiet stretches are skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// They are, where the backend has nothing to do in them.
    #[default]
    Skipping,
    /// Every pass is taken by itself.
    Stepped,
}

/// Most passes taken in one go: bounds the list of their times.
const MOST: u64 = 1 << 16;

/// A decode pass after which the allocators were as before it: played again, with buffers of the same sizes,
/// it takes nothing from the device and has the same peak.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) pass: Pass,
    pub(super) shape: StepShape,
    pub(super) peak: Bytes,
    pub(super) reserved: Bytes,
}

impl Server<'_, '_> {
    /// Takes the quiet passes that follow now.
    pub(super) fn skip_quiet(&mut self) -> Result<(), ServeEnd> {
        let Some(settled) = self.settled.filter(|_| self.parts.pace == Pace::Skipping) else {
            return Ok(());
        };
        let most = self.most_quiet(&settled);
        if most == 0 {
            return Ok(());
        }
        let first_at = self.next_launch();
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        let settled = self.run_quiet(settled, most, &mut times);
        let turns = times.len() as u64;
        if turns > 0 {
            self.parts.scheduler.skip(turns);
            self.note_quiet(&settled, first_at, &times)?;
            self.settled = Some(settled);
        }
        self.times = times;
        Ok(())
    }

    /// Passes that may be taken in one go, if nothing arrives and the machine stays as it is.
    fn most_quiet(&self, settled: &Settled) -> u64 {
        let steps = self.totals.steps;
        let to_change = match self.next_change() {
            Some(TimedChange { when: When::Step(step), .. }) => step.saturating_sub(steps),
            _ => u64::MAX,
        };
        let most = [
            self.parts.limits.max_steps.saturating_sub(steps),
            to_change,
            self.backend.idle_passes(),
            self.parts.tapes.repeats(&settled.pass),
            MOST,
        ];
        let most = most.into_iter().min().unwrap_or(0);
        if most == 0 {
            return 0;
        }
        most.min(self.parts.scheduler.quiet_turns()).min(self.parts.watcher.patience())
    }

    /// Runs up to `most` passes on the clock, until a request arrives or the machine changes. Their times go
    /// to `times`.
    fn run_quiet(&mut self, mut settled: Settled, most: u64, times: &mut Vec<Nanos>) -> Settled {
        let change = match self.next_change() {
            Some(TimedChange { when: When::At(at), .. }) => Some(*at),
            _ => None,
        };
        let until = self.parts.clients.next_at().into_iter().chain(change).min();
        let requests = settled.shape.requests;
        for _ in 0..most {
            // What is looked at before every turn.
            let due = until.is_some_and(|at| at <= self.now);
            if due || self.now > self.parts.limits.max_time {
                break;
            }
            let shape = &mut settled.shape;
            shape.context_tokens += requests;
            shape.attention_pairs += requests;
            settled.pass.prefix_tokens += requests;
            settled.pass.longest += 1;
            let elapsed = self.parts.time.time(shape);
            let at = self.next_launch();
            self.ends.push_back(Nanos(at.0.saturating_add(elapsed.0)));
            let done = self.ends.pop_front().unwrap_or_default();
            self.now = self.now.max(done);
            times.push(elapsed);
        }
        settled
    }

    fn note_quiet(
        &mut self,
        settled: &Settled,
        first_at: Nanos,
        times: &[Nanos],
    ) -> Result<(), ServeEnd> {
        let turns = times.len() as u64;
        let total = Nanos(times.iter().fold(0_u64, |sum, time| sum.saturating_add(time.0)));
        self.backend.skip(turns, total);
        let usage = self.parts.scheduler.usage();
        self.totals.see(usage);
        let free = self.least_free()?;
        self.totals.see_free(free);
        self.see_largest(&settled.pass);
        let last = times.last().copied().unwrap_or_default();
        let (first_step, requests) = (self.totals.steps, settled.pass.requests);
        let record = PassRecord {
            step: first_step + turns - 1,
            mode: settled.pass.mode,
            requests,
            tokens: settled.pass.tokens,
            prefix_tokens: settled.pass.prefix_tokens,
            at: Nanos(first_at.0.saturating_add(total.0 - last.0)),
            elapsed: last,
            measured: None,
            usage,
            free,
            peak: settled.peak,
            reserved: settled.reserved,
        };
        self.log.quiet(&record, (first_step, first_at));
        let run = QuietRun { first_step, at: first_at, elapsed: times, requests, usage };
        self.parts.watcher.repeated(&run);
        self.totals.steps += turns;
        self.totals.decode_steps += turns;
        Ok(())
    }

    /// The largest request of the last pass, which is that of them all: buffers only grow.
    fn see_largest(&mut self, pass: &Pass) {
        if self.parts.tapes.repeats(pass) < u64::MAX {
            let largest = largest(&self.parts.tapes.tapes(pass));
            self.totals.see_request(largest);
        }
    }

    /// When a pass that is launched now starts on the device.
    pub(super) fn next_launch(&self) -> Nanos {
        self.now.max(self.ends.back().copied().unwrap_or_default())
    }

    fn next_change(&self) -> Option<&TimedChange> {
        self.parts.changes.get(self.next_change)
    }
}
