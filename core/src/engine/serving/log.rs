//! Records of a running server. Decode passes that follow each other with nothing between become one
//! record, so that a log is as long as what happened and not as the time it took.

use crate::{
    backend::Rank,
    decision::{DecisionSink, Record},
    kv::Runs,
    memory::ledger::Account,
    sched::{Decision, Mode, NewRequest, Usage},
    units::{Bytes, Nanos},
};

pub(in crate::engine) use super::slot_log::flat;
use super::{rank_memory::SegmentChange, slot_log::SlotChanges};

/// What is recorded of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PassRecord {
    pub(super) step: u64,
    pub(super) mode: Mode,
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) prefix_tokens: u64,
    pub(super) at: Nanos,
    pub(super) elapsed: Nanos,
    pub(super) measured: Option<Nanos>,
    pub(super) usage: Usage,
    /// Least free memory over the ranks, after the pass.
    pub(super) free: Bytes,
    /// Most that an allocator had live in the pass, and what it has reserved; the worst rank of each.
    pub(super) peak: Bytes,
    pub(super) reserved: Bytes,
}

/// Consecutive decode passes.
struct Run {
    first: PassRecord,
    last: PassRecord,
    steps: u64,
    elapsed: u64,
    measured: Option<u64>,
    peak: Bytes,
    /// Slots that changed hands up to the last of them.
    slots: SlotChanges,
}

/// Writes records in order and joins quiet decode passes.
pub(super) struct ServingLog<'a> {
    sink: &'a mut dyn DecisionSink,
    run: Option<Run>,
    /// Slots that changed hands since the last pass. They break no run of decode passes: they become part
    /// of it, or stand before the next record.
    slots: SlotChanges,
}

impl<'a> ServingLog<'a> {
    pub(super) fn new(sink: &'a mut dyn DecisionSink) -> Self {
        Self { sink, run: None, slots: SlotChanges::default() }
    }

    /// Writes a record after whatever is still open.
    pub(super) fn push(&mut self, record: Record) {
        self.close_run();
        self.slots.write(self.sink);
        self.sink.record(record);
    }

    pub(super) fn pass(&mut self, pass: PassRecord) {
        if pass.mode != Mode::Decode {
            self.push(step_record(&pass));
            return;
        }
        let joins = |run: &Run| run.last.requests == pass.requests && follows(&run.last, &pass);
        if self.run.as_ref().is_some_and(|run| !joins(run)) {
            self.close_run();
        }
        let elapsed = pass.elapsed.0;
        match &mut self.run {
            Some(run) => {
                run.steps += 1;
                run.elapsed = run.elapsed.saturating_add(elapsed);
                run.measured = run.measured.zip(pass.measured).map(|(sum, one)| sum + one.0);
                run.peak = run.peak.max(pass.peak);
                run.last = pass;
                run.slots.append(&mut self.slots);
            }
            None => {
                let measured = pass.measured.map(|one| one.0);
                let (first, last, peak) = (pass, pass, pass.peak);
                let slots = std::mem::take(&mut self.slots);
                self.run = Some(Run { first, last, steps: 1, elapsed, measured, peak, slots });
            }
        }
    }

    /// Decode passes that follow each other with nothing between, from the first, given as its number and its
    /// time, to `last`.
    pub(super) fn quiet(&mut self, last: &PassRecord, (step, at): (u64, Nanos)) {
        let before = last.step - step;
        if before > 0 {
            // Of a run only the last pass is told, and of the first one its number and its time.
            let elapsed = Nanos(last.at.0 - at.0);
            self.pass(PassRecord { step, at, elapsed, ..*last });
        }
        self.pass(*last);
        if let Some(run) = &mut self.run {
            run.steps += before.saturating_sub(1);
        }
    }

    fn close_run(&mut self) {
        let Some(mut run) = self.run.take() else { return };
        run.slots.write(self.sink);
        let record = Record::new("decode_run")
            .with_room(PASS_FIELDS)
            .with("first_step", run.first.step)
            .with("steps", run.steps)
            .with("requests", run.last.requests)
            .with("at_ns", run.first.at.0)
            .with("elapsed_ns", run.elapsed);
        let record = state_after(record, &run.last, run.peak);
        self.sink.record(with_measured(record, run.measured));
    }

    pub(super) fn segment(&mut self, rank: Rank, step: u64, change: SegmentChange) {
        let (kind, size) = match change {
            SegmentChange::Taken(size) => ("segment_allocated", size),
            SegmentChange::Given(size) => ("segment_freed", size),
        };
        self.push(
            Record::of(kind, rank)
                .with("account", Account::Activations.name())
                .with("place", "device")
                .with("size_bytes", size.0)
                .with("step", step),
        );
    }

    pub(super) fn arrived(&mut self, request: &NewRequest, at: Nanos) {
        self.push(
            Record::new("request_arrived")
                .with("request", request.id.0)
                .with("at_ns", at.0)
                .with("prompt_tokens", request.prompt.len())
                .with("max_new_tokens", request.max_new_tokens),
        );
    }

    /// What the prefix cache keeps when the server has nothing more to do.
    pub(super) fn cached(&mut self, slots: &Runs) {
        self.push(Record::new("slots_cached").with("runs", flat(slots)));
    }

    pub(super) fn decision(&mut self, decision: &Decision, step: u64, now: Nanos) {
        match decision {
            Decision::SlotsTaken { request, slots } => self.slots.taken(*request, slots),
            Decision::SlotsFreed { slots } => self.slots.freed(slots),
            other => self.push(decision_record(other, step, Stamp::Model(now))),
        }
    }
}

/// A time in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Stamp {
    /// Of the model: it must agree on every backend.
    Model(Nanos),
    /// Of a clock.
    Measured(Nanos),
}

impl Stamp {
    fn put(self, record: Record) -> Record {
        match self {
            Self::Model(at) => record.with("at_ns", at.0),
            Self::Measured(at) => record.measured("at_ns", at.0),
        }
    }
}

/// The record of a decision; of slots that change hands an empty one.
pub(in crate::engine) fn decision_record(decision: &Decision, step: u64, now: Stamp) -> Record {
    let new = |kind| Record::new(kind).with_room(6).with("step", step);
    match decision {
        Decision::Admitted { request, prefix, extend, chunked } => new("admitted")
            .with("request", request.0)
            .with("prefix_tokens", *prefix)
            .with("extend_tokens", *extend)
            .with("chunked", *chunked),
        Decision::Deferred { request, reason, needed, available } => new("deferred")
            .with("request", request.0)
            .with("reason", reason.name())
            .with("needed_tokens", *needed)
            .with("available_tokens", *available),
        Decision::Evicted { asked, freed, window } => {
            let both = new("evicted").with("asked_tokens", *asked).with("freed_tokens", *freed);
            match window {
                Some(window) => both
                    .with("asked_window_tokens", window.asked)
                    .with("freed_window_tokens", window.freed),
                None => both,
            }
        }
        Decision::BackedUp { tokens, stored } => {
            new("backed_up").with("tokens", *tokens).with("stored_tokens", *stored)
        }
        Decision::LoadedBack { request, found, loaded } => new("loaded_back")
            .with("request", request.0)
            .with("host_tokens", *found)
            .with("loaded_tokens", *loaded),
        Decision::EvictedHost { asked, freed } => {
            new("evicted_host").with("asked_tokens", *asked).with("freed_tokens", *freed)
        }
        Decision::Retracted { request, outputs, slots } => new("retracted")
            .with("request", request.0)
            .with("output_tokens", *outputs)
            .with("lost_tokens", *slots),
        Decision::Preempted { request, outputs, slots, .. } => new("preempted")
            .with("request", request.0)
            .with("output_tokens", *outputs)
            .with("lost_tokens", *slots),
        Decision::Ratio { new_token_ratio } => {
            new("ratio").with("new_token_ratio", *new_token_ratio)
        }
        Decision::Finished { request, outputs, finish } => now
            .put(new("finished").with("request", request.0))
            .with("output_tokens", *outputs)
            .with("finish", finish.name()),
        Decision::Refused { request, code } => {
            Record::new("request_refused").with("request", request.0).with("code", *code)
        }
        Decision::Lent { pages, lent, asked } => new("lent")
            .with("pages", flat(pages))
            .with("lent_pages", *lent)
            .with("asked_pages", *asked),
        Decision::TakenBack { pages, lent } => {
            new("taken_back").with("pages", flat(pages)).with("lent_pages", *lent)
        }
        Decision::SlotsTaken { .. } | Decision::SlotsFreed { .. } => new("slots"),
    }
}

/// Fields of the record of a pass, about.
const PASS_FIELDS: usize = 18;

/// Whether `next` begins where `last` ended.
fn follows(last: &PassRecord, next: &PassRecord) -> bool {
    next.at.0 == last.at.0.saturating_add(last.elapsed.0)
}

fn step_record(pass: &PassRecord) -> Record {
    let record = Record::new("step")
        .with_room(PASS_FIELDS)
        .with("step", pass.step)
        .with("mode", pass.mode.name())
        .with("requests", pass.requests)
        .with("tokens", pass.tokens)
        .with("prefix_tokens", pass.prefix_tokens)
        .with("at_ns", pass.at.0)
        .with("elapsed_ns", pass.elapsed.0);
    with_measured(state_after(record, pass, pass.peak), pass.measured.map(|one| one.0))
}

fn state_after(record: Record, pass: &PassRecord, peak: Bytes) -> Record {
    let record = record
        .with("used_tokens", pass.usage.used())
        .with("available_tokens", pass.usage.available)
        .with("evictable_tokens", pass.usage.evictable)
        .with("running", pass.usage.running)
        .with("waiting", pass.usage.waiting)
        .with("free_bytes", pass.free.0)
        .with("peak_bytes", peak.0)
        .with("reserved_bytes", pass.reserved.0);
    match pass.usage.window {
        Some(window) => record
            .with("used_window_tokens", window.used())
            .with("available_window_tokens", window.available)
            .with("evictable_window_tokens", window.evictable),
        None => record,
    }
}

fn with_measured(record: Record, measured: Option<u64>) -> Record {
    match measured {
        Some(nanos) => record.measured("elapsed_real_ns", nanos),
        None => record,
    }
}
