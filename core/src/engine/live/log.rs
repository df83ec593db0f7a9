//! Records of a live server. Times and tokens are measured: the rest must come out again on any body.

use crate::{
    decision::{DecisionSink, Field, Record, Value},
    engine::serving::{Arrival, Stamp, decision_record, flat},
    sched::{Decision, EosRule, Made, Mode, Usage},
    units::Nanos,
};

/// Longest stretch of decode passes in one record: what is lost when the process is killed.
const STRETCH: u64 = 64;

/// What is recorded of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) step: u64,
    pub(super) mode: Mode,
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) prefix_tokens: u64,
    pub(super) at: Nanos,
    pub(super) elapsed: Nanos,
    pub(super) usage: Usage,
}

/// Decode passes with nothing between them.
#[derive(Debug)]
struct Stretch {
    first: Pass,
    last: Pass,
    steps: u64,
    elapsed: u64,
    /// Tokens of each pass, in the order of its rows.
    made: Vec<u64>,
    /// Places in `made` of those that end their request.
    ended: Vec<u64>,
}

/// Joins decode passes and numbers nothing itself.
#[derive(Debug, Default)]
pub(super) struct LiveLog {
    open: Option<Stretch>,
}

impl LiveLog {
    pub(super) fn push(&mut self, record: Record, sink: &mut dyn DecisionSink) {
        self.close(sink);
        sink.record(record);
    }

    pub(super) fn arrived(
        &mut self,
        arrival: &Arrival,
        turn: u64,
        about: Vec<Field>,
        sink: &mut dyn DecisionSink,
    ) {
        let request = &arrival.request;
        let mut record = Record::new("request_arrived")
            .with_room(10 + about.len())
            .with("request", request.id.0)
            .with("turn", turn)
            .measured("at_ns", arrival.at.0)
            .with("prompt_tokens", request.prompt.len())
            .with("max_new_tokens", request.max_new_tokens)
            .with("ignore_eos", request.eos == EosRule::Ignored)
            .with("logprob_start", request.logprob_start)
            .with("priority", request.priority)
            .with("namespace", request.namespace);
        record = record.with("prompt", flat(&request.prompt));
        record.fields.extend(about);
        self.push(record, sink);
    }

    pub(super) fn decision(
        &mut self,
        decision: &Decision,
        step: u64,
        now: Nanos,
        sink: &mut dyn DecisionSink,
    ) {
        self.push(decision_record(decision, step, Stamp::Measured(now)), sink);
    }

    pub(super) fn pass(&mut self, pass: Pass, made: &[Made], sink: &mut dyn DecisionSink) {
        let joins = |open: &Stretch| {
            open.last.requests == pass.requests && open.steps < STRETCH && open.ended.is_empty()
        };
        if pass.mode != Mode::Decode || !self.open.as_ref().is_some_and(joins) {
            self.close(sink);
        }
        let open = self.open.get_or_insert_with(|| Stretch {
            first: pass,
            last: pass,
            steps: 0,
            elapsed: 0,
            made: Vec::new(),
            ended: Vec::new(),
        });
        open.last = pass;
        open.steps += 1;
        open.elapsed = open.elapsed.saturating_add(pass.elapsed.0);
        for made in made {
            if made.ends {
                open.ended.push(open.made.len() as u64);
            }
            open.made.push(u64::from(made.token));
        }
        if pass.mode != Mode::Decode {
            self.close(sink);
        }
    }

    pub(super) fn close(&mut self, sink: &mut dyn DecisionSink) {
        if let Some(open) = self.open.take() {
            sink.record(open.record());
        }
    }
}

impl Stretch {
    fn record(self) -> Record {
        let Self { first, last, steps, .. } = self;
        let record = if first.mode == Mode::Decode {
            Record::new("decode_run")
                .with_room(14)
                .with("first_step", first.step)
                .with("steps", steps)
                .with("requests", last.requests)
        } else {
            Record::new("step")
                .with_room(16)
                .with("step", first.step)
                .with("mode", first.mode.name())
                .with("requests", first.requests)
                .with("tokens", first.tokens)
                .with("prefix_tokens", first.prefix_tokens)
        };
        record
            .with("used_tokens", last.usage.used())
            .with("available_tokens", last.usage.available)
            .with("evictable_tokens", last.usage.evictable)
            .with("running", last.usage.running)
            .with("waiting", last.usage.waiting)
            .measured("at_ns", first.at.0)
            .measured("elapsed_real_ns", self.elapsed)
            .measured("made", Value::Ints(self.made))
            .measured("ended", Value::Ints(self.ended))
    }
}
