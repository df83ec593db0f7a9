//! The life of a server from the moment when it is ready: requests, passes, memory, and its end.
//!
//! One loop for every backend. The scheduler decides whom a pass serves, the tapes what it allocates, the
//! allocator and the backend whether that can be had; ranks go in lockstep, and the first that fails takes
//! the server down.

mod cascade;
mod changes;
mod clients;
mod log;
mod moves;
mod pass;
mod quiet;
mod rank_memory;
mod served;
mod settled;
mod slot_log;
#[cfg(test)]
mod tests;
mod watch;

pub use cascade::{ServerProcesses, Wording};
pub use changes::{Change, TimedChange, When};
pub use clients::{Arrival, Clients, Sampling, SamplingChoice};
pub(super) use log::{Stamp, decision_record, flat};
pub use pass::{Pass, PassTapes, PassTime};
pub use quiet::Pace;
pub use rank_memory::OutOfMemoryAt;
pub use served::{Limit, PassFailure, ServeEnd, Served, Totals};
pub use watch::{PassSeen, QuietRun, Unwatched, Watcher, Watchers};

use crate::{
    backend::{Backend, BackendError, Rank, StepWork},
    decision::{DecisionSink, Record},
    memory::{
        caching_allocator::{AddressOrder, History, Options, Setup},
        ledger::Account,
    },
    sched::{Batch, Decision, Finish, LogDetail, Mode, RequestId, Scheduler, Turn},
    tape::Tape,
    units::{Bytes, Nanos},
};
use cascade::Moment;
use log::{PassRecord, ServingLog};
use pass::Demand;
use quiet::Settled;
use rank_memory::{PassStopped, RankMemory};
use settled::{Known, Play};
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// What a run may at most take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Passes.
    pub max_steps: u64,
    /// Time since the server was ready.
    pub max_time: Nanos,
}

/// What a run depends on beside its machine.
pub struct Serving<'a> {
    /// Whom a pass serves.
    pub scheduler: &'a mut dyn Scheduler,
    /// Who sends requests.
    pub clients: &'a mut dyn Clients,
    /// What a pass allocates.
    pub tapes: &'a mut dyn PassTapes,
    /// How long a pass takes.
    pub time: &'a dyn PassTime,
    /// What happens to the machine, in the order of happening.
    pub changes: &'a [TimedChange],
    /// Options of the caching allocator.
    pub options: Options,
    /// Who words an out-of-memory error.
    pub wording: Wording,
    /// Where the run stops.
    pub limits: Limits,
    /// How much the log tells.
    pub detail: LogDetail,
    /// Bytes of a token in the host tier of one rank; 0 where there is none.
    pub host_token: Bytes,
    /// Whether quiet stretches are skipped; the log is the same.
    pub pace: Pace,
    /// Told everything; decides nothing.
    pub watcher: &'a mut dyn Watcher,
    /// Asked before every turn: whether the user wants the run to end here.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// Serves until every request is answered, or something ends it.
pub fn serve(
    backend: &mut dyn Backend,
    serving: Serving<'_>,
    sink: &mut dyn DecisionSink,
) -> Served {
    let mut server = Server::new(backend, serving, sink);
    let end = server.run();
    server.close(end)
}

struct Server<'m, 'a> {
    backend: &'m mut dyn Backend,
    parts: Serving<'a>,
    log: ServingLog<'m>,
    ranks: Vec<RankMemory>,
    /// Whether the allocators of all ranks are alike: they began so, and were always answered the same.
    alike: bool,
    /// Of requests that ask for more than the next token.
    demands: BTreeMap<RequestId, Demand>,
    decisions: Vec<Decision>,
    totals: Totals,
    /// Time of the engine's loop: what has happened by now is known to it.
    now: Nanos,
    /// Ends of the passes whose results are outstanding, ascending. The device runs them one after the
    /// other.
    ends: VecDeque<Nanos>,
    next_change: usize,
    /// Passes that need not be played.
    known: Known,
    /// The latest pass, where it could be repeated.
    settled: Option<Settled>,
    /// Times of the passes of a quiet stretch; kept for its room.
    times: Vec<Nanos>,
    /// Turns in a row that did and decided nothing.
    idle: u32,
}

/// Turns without a batch after which none follows by itself. The overlap loop may still have a result to
/// process, and a running batch that was full is found empty in one turn and filled in the next.
const IDLE_TURNS: u32 = 3;

/// The largest request of a pass to an allocator.
fn largest(tapes: &[Rc<Tape>]) -> Bytes {
    let largest = tapes.iter().filter_map(|tape| tape.largest());
    largest.map(|live| live.bytes).max().unwrap_or_default()
}

/// What a turn left to do.
enum Next {
    GoOn,
    End(ServeEnd),
}

impl From<BackendError> for ServeEnd {
    fn from(error: BackendError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl<'m, 'a> Server<'m, 'a> {
    fn new(
        backend: &'m mut dyn Backend,
        parts: Serving<'a>,
        sink: &'m mut dyn DecisionSink,
    ) -> Self {
        let (mut ranks, mut alike, mut first) = (Vec::new(), true, None);
        for rank in (0..backend.ranks()).map(Rank) {
            let total = backend.memory(rank).ok().and_then(|reading| reading.total);
            alike &= *first.get_or_insert(total) == total;
            let setup = Setup {
                options: parts.options.clone(),
                device_total: total.unwrap_or_default().0,
                order: AddressOrder::Logical,
                history: History::Off,
            };
            ranks.push(RankMemory::new(rank, setup));
        }
        parts.scheduler.set_detail(parts.detail);
        let usage = parts.scheduler.usage();
        let totals = Totals { pool_tokens: usage.pool, usage, ..Totals::default() };
        Self {
            backend,
            parts,
            log: ServingLog::new(sink),
            ranks,
            alike,
            demands: BTreeMap::new(),
            decisions: Vec::new(),
            totals,
            now: Nanos(0),
            ends: VecDeque::new(),
            next_change: 0,
            known: Known::default(),
            settled: None,
            times: Vec::new(),
            idle: 0,
        }
    }

    fn run(&mut self) -> ServeEnd {
        loop {
            if (self.parts.interrupted)() {
                return ServeEnd::Interrupted;
            }
            if self.totals.steps >= self.parts.limits.max_steps {
                return ServeEnd::Limit(Limit::Steps);
            }
            if self.now > self.parts.limits.max_time {
                return ServeEnd::Limit(Limit::Time);
            }
            match self.turn().and_then(|next| self.skip_quiet().map(|()| next)) {
                Ok(Next::GoOn) => {}
                Ok(Next::End(end)) | Err(end) => return end,
            }
        }
    }

    /// One turn of the engine's loop.
    fn turn(&mut self) -> Result<Next, ServeEnd> {
        self.apply_changes()?;
        self.take_arrivals()?;
        let turn = self.parts.scheduler.turn(&mut self.decisions);
        let step = self.totals.steps;
        self.write_decisions(step)?;
        let ran = match turn.map_err(ServeEnd::Fatal)? {
            Turn::Run(batch) => {
                self.execute(&batch)?;
                true
            }
            Turn::Idle => false,
        };
        // The loop waits for the results that it processes. In an overlap loop they are those of the pass
        // before, and the one that was just launched is still to run.
        for _ in 0..self.parts.scheduler.results_due() {
            let end = self.ends.pop_front().unwrap_or_default();
            self.now = self.now.max(end);
        }
        // What completing brings belongs to the turn of the pass that was just launched.
        let completed = self.parts.scheduler.complete(&mut self.decisions);
        let decided = self.write_decisions(step)?;
        completed.map_err(ServeEnd::Fatal)?;
        if ran || decided {
            self.idle = 0;
            return Ok(Next::GoOn);
        }
        self.idle += 1;
        if self.idle < IDLE_TURNS && !self.parts.scheduler.is_done() {
            return Ok(Next::GoOn);
        }
        self.idle = 0;
        Ok(self.wait())
    }

    /// Nothing can be done now: goes on to what happens next, or ends.
    fn wait(&mut self) -> Next {
        let next = self.parts.clients.next_at();
        if self.parts.scheduler.is_done() && self.parts.clients.is_done() {
            return Next::End(ServeEnd::Finished);
        }
        match next {
            Some(at) => {
                // Changes of the machine up to then come first, in their own time.
                let change = self.parts.changes.get(self.next_change).map(|change| change.when);
                let at = match change {
                    Some(When::At(change)) if change < at => change,
                    _ => at,
                };
                self.now = self.now.max(at);
                Next::GoOn
            }
            None => Next::End(ServeEnd::Hung),
        }
    }

    fn take_arrivals(&mut self) -> Result<(), ServeEnd> {
        while let Some(arrival) = self.parts.clients.take(self.now) {
            self.parts.watcher.arrived(&arrival);
            let request = arrival.request;
            let end = request.prompt.len();
            let logprobs = request.logprob_start.map(|start| (start, end));
            self.log.arrived(&request, arrival.at);
            let demand = Demand { sampling: arrival.sampling, logprobs };
            if demand != Demand::default() {
                self.demands.insert(request.id, demand);
            }
            self.parts.scheduler.submit(request, &mut self.decisions);
            self.write_decisions(self.totals.steps)?;
        }
        Ok(())
    }

    /// Writes what was decided for `step`, moves KV where that was decided, and tells the clients. Answers
    /// whether anything was: slots that change hands are no decision.
    fn write_decisions(&mut self, step: u64) -> Result<bool, ServeEnd> {
        let mut decisions = std::mem::take(&mut self.decisions);
        for decision in &decisions {
            self.log.decision(decision, step, self.now);
            self.totals.count(decision);
            self.move_kv(decision)?;
            self.parts.watcher.decided(decision, self.now);
            let over = match decision {
                Decision::Finished { request, finish, outputs } => {
                    Some((*request, *finish, *outputs))
                }
                Decision::Refused { request, .. } => Some((*request, Finish::Abort, 0)),
                _ => None,
            };
            if let Some((request, finish, outputs)) = over {
                self.demands.remove(&request);
                self.parts.clients.finished(request, finish, outputs, self.now);
            }
        }
        let decided = decisions.iter().any(|decision| !decision.is_of_slots());
        // The list keeps its room.
        decisions.clear();
        self.decisions = decisions;
        Ok(decided)
    }

    fn execute(&mut self, batch: &Batch) -> Result<(), ServeEnd> {
        let (pass, shape) = Pass::of(batch, &self.demands);
        let usage = self.parts.scheduler.usage();
        self.totals.see(usage);
        self.totals.largest_chunk = self.totals.largest_chunk.max(pass.tokens);
        self.settled = None;
        let Play { peak, reserved, settles, .. } = self.allocate(&pass)?;
        let time = self.parts.time.time(&shape);
        let (mode, tokens, requests) = (pass.mode, pass.tokens, pass.requests);
        let beside = self.parts.scheduler.beside(batch);
        let report = self.backend.execute(&StepWork { mode, tokens, requests, time })?;
        let at = self.next_launch();
        self.ends.push_back(Nanos(at.0.saturating_add(report.elapsed.0)));
        let free = self.least_free()?;
        self.totals.see_free(free);
        if settles && mode == Mode::Decode {
            self.settled = Some(Settled { pass, shape, peak, reserved });
        }
        self.log.pass(PassRecord {
            step: self.totals.steps,
            mode,
            requests,
            tokens,
            prefix_tokens: pass.prefix_tokens,
            at,
            elapsed: report.elapsed,
            measured: report.measured,
            usage,
            free,
            peak,
            reserved,
        });
        self.parts.watcher.passed(&PassSeen {
            step: self.totals.steps,
            batch,
            at,
            elapsed: report.elapsed,
            usage,
            beside,
            free,
        });
        self.totals.steps += 1;
        match mode {
            Mode::Prefill | Mode::Mixed => self.totals.prefill_steps += 1,
            Mode::Decode => self.totals.decode_steps += 1,
        }
        Ok(())
    }

    /// What the pass allocates and frees, on every rank.
    fn allocate(&mut self, pass: &Pass) -> Result<Play, ServeEnd> {
        let key = self.parts.tapes.key(pass);
        let play = match self.known.get(&key) {
            Some(play) => play,
            None => {
                let tapes = self.parts.tapes.tapes(pass);
                let largest = largest(&tapes);
                // Of a pass that fails, too.
                self.totals.see_request(largest);
                let settles = self.play(pass, &tapes)?;
                let (peak, reserved) = self.peaks();
                let play = Play { peak, reserved, largest, settles };
                self.known.note(key, play);
                play
            }
        };
        self.totals.see_request(play.largest);
        Ok(play)
    }

    /// Plays a pass on every rank; the first that fails ends the server. Answers whether every allocator is
    /// as it was before.
    ///
    /// A pass that asks the first rank's device for nothing and leaves its allocator as it was does the same on
    /// every rank whose allocator is alike: there it need not be played.
    fn play(&mut self, pass: &Pass, tapes: &[Rc<Tape>]) -> Result<bool, ServeEnd> {
        let mut changes = Vec::new();
        let mut settles = true;
        for at in 0..self.ranks.len() {
            let done = at > 0 && self.alike && settles && self.ranks[0].answers().is_empty();
            if done {
                break;
            }
            let rank = Rank(u32::try_from(at).unwrap_or(u32::MAX));
            let played = self.ranks[at].play(self.backend, tapes, &mut changes);
            settles &= changes.is_empty() && self.ranks[at].restores();
            for change in changes.drain(..) {
                self.log.segment(rank, self.totals.steps, change);
            }
            match played {
                Ok(()) => {}
                Err(PassStopped::Lost(why)) => return Err(ServeEnd::Lost(why)),
                Err(PassStopped::OutOfMemory(refused)) => {
                    let (mode, tokens, requests) = (pass.mode, pass.tokens, pass.requests);
                    let failure = PassFailure { refused: *refused, mode, tokens, requests };
                    return Err(ServeEnd::OutOfMemory(Box::new(failure)));
                }
            }
        }
        let answers = |at: usize| self.ranks.get(at).map(RankMemory::answers);
        self.alike &= (1..self.ranks.len()).all(|at| answers(at) == answers(0))
            || answers(0).is_some_and(<[u64]>::is_empty);
        Ok(settles)
    }

    fn peaks(&mut self) -> (Bytes, Bytes) {
        let mut worst = (Bytes::ZERO, Bytes::ZERO);
        for rank in &mut self.ranks {
            let (peak, reserved) = rank.take_peak();
            worst = (worst.0.max(peak), worst.1.max(reserved));
        }
        self.totals.peak_allocated = self.totals.peak_allocated.max(worst.0);
        self.totals.peak_reserved = self.totals.peak_reserved.max(worst.1);
        worst
    }

    fn least_free(&mut self) -> Result<Bytes, ServeEnd> {
        let mut least = None;
        for rank in (0..self.backend.ranks()).map(Rank) {
            let free = self.backend.memory(rank)?.free;
            least = Some(least.map_or(free, |least: Bytes| least.min(free)));
        }
        Ok(least.unwrap_or_default())
    }

    fn apply_changes(&mut self) -> Result<(), ServeEnd> {
        while let Some(change) = self.parts.changes.get(self.next_change) {
            let due = match change.when {
                When::At(at) => at <= self.now,
                When::Step(step) => step <= self.totals.steps,
            };
            if !due {
                return Ok(());
            }
            self.next_change += 1;
            match change.change {
                Change::DeviceOthers { rank, held } => self.set_others(Some(rank), held)?,
                Change::HostOthers { held } => self.set_others(None, held)?,
                Change::Leak { rank, bytes } => self.leak(rank, bytes)?,
            }
        }
        Ok(())
    }

    /// Other programs take what they ask for, or what there is.
    fn set_others(&mut self, rank: Option<Rank>, asked: Bytes) -> Result<(), ServeEnd> {
        let mut set = |held: Bytes| match rank {
            Some(rank) => self.backend.set_others(rank, held),
            None => self.backend.set_host_others(held),
        };
        let (held, refused) = match set(asked) {
            Ok(()) => (asked, None),
            Err(
                BackendError::OutOfMemory { requested, free, .. }
                | BackendError::HostOutOfMemory { requested, free, .. },
            ) => {
                // `requested` is what they wanted more than before.
                let held = asked.saturating_sub(requested).saturating_add(free);
                set(held)?;
                (held, Some(free))
            }
            Err(other) => return Err(other.into()),
        };
        let new = |kind| rank.map_or_else(|| Record::new(kind), |rank| Record::of(kind, rank));
        let when =
            |record: Record, step: u64, now: Nanos| record.with("step", step).with("at_ns", now.0);
        let (step, now) = (self.totals.steps, self.now);
        let kind = if rank.is_some() { "tenant_changed" } else { "host_tenant_changed" };
        self.log.push(when(new(kind), step, now).with("held_bytes", held.0));
        if let Some(free) = refused {
            let record = when(new("tenant_refused"), step, now);
            self.log.push(record.with("asked_bytes", asked.0).with("free_bytes", free.0));
        }
        Ok(())
    }

    /// The server loses memory; once nothing is left, nothing more is lost.
    fn leak(&mut self, rank: Rank, bytes: Bytes) -> Result<(), ServeEnd> {
        let free = self.backend.memory(rank)?.free;
        let bytes = bytes.min(free);
        if bytes == Bytes::ZERO {
            return Ok(());
        }
        let place = crate::backend::Place::Device;
        self.backend.allocate(rank, Account::Unaccounted, place, bytes)?;
        let record = Record::of("leaked", rank).with("step", self.totals.steps);
        self.log.push(record.with("at_ns", self.now.0).with("size_bytes", bytes.0));
        Ok(())
    }

    /// Writes the end, and how the failure went through the server.
    fn close(mut self, end: ServeEnd) -> Served {
        self.totals.at = self.now;
        self.totals.usage = self.parts.scheduler.usage();
        match &end {
            ServeEnd::OutOfMemory(failure) => self.close_out_of_memory(failure),
            ServeEnd::Fatal(fatal) => {
                let record = Record::new("scheduler_fatal")
                    .with("code", fatal.code)
                    .with("message", fatal.message.as_str())
                    .with("step", self.totals.steps)
                    .with("at_ns", self.now.0);
                self.log.push(record);
                self.fall(Rank(0), fatal.code);
            }
            ServeEnd::Lost(why) => {
                self.log.push(Record::new("device_lost").with("message", why.as_str()));
                self.fall(Rank(0), "device lost");
            }
            ServeEnd::Finished | ServeEnd::Hung | ServeEnd::Limit(_) | ServeEnd::Interrupted => {
                if self.parts.detail == LogDetail::Slots {
                    self.log.cached(&self.parts.scheduler.cached_slots());
                }
            }
        }
        let usage = self.totals.usage;
        self.log.push(
            Record::new("run_ended")
                .with("outcome", end.name())
                .with("at_ns", self.now.0)
                .with("steps", self.totals.steps)
                .with("finished", self.totals.finished)
                .with("running", usage.running)
                .with("waiting", usage.waiting)
                .with("used_tokens", usage.used()),
        );
        Served { end, totals: self.totals }
    }

    fn close_out_of_memory(&mut self, failure: &PassFailure) {
        self.peaks();
        let when = Moment {
            step: self.totals.steps,
            at: self.now,
            mode: failure.mode,
            tokens: failure.tokens,
            requests: failure.requests,
        };
        let refused = &failure.refused;
        self.log.push(cascade::out_of_memory(refused, self.parts.wording, &when));
        for record in cascade::ledgers(self.backend) {
            self.log.push(record);
        }
        self.log.push(cascade::step_failed(&when));
        let why = format!("{} in {}", self.parts.wording.exception(), failure.mode.name());
        self.fall(refused.rank, &why);
    }

    /// The process tree falls.
    fn fall(&mut self, first: Rank, why: &str) {
        let (ranks, wording) = (self.backend.ranks(), self.parts.wording);
        for record in cascade::process_tree(first, ranks, why, wording) {
            self.log.push(record);
        }
        let usage = self.parts.scheduler.usage();
        self.log.push(
            Record::new("server_ended")
                .with("by", wording.scheduler(first).as_str())
                .with("running", usage.running)
                .with("waiting", usage.waiting)
                .with("finished", self.totals.finished),
        );
    }
}
