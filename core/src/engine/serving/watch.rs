//! Who watches a run: metrics, the engine's own log lines. A watcher decides nothing.

use super::clients::Arrival;
use crate::{
    sched::{Batch, Decision, Usage},
    units::{Bytes, Nanos},
};

/// A pass as it was launched.
#[derive(Clone, Copy, Debug)]
pub struct PassSeen<'a> {
    /// Its number, from 0.
    pub step: u64,
    /// Who is in it. A row that samples brings its request a token at the end of the pass, unless the
    /// scheduler finds meanwhile that the request is over or has given its slots back.
    pub batch: &'a Batch,
    /// When it starts on the device.
    pub at: Nanos,
    /// How long it takes.
    pub elapsed: Nanos,
    /// Pool and queues once its slots are taken.
    pub usage: Usage,
    /// Requests that run and stand aside for it: it has prompt tokens alone.
    pub beside: u64,
    /// Least free device memory of any rank after it.
    pub free: Bytes,
}

/// Decode passes with the batch of the pass before them, and nothing decided between them.
#[derive(Clone, Copy, Debug)]
pub struct QuietRun<'a> {
    /// Number of the first.
    pub first_step: u64,
    /// When the first starts.
    pub at: Nanos,
    /// How long each takes; one starts when the one before it ends.
    pub elapsed: &'a [Nanos],
    /// Requests of each.
    pub requests: u64,
    /// Pool and queues once the slots of the last are taken.
    pub usage: Usage,
}

/// Told what happens, in order.
pub trait Watcher {
    /// A request reaches the scheduler.
    fn arrived(&mut self, arrival: &Arrival);

    /// The scheduler decided this at `now`: before the pass that it decides is told, or after the pass
    /// whose result it processes.
    fn decided(&mut self, decision: &Decision, now: Nanos);

    /// A pass was launched.
    fn passed(&mut self, pass: &PassSeen<'_>);

    /// Quiet decode passes followed the latest one.
    fn repeated(&mut self, run: &QuietRun<'_>);

    /// Most passes that may be told as one quiet run; a watcher that must see the pool at a certain pass
    /// answers how many lie before it.
    fn patience(&self) -> u64 {
        u64::MAX
    }
}

/// Several watchers as one; none is fine.
#[derive(Default)]
pub struct Watchers<'a>(pub Vec<&'a mut dyn Watcher>);

impl Watcher for Watchers<'_> {
    fn arrived(&mut self, arrival: &Arrival) {
        self.0.iter_mut().for_each(|one| one.arrived(arrival));
    }

    fn decided(&mut self, decision: &Decision, now: Nanos) {
        self.0.iter_mut().for_each(|one| one.decided(decision, now));
    }

    fn passed(&mut self, pass: &PassSeen<'_>) {
        self.0.iter_mut().for_each(|one| one.passed(pass));
    }

    fn repeated(&mut self, run: &QuietRun<'_>) {
        self.0.iter_mut().for_each(|one| one.repeated(run));
    }

    fn patience(&self) -> u64 {
        self.0.iter().map(|one| one.patience()).min().unwrap_or(u64::MAX)
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watcher for Unwatched {
    fn arrived(&mut self, _: &Arrival) {}

    fn decided(&mut self, _: &Decision, _: Nanos) {}

    fn passed(&mut self, _: &PassSeen<'_>) {}

    fn repeated(&mut self, _: &QuietRun<'_>) {}
}
