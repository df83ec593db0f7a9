//! What SGLang's scheduler prints while it serves.
//!
//! A prefill line is written when its batch is chosen, before the batch takes its slots. A decode line is written
//! at every so-many-th processed result of a decode pass, once the slots of those that ended are free. A watcher sees
//! the pool only when a pass has its slots: the state before is what its batch took less. That is exact but for two
//! cases. Where requests ended and a prefill follows, cached tokens that it finds count as locked by nobody before;
//! where requests were retracted in between, what they gave back counts as theirs alone.

use super::{
    Lines,
    forms::{DecodeLine, PrefillLine, RetractLine, WindowUse},
};
use plimsoll_core::{
    engine::serving::{Arrival, PassSeen, QuietRun},
    policy::sglang::version::Version,
    sched::{Batch, Decision, Mode, PoolUse, RequestId, Row, Usage, sglang::NewTokenRatio},
    units::Nanos,
};
use std::collections::VecDeque;

/// What the lines of a server depend on.
#[derive(Clone, Debug)]
pub(super) struct SglangSetup {
    pub(super) version: Version,
    pub(super) page_size: u64,
    /// Whether a result is processed while the next pass runs.
    pub(super) overlap: bool,
    /// `--decode-log-interval`.
    pub(super) interval: u64,
    pub(super) conservativeness: f64,
    /// Largest batch that decodes in a graph.
    pub(super) largest_decode_graph: u64,
    /// Most tokens of a prefill that runs in a graph.
    pub(super) largest_prefill_graph: u64,
}

/// A pass whose result is not processed.
#[derive(Clone, Copy, Debug)]
struct Launched {
    decodes: bool,
    requests: u64,
    end: Nanos,
}

/// A decode line whose use of the pool is not known yet.
#[derive(Clone, Debug)]
struct Due {
    line: DecodeLine,
    at: Nanos,
    /// Whether requests ended in its result.
    freed: bool,
    /// Lines that follow it.
    later: Vec<(Nanos, String)>,
}

/// Writes the lines.
#[derive(Clone, Debug)]
pub(super) struct SglangLines {
    setup: SglangSetup,
    launched: VecDeque<Launched>,
    passes: u64,
    /// End of the latest pass.
    end: Nanos,
    usage: Usage,
    due: Option<Due>,
    /// Processed decode results.
    decoded: u64,
    /// Tokens since the latest decode line, and when that was.
    generated: u64,
    decode_line_at: Nanos,
    prefill_line_at: Nanos,
    prefill_tokens: u64,
    /// Requests that join the next batch with what they find in the cache, and when that was decided.
    admitted: Vec<(RequestId, u64)>,
    admitted_at: Nanos,
    /// Whose prompt goes on.
    continuing: Option<RequestId>,
    ratio: NewTokenRatio,
    /// Requests and slots that were taken back since the latest pass.
    retracted: (u64, u64),
    /// The same as long as no warning told them.
    untold: (u64, u64),
    queue: Queue,
}

impl SglangLines {
    pub(super) fn new(setup: SglangSetup) -> Self {
        let ratio = NewTokenRatio::new(setup.conservativeness);
        Self {
            setup,
            launched: VecDeque::new(),
            passes: 0,
            end: Nanos(0),
            usage: Usage::default(),
            due: None,
            decoded: 0,
            generated: 0,
            decode_line_at: Nanos(0),
            prefill_line_at: Nanos(0),
            prefill_tokens: 0,
            admitted: Vec::new(),
            admitted_at: Nanos(0),
            continuing: None,
            ratio,
            retracted: (0, 0),
            untold: (0, 0),
            queue: Queue::default(),
        }
    }

    pub(super) fn arrived(&mut self, arrival: &Arrival) {
        self.queue.arrived(arrival.request.id, arrival.request.prompt.len());
    }

    pub(super) fn decided(&mut self, decision: &Decision, now: Nanos, out: &mut Lines) {
        match decision {
            Decision::Admitted { request, prefix, .. } => {
                self.admitted.push((*request, *prefix));
                self.admitted_at = now;
                self.queue.left(*request);
            }
            Decision::Retracted { request, outputs, slots }
            | Decision::Preempted { request, outputs, slots, .. } => {
                self.retracted.0 += 1;
                self.retracted.1 += slots;
                self.queue.back(*request, *outputs);
                if matches!(decision, Decision::Retracted { .. }) {
                    self.untold.0 += 1;
                    self.untold.1 += slots;
                }
            }
            Decision::Ratio { new_token_ratio } => self.warn(*new_token_ratio, now, out),
            Decision::Finished { request, .. } => {
                self.queue.left(*request);
                if let Some(due) = &mut self.due {
                    due.freed = true;
                }
            }
            Decision::Refused { request, .. } => self.queue.left(*request),
            Decision::Deferred { .. }
            | Decision::Evicted { .. }
            | Decision::BackedUp { .. }
            | Decision::LoadedBack { .. }
            | Decision::EvictedHost { .. }
            | Decision::Lent { .. }
            | Decision::TakenBack { .. }
            | Decision::SlotsTaken { .. }
            | Decision::SlotsFreed { .. } => {}
        }
    }

    /// The warning of a retraction.
    fn warn(&mut self, after: f64, now: Nanos, out: &mut Lines) {
        let (requests, slots) = std::mem::take(&mut self.untold);
        let before = self.ratio.now();
        let text = RetractLine { requests, slots, before, after }.text(self.setup.version);
        self.ratio = self.ratio.at(after);
        match &mut self.due {
            Some(due) => due.later.push((now, text)),
            None => out.say(now, &text),
        }
    }

    pub(super) fn passed(&mut self, pass: &PassSeen<'_>, out: &mut Lines) {
        let (batch, usage) = (pass.batch, pass.usage);
        let taken: u64 = batch.rows.iter().map(|row| self.slots_of(row)).sum();
        let before = usage.used().saturating_sub(taken);
        self.usage.pool = usage.pool;
        if pass.at > self.end {
            // The server was idle: nothing is outstanding.
            while let Some(done) = self.launched.pop_front() {
                self.processed(done);
            }
            self.ratio.reset();
        }
        let cached = self.cached(batch);
        self.tell_due(before.saturating_sub(cached) + self.retracted.1, out);
        match batch.mode {
            Mode::Decode if self.retracted.0 == 0 => self.ratio.decay(),
            Mode::Decode => {}
            Mode::Prefill | Mode::Mixed => self.tell_prefill(batch, &usage, before, out),
        }
        self.continuing = batch.rows.iter().find(|row| row.more_follows).map(|row| row.request);
        self.admitted.clear();
        (self.retracted, self.usage) = ((0, 0), usage);
        self.launch(batch.mode == Mode::Decode, batch.rows.len() as u64, pass.at, pass.elapsed);
    }

    pub(super) fn repeated(&mut self, run: &QuietRun<'_>, out: &mut Lines) {
        self.tell_due(self.usage.used(), out);
        let mut at = run.at;
        for (left, elapsed) in (1..=run.elapsed.len()).rev().zip(run.elapsed) {
            if left == 1 {
                self.usage = run.usage;
            }
            self.ratio.decay();
            self.launch(true, run.requests, at, *elapsed);
            at = self.end;
            if left > 1 {
                self.tell_due(self.usage.used(), out);
            }
        }
    }

    /// Passes up to the one at which the next decode line looks at the pool.
    pub(super) const fn patience(&self) -> u64 {
        self.setup.interval - self.decoded % self.setup.interval
    }

    /// No pass follows: `usage` is what is left.
    pub(super) fn ended(&mut self, usage: Usage, out: &mut Lines) {
        while let Some(done) = self.launched.pop_front() {
            self.tell_due(self.usage.used(), out);
            self.processed(done);
        }
        self.tell_due(usage.used(), out);
    }

    fn launch(&mut self, decodes: bool, requests: u64, at: Nanos, elapsed: Nanos) {
        self.end = Nanos(at.0.saturating_add(elapsed.0));
        self.passes += 1;
        self.launched.push_back(Launched { decodes, requests, end: self.end });
        let outstanding = usize::from(self.setup.overlap);
        if self.launched.len() > outstanding
            && let Some(done) = self.launched.pop_front()
        {
            self.processed(done);
        }
    }

    fn processed(&mut self, done: Launched) {
        if !done.decodes {
            return;
        }
        self.decoded += 1;
        self.generated += done.requests;
        if !self.decoded.is_multiple_of(self.setup.interval) {
            return;
        }
        let throughput = per_second(self.generated, self.decode_line_at, done.end);
        (self.generated, self.decode_line_at) = (0, done.end);
        let line = DecodeLine {
            iter: self.passes,
            running: done.requests,
            tokens: 0,
            usage: 0.0,
            window: None,
            graph: done.requests <= self.setup.largest_decode_graph,
            throughput,
            queue: self.usage.waiting,
        };
        self.due = Some(Due { line, at: done.end, freed: false, later: Vec::new() });
    }

    /// Writes the decode line that is due; `after_frees` is the use of the pool if its result freed slots.
    fn tell_due(&mut self, after_frees: u64, out: &mut Lines) {
        let Some(due) = self.due.take() else { return };
        let used = if due.freed { after_frees } else { self.usage.used() };
        let (usage, window) = (self.share(used), self.usage.window.map(|it| window_use(it, 0)));
        let line = DecodeLine { tokens: used, usage, window, ..due.line };
        out.say(due.at, &line.text(self.setup.version));
        due.later.iter().for_each(|(at, text)| out.say(*at, text));
    }

    fn tell_prefill(&mut self, batch: &Batch, usage: &Usage, before: u64, out: &mut Lines) {
        let rows = || batch.rows.iter().filter(|row| self.joins(row));
        let page = self.setup.page_size;
        let new_token = rows().map(|row| row.extend.div_ceil(page) * page).sum();
        let tokens: u64 = rows().map(|row| row.extend).sum();
        let decoding = batch.rows.len() as u64 - rows().count() as u64;
        let rest = rows()
            .filter(|row| row.more_follows)
            .map(|row| self.queue.length(row.request).saturating_sub(row.prefix + row.extend));
        let line = PrefillLine {
            iter: self.passes + 1,
            new_seq: rows().count() as u64,
            new_token,
            cached_token: self.cached(batch),
            usage: self.share(before),
            window: usage.window.map(|it| window_use(it, usage.used().saturating_sub(before))),
            running: usage.running.max(decoding),
            queue: usage.waiting,
            pending_token: self.queue.tokens + rest.sum::<u64>(),
            graph: batch.mode == Mode::Prefill && tokens <= self.setup.largest_prefill_graph,
            throughput: per_second(self.prefill_tokens, self.prefill_line_at, self.admitted_at),
        };
        (self.prefill_tokens, self.prefill_line_at) = (new_token, self.admitted_at);
        out.say(self.admitted_at, &line.text(self.setup.version));
    }

    /// Whether the row belongs to a request that joins: the others of a mixed batch decode.
    fn joins(&self, row: &Row) -> bool {
        self.admitted.iter().any(|(request, _)| *request == row.request)
    }

    /// Tokens that the joining requests found in the cache; a prompt that goes on has found its own already.
    fn cached(&self, batch: &Batch) -> u64 {
        if batch.mode == Mode::Decode {
            return 0;
        }
        let new = self.admitted.iter().filter(|(request, _)| Some(*request) != self.continuing);
        new.map(|(_, prefix)| *prefix).sum()
    }

    /// Slots that a row takes: whole pages.
    const fn slots_of(&self, row: &Row) -> u64 {
        let page = self.setup.page_size;
        ((row.prefix + row.extend).div_ceil(page) - row.prefix.div_ceil(page)) * page
    }

    fn share(&self, used: u64) -> f64 {
        used as f64 / self.usage.pool.max(1) as f64
    }
}

/// Use of the window pool before `taken` slots of it were taken.
fn window_use(window: PoolUse, taken: u64) -> WindowUse {
    let tokens = window.used().saturating_sub(taken);
    WindowUse { tokens, usage: tokens as f64 / window.pool.max(1) as f64 }
}

/// Tokens of the requests that wait.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// Prompt and outputs of each request, by number, and whether it waits.
    requests: Vec<(u64, bool)>,
    prompts: Vec<u64>,
    tokens: u64,
}

impl Queue {
    fn arrived(&mut self, request: RequestId, prompt: u64) {
        if request.0 == self.requests.len() as u64 {
            self.requests.push((prompt, true));
            self.prompts.push(prompt);
            self.tokens += prompt;
        }
    }

    fn left(&mut self, request: RequestId) {
        if let Some((length, waits @ true)) = self.of(request) {
            *waits = false;
            let length = *length;
            self.tokens -= length;
        }
    }

    fn back(&mut self, request: RequestId, outputs: u64) {
        let at = usize::try_from(request.0).unwrap_or(usize::MAX);
        let prompt = self.prompts.get(at).copied().unwrap_or_default();
        if let Some((length, waits @ false)) = self.of(request) {
            (*length, *waits) = (prompt + outputs, true);
            self.tokens += prompt + outputs;
        }
    }

    fn length(&self, request: RequestId) -> u64 {
        let at = usize::try_from(request.0).unwrap_or(usize::MAX);
        self.requests.get(at).map_or(0, |(length, _)| *length)
    }

    fn of(&mut self, request: RequestId) -> Option<(&mut u64, &mut bool)> {
        let at = usize::try_from(request.0).ok()?;
        self.requests.get_mut(at).map(|(length, waits)| (length, waits))
    }
}

/// Tokens a second between two moments; 0 where no time went by.
fn per_second(tokens: u64, from: Nanos, to: Nanos) -> f64 {
    match to.0.saturating_sub(from.0) {
        0 => 0.0,
        nanos => tokens as f64 / (nanos as f64 / 1e9),
    }
}
