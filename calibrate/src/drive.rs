//! A server's loop without memory: the engine's own scheduler, one for each data-parallel rank, with passes
//! that take the model's time. For one rank it is the loop of `core::engine::serving`, and a test holds
//! the two together.
//!
//! Data-parallel ranks of a model with experts run in lockstep, for every pass exchanges tokens between them:
//! all wait for the slowest.

use plimsoll_core::{
    estimate::roofline::{StepShape, TimeModel},
    kv::Runs,
    sched::{Batch, Decision, LogDetail, Mode, NewRequest, RequestId, Scheduler, Turn},
    units::Nanos,
};
use plimsoll_ingest::measured::Request;
use std::collections::VecDeque;

/// Times of a request on the clock of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// When the loop took it.
    pub taken: Nanos,
    /// When its first token was there.
    pub first: Option<Nanos>,
    /// When its last token was there.
    pub last: Option<Nanos>,
}

/// A pass as it ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RanPass {
    /// When it began, where it did not follow the one before it: something had to arrive first.
    pub anchor: Option<Nanos>,
    /// When it ended.
    pub end: Nanos,
    /// The work of each rank that had any.
    pub shapes: Vec<StepShape>,
}

impl RanPass {
    /// Its time by a model.
    #[must_use]
    pub fn elapsed(&self, time: &TimeModel) -> Nanos {
        let all: u64 = self.shapes.iter().map(|shape| shape.tokens).sum();
        let one = |shape: &StepShape| time.step_beside(shape, all.saturating_sub(shape.tokens));
        self.shapes.iter().map(one).max().unwrap_or_default()
    }
}

/// A run: times of its requests, and its passes in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Driven {
    /// In the order of the requests.
    pub times: Vec<Times>,
    /// In the order in which they ran.
    pub passes: Vec<RanPass>,
}

impl Driven {
    /// The times of the same passes under another model: as if everybody joined the pass that he joined.
    #[must_use]
    pub fn again(&self, time: &TimeModel) -> Vec<Times> {
        let mut end = Nanos(0);
        let mut ends = Vec::with_capacity(self.passes.len());
        for pass in &self.passes {
            let start = pass.anchor.unwrap_or(end);
            end = Nanos(start.0.saturating_add(pass.elapsed(time).0));
            ends.push(end);
        }
        // Whatever happened at the end of a pass happens there again.
        let moved = |at: Nanos| {
            let pass = self.passes.binary_search_by_key(&at, |pass| pass.end);
            pass.ok().and_then(|pass| ends.get(pass)).copied().unwrap_or(at)
        };
        let each = |times: &Times| Times {
            taken: moved(times.taken),
            first: times.first.map(moved),
            last: times.last.map(moved),
        };
        self.times.iter().map(each).collect()
    }
}

/// Turns without a batch after which none follows by itself, as in the engine's loop.
const IDLE_TURNS: u32 = 3;
/// Passes after which a run is given up.
const MOST_PASSES: u64 = 20_000_000;

/// Serves `requests`, which are in the order of their arrival, until the first `until` of them are over.
/// A request that is never answered has no last token.
///
/// # Errors
///
/// What kills the scheduler, in words.
pub fn drive(
    schedulers: Vec<Box<dyn Scheduler>>,
    time: &TimeModel,
    requests: &[Request],
    until: usize,
) -> Result<Driven, String> {
    let rank = |mut scheduler: Box<dyn Scheduler>| {
        scheduler.set_detail(LogDetail::Decisions);
        Rank { scheduler, ends: VecDeque::new(), batch: None, decode: None, held: 0, waiting: 0 }
    };
    let mut run = Run {
        ranks: schedulers.into_iter().map(rank).collect(),
        time,
        requests,
        times: vec![Times::default(); requests.len()],
        sent: 0,
        prompts: 1,
        until: until.min(requests.len()),
        over: 0,
        now: Nanos(0),
        end: Nanos(0),
        log: Vec::new(),
        passes: Vec::new(),
    };
    run.serve()?;
    Ok(Driven { times: run.times, passes: run.passes })
}

struct Rank {
    scheduler: Box<dyn Scheduler>,
    /// Ends of passes whose results are outstanding.
    ends: VecDeque<Nanos>,
    /// The pass of this turn.
    batch: Option<StepShape>,
    /// The pass of this turn, where it is one of decode and may come again.
    decode: Option<StepShape>,
    /// Requests that it has, those that wait among them.
    held: u64,
    waiting: u64,
}

struct Run<'a> {
    ranks: Vec<Rank>,
    time: &'a TimeModel,
    requests: &'a [Request],
    times: Vec<Times>,
    sent: usize,
    /// First token id that no prompt has yet: prompts share nothing.
    prompts: u64,
    until: usize,
    /// Requests below `until` that are over.
    over: usize,
    now: Nanos,
    /// When the device is free.
    end: Nanos,
    log: Vec<Decision>,
    passes: Vec<RanPass>,
}

impl Run<'_> {
    fn serve(&mut self) -> Result<(), String> {
        let (mut idle, mut passes) = (0, 0_u64);
        while self.over < self.until {
            passes += 1;
            if passes > MOST_PASSES {
                return Err(format!("the requests are not served after {MOST_PASSES} passes"));
            }
            self.take();
            let ran = self.launch()?;
            let decided = self.complete()?;
            if ran || decided {
                idle = 0;
                if ran {
                    self.skip_quiet();
                }
                continue;
            }
            idle += 1;
            let done = self.ranks.iter().all(|rank| rank.scheduler.is_done());
            if idle < IDLE_TURNS && !done {
                continue;
            }
            idle = 0;
            match self.requests.get(self.sent) {
                Some(next) => self.now = self.now.max(next.arrival),
                // Whoever is left waits for ever.
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Hands over what has arrived, to the rank with the least load.
    ///
    /// Source: vLLM `DPLBAsyncMPClient.get_core_engine_for_request`: waiting × 4 + running, the first of equals.
    fn take(&mut self) {
        while let Some(request) = self.requests.get(self.sent).filter(|r| r.arrival <= self.now) {
            let load = |rank: &Rank| rank.held + 3 * rank.waiting;
            let Some(rank) = self.ranks.iter_mut().min_by_key(|rank| load(rank)) else { return };
            rank.held += 1;
            rank.waiting += 1;
            if let Some(times) = self.times.get_mut(self.sent) {
                times.taken = self.now;
            }
            let prompt = Runs::of(self.prompts, request.input);
            self.prompts += request.input;
            let id = RequestId(self.sent as u64);
            rank.scheduler.submit(NewRequest::plain(id, prompt, request.output), &mut self.log);
            self.sent += 1;
            let decided = std::mem::take(&mut self.log);
            self.note(&decided);
        }
    }

    /// Lets every rank decide its pass, and runs them together.
    fn launch(&mut self) -> Result<bool, String> {
        let mut sampled = Vec::new();
        for rank in &mut self.ranks {
            rank.batch = None;
            rank.decode = None;
            let turn = rank.scheduler.turn(&mut self.log).map_err(|fatal| format!("{fatal:?}"))?;
            for decision in &self.log {
                if matches!(decision, Decision::Admitted { .. }) {
                    rank.waiting = rank.waiting.saturating_sub(1);
                }
                if matches!(decision, Decision::Preempted { .. } | Decision::Retracted { .. }) {
                    rank.waiting += 1;
                }
            }
            let decided = std::mem::take(&mut self.log);
            let ends = decided.iter().filter(|decision| is_end(decision)).count() as u64;
            rank.held = rank.held.saturating_sub(ends);
            note(&decided, self.now, &mut self.times, &mut self.over, self.until);
            if let Turn::Run(batch) = turn {
                let shape = shape(&batch);
                rank.batch = Some(shape);
                rank.decode = (batch.mode == Mode::Decode).then_some(shape);
                let rows = batch.rows.iter().filter(|row| !row.more_follows);
                sampled.extend(rows.map(|row| row.request.0));
            }
        }
        if !self.pass(|rank| rank.batch) {
            return Ok(false);
        }
        for rank in self.ranks.iter_mut().filter(|rank| rank.batch.is_some()) {
            rank.ends.push_back(self.end);
        }
        for request in sampled {
            let at = usize::try_from(request).unwrap_or(usize::MAX);
            if let Some(times) = self.times.get_mut(at) {
                times.first.get_or_insert(self.end);
            }
        }
        Ok(true)
    }

    /// Runs a pass of all ranks; `false` where none has one. A rank without one runs an empty one beside it.
    fn pass(&mut self, of: impl Fn(&Rank) -> Option<StepShape>) -> bool {
        let shapes: Vec<StepShape> = self.ranks.iter().filter_map(of).collect();
        if shapes.is_empty() {
            return false;
        }
        let anchor = (self.passes.is_empty() || self.now > self.end).then_some(self.now);
        let mut pass = RanPass { anchor, end: Nanos(0), shapes };
        let start = anchor.unwrap_or(self.end);
        self.end = Nanos(start.0.saturating_add(pass.elapsed(self.time).0));
        pass.end = self.end;
        self.passes.push(pass);
        true
    }

    fn complete(&mut self) -> Result<bool, String> {
        let mut now = self.now;
        for rank in &mut self.ranks {
            for _ in 0..rank.scheduler.results_due() {
                now = now.max(rank.ends.pop_front().unwrap_or_default());
            }
        }
        self.now = now;
        let mut any = false;
        for rank in &mut self.ranks {
            rank.scheduler.complete(&mut self.log).map_err(|fatal| format!("{fatal:?}"))?;
            let decided = std::mem::take(&mut self.log);
            any |= decided.iter().any(|decision| !decision.is_of_slots());
            let ends = decided.iter().filter(|decision| is_end(decision)).count() as u64;
            rank.held = rank.held.saturating_sub(ends);
            note(&decided, now, &mut self.times, &mut self.over, self.until);
        }
        Ok(any)
    }

    /// Takes decode passes in one go in which nothing is decided.
    fn skip_quiet(&mut self) {
        let quiet = |rank: &Rank| match (rank.decode, rank.batch) {
            (Some(_), _) => rank.scheduler.quiet_turns(),
            (None, None) if rank.scheduler.is_done() => u64::MAX,
            _ => 0,
        };
        let most = self.ranks.iter().map(quiet).min().unwrap_or(0);
        let most = if most == u64::MAX { 0 } else { most };
        let until = self.requests.get(self.sent).map(|request| request.arrival);
        let mut turns = 0;
        while turns < most && until.is_none_or(|at| at > self.now) {
            for rank in &mut self.ranks {
                if let Some(shape) = &mut rank.decode {
                    shape.context_tokens += shape.requests;
                    shape.attention_pairs += shape.requests;
                }
            }
            if !self.pass(|rank| rank.decode) {
                return;
            }
            for rank in self.ranks.iter_mut().filter(|rank| rank.decode.is_some()) {
                rank.ends.push_back(self.end);
                self.now = self.now.max(rank.ends.pop_front().unwrap_or_default());
            }
            turns += 1;
        }
        if turns > 0 {
            let decoding = self.ranks.iter_mut().filter(|rank| rank.decode.is_some());
            decoding.for_each(|rank| rank.scheduler.skip(turns));
        }
    }

    fn note(&mut self, decided: &[Decision]) {
        note(decided, self.now, &mut self.times, &mut self.over, self.until);
    }
}

const fn is_end(decision: &Decision) -> bool {
    matches!(decision, Decision::Finished { .. } | Decision::Refused { .. })
}

/// Writes down who is over.
fn note(decided: &[Decision], now: Nanos, times: &mut [Times], over: &mut usize, until: usize) {
    for decision in decided {
        let (request, last) = match decision {
            Decision::Finished { request, .. } => (request, Some(now)),
            Decision::Refused { request, .. } => (request, None),
            _ => continue,
        };
        let at = usize::try_from(request.0).unwrap_or(usize::MAX);
        if let Some(times) = times.get_mut(at) {
            times.last = last;
            *over += usize::from(at < until);
        }
    }
}

/// The work of a pass.
fn shape(batch: &Batch) -> StepShape {
    let mut shape = StepShape { requests: batch.rows.len() as u64, ..StepShape::default() };
    for row in &batch.rows {
        shape.tokens += row.extend;
        shape.context_tokens += row.prefix + row.extend;
        shape.attention_pairs += row.extend * row.prefix + row.extend * (row.extend + 1) / 2;
        shape.logits_rows += u64::from(!row.more_follows);
    }
    shape
}
