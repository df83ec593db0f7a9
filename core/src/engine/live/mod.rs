//! The life of a server whose passes are really computed: requests come from outside, tokens from a model,
//! and what happened is recorded so that it can be decided again elsewhere.
//!
//! The scheduler is the one that the simulator drives. What it decides depends on its settings, on the
//! inputs (requests, requests given up, pages to lend) with the turn before which each came, and on the tokens
//! that were made. All three stand in the log: [`Inputs`] holds them when they are read back, and the same loop over a
//! body that repeats the recorded tokens makes the same decisions.

mod inputs;
mod log;
mod settings;
#[cfg(test)]
mod tests;

pub use inputs::{Input, Inputs, InputsError, Pages, Repeated};
pub use settings::{LiveSettings, RULES, SettingsError};

use crate::{
    decision::{DecisionSink, Field, Record},
    engine::serving::{Arrival, PassSeen, Watcher},
    kv::Runs,
    sched::{
        Batch, Decision, Fatal, Made, Mode, RequestId, Scheduler, Turn, Usage,
        sglang::{ConfigError, SglangConfig, SglangScheduler},
    },
    units::{Bytes, Nanos},
};
use log::{LiveLog, Pass};

/// One request's part of a pass.
#[derive(Clone, Copy, Debug)]
pub struct LiveRow<'a> {
    /// Who.
    pub request: RequestId,
    /// Ids of all its tokens, prompt and outputs.
    pub ids: &'a Runs,
    /// Slots of the tokens up to the end of this pass.
    pub slots: &'a Runs,
    /// Tokens whose keys and values exist.
    pub prefix: u64,
    /// Tokens after them that are computed now.
    pub extend: u64,
    /// Whether its next token is made.
    pub samples: bool,
}

/// Why a body cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyError {
    /// The pass could not be computed: a mistake of the plan, or a device that is gone.
    #[error("{0}")]
    Failed(String),
    /// Memory that was to be taken back is not there. Nothing has changed.
    #[error("the machine does not give the memory back: {0}")]
    NoMemory(String),
    /// A recording has no more tokens.
    #[error("the recording ends here")]
    EndOfRecording,
}

/// What computes passes and holds the pool's memory.
pub trait Body {
    /// Time since the server was ready.
    fn now(&mut self) -> Nanos;

    /// Computes a pass: one token for each row that samples, in the order of the rows, into `made`.
    ///
    /// # Errors
    ///
    /// [`BodyError`]; the server is over then.
    fn step(&mut self, rows: &[LiveRow<'_>], made: &mut Vec<Made>) -> Result<(), BodyError>;

    /// Gives the memory of pages, which nobody uses, to the rest of the machine.
    ///
    /// # Errors
    ///
    /// [`BodyError::Failed`].
    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError>;

    /// Takes the memory of lent pages again.
    ///
    /// # Errors
    ///
    /// [`BodyError::NoMemory`] where it is not there.
    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError>;
}

/// Why the loop ended by itself.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LiveError {
    /// The scheduler.
    #[error(transparent)]
    Scheduler(#[from] Fatal),
    /// The body.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Whom a turn concerns beside the engine.
pub struct Around<'a> {
    /// Computes.
    pub body: &'a mut dyn Body,
    /// Keeps the log.
    pub sink: &'a mut dyn DecisionSink,
    /// Hears everything.
    pub watcher: &'a mut dyn Watcher,
}

/// What a turn did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// A pass.
    Pass,
    /// No pass, but the next turn may have one.
    GoesOn,
    /// Nothing: until something comes from outside there is nothing to do.
    Nothing,
}

/// Sums of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveTotals {
    /// Turns of the loop.
    pub turns: u64,
    /// Passes.
    pub steps: u64,
    /// Of them with prompt tokens.
    pub prefill_steps: u64,
    /// Tokens made.
    pub made: u64,
}

/// The loop.
#[derive(Debug)]
pub struct Live {
    scheduler: SglangScheduler,
    log: LiveLog,
    decisions: Vec<Decision>,
    made: Vec<Made>,
    totals: LiveTotals,
    /// Pages that are to be lent.
    target: u64,
    /// Turns in a row that did and decided nothing.
    idle: u32,
}

/// Turns without a pass after which none follows by itself, and with an empty queue no further one changes
/// anything: a batch that was full is found empty in one turn and filled in the next.
const IDLE_TURNS: u32 = 3;

impl Live {
    /// An idle server.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(config: SglangConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            // A scheduler that nobody asks for a detail knows its slots by number, as a model needs them.
            scheduler: SglangScheduler::new(config)?,
            log: LiveLog::default(),
            decisions: Vec::new(),
            made: Vec::new(),
            totals: LiveTotals::default(),
            target: 0,
            idle: 0,
        })
    }

    /// A request comes in. `about` is what else is recorded of it; nothing is decided by that.
    pub fn submit(&mut self, arrival: Arrival, about: Vec<Field>, around: &mut Around<'_>) {
        around.watcher.arrived(&arrival);
        self.log.arrived(&arrival, self.totals.turns, about, around.sink);
        self.scheduler.submit(arrival.request, &mut self.decisions);
        self.tell(around);
    }

    /// Nobody waits for a request any more.
    pub fn abort(&mut self, request: RequestId, around: &mut Around<'_>) {
        if self.scheduler.ids(request).is_none() {
            return;
        }
        let record = Record::new("given_up").with("request", request.0);
        self.log.push(record.with("turn", self.totals.turns), around.sink);
        self.scheduler.abort(request, &mut self.decisions);
        self.tell(around);
    }

    /// From here on `target` pages of the pool are to be lent. Answers whether the machine had the memory
    /// that was to be taken back; otherwise nothing has changed.
    ///
    /// # Errors
    ///
    /// [`LiveError::Body`].
    pub fn lend(&mut self, target: u64, around: &mut Around<'_>) -> Result<bool, LiveError> {
        let target = target.min(self.scheduler.pool_pages());
        if target == self.target {
            return Ok(true);
        }
        let back = self.scheduler.pages_to_take_back(target);
        if !back.is_empty() {
            match around.body.take_back(&back) {
                Ok(()) => {}
                Err(BodyError::NoMemory(_)) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.target = target;
        let record = Record::new("lend").with("turn", self.totals.turns);
        self.log.push(record.with("target_pages", target), around.sink);
        self.lend_on(around)?;
        Ok(true)
    }

    /// Goes on lending what could not be lent before.
    fn lend_on(&mut self, around: &mut Around<'_>) -> Result<(), LiveError> {
        if self.scheduler.lent_pages() == self.target {
            return Ok(());
        }
        self.scheduler.set_lent(self.target, &mut self.decisions);
        let lent: Vec<Runs> = self.decisions.iter().filter_map(lent_pages).collect();
        self.tell(around);
        for pages in lent {
            around.body.lend(&pages)?;
        }
        Ok(())
    }

    /// One turn: decides, computes, takes the results.
    ///
    /// # Errors
    ///
    /// [`LiveError`]; the server is over then.
    pub fn turn(&mut self, around: &mut Around<'_>) -> Result<Did, LiveError> {
        self.totals.turns += 1;
        self.lend_on(around)?;
        let turn = self.scheduler.turn(&mut self.decisions);
        let mut decided = self.tell(around);
        let ran = match turn? {
            Turn::Run(batch) => {
                self.pass(&batch, around)?;
                true
            }
            Turn::Idle => false,
        };
        let completed = self.scheduler.complete(&mut self.decisions);
        decided |= self.tell(around);
        completed?;
        if ran || decided {
            self.idle = 0;
            return Ok(if ran { Did::Pass } else { Did::GoesOn });
        }
        self.idle = self.idle.saturating_add(1);
        Ok(if self.idle < IDLE_TURNS { Did::GoesOn } else { Did::Nothing })
    }

    /// Stands for idle turns up to `turn`.
    fn idle_until(&mut self, turn: u64) {
        self.totals.turns = self.totals.turns.max(turn);
    }

    fn pass(&mut self, batch: &Batch, around: &mut Around<'_>) -> Result<(), LiveError> {
        let scheduler = &self.scheduler;
        let empty = Runs::new();
        let rows = batch.rows.iter().map(|row| LiveRow {
            request: row.request,
            ids: scheduler.ids(row.request).unwrap_or(&empty),
            slots: scheduler.slots(row.request).unwrap_or(&empty),
            prefix: row.prefix,
            extend: row.extend,
            samples: !row.more_follows,
        });
        let rows: Vec<LiveRow<'_>> = rows.collect();
        let at = around.body.now();
        self.made.clear();
        around.body.step(&rows, &mut self.made)?;
        let elapsed = Nanos(around.body.now().0.saturating_sub(at.0));
        let usage = self.scheduler.usage();
        let beside = self.scheduler.beside(batch);
        self.log.pass(
            Pass {
                step: self.totals.steps,
                mode: batch.mode,
                requests: batch.rows.len() as u64,
                tokens: batch.tokens(),
                prefix_tokens: batch.prefix_tokens(),
                at,
                elapsed,
                usage,
            },
            &self.made,
            around.sink,
        );
        let (step, free) = (self.totals.steps, Bytes::ZERO);
        around.watcher.passed(&PassSeen { step, batch, at, elapsed, usage, beside, free });
        for made in &self.made {
            self.scheduler.bring(*made);
        }
        self.totals.steps += 1;
        self.totals.made += self.made.len() as u64;
        self.totals.prefill_steps += u64::from(batch.mode != Mode::Decode);
        Ok(())
    }

    /// Logs and tells what was decided. Answers whether anything was.
    fn tell(&mut self, around: &mut Around<'_>) -> bool {
        if self.decisions.is_empty() {
            return false;
        }
        let now = around.body.now();
        for decision in self.decisions.drain(..) {
            self.log.decision(&decision, self.totals.steps, now, around.sink);
            around.watcher.decided(&decision, now);
        }
        true
    }

    /// Writes what is still open of the log: a stretch of decoding becomes a record when it ends.
    pub fn close(&mut self, sink: &mut dyn DecisionSink) {
        self.log.close(sink);
    }

    /// Whether no request waits, runs or has a result outstanding.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.scheduler.is_done()
    }

    /// Use of pool and queues.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.scheduler.usage()
    }

    /// Pages that are lent.
    #[must_use]
    pub const fn lent_pages(&self) -> u64 {
        self.scheduler.lent_pages()
    }

    /// Sums.
    #[must_use]
    pub const fn totals(&self) -> LiveTotals {
        self.totals
    }

    /// Tokens of the longest prompt that is served.
    #[must_use]
    pub fn longest_prompt(&self) -> u64 {
        self.scheduler.longest_prompt()
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &SglangConfig {
        self.scheduler.config()
    }
}

fn lent_pages(decision: &Decision) -> Option<Runs> {
    match decision {
        Decision::Lent { pages, .. } => Some(pages.clone()),
        _ => None,
    }
}
