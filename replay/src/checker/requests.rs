//! Requests: the order of a life, and the tokens that are admitted and made.
//!
//! Arrived → admitted, in chunks → runs → finished, once; a running request may be retracted and begins
//! again. What is admitted adds up: the prefix found and all chunks are the prompt and the outputs made
//! before. A request makes one token in the pass that ends its prefill and one in every decode pass that it
//! is part of. Where results are processed one pass late (the overlap loop), the token of the last pass may
//! be missing.

use super::{Found, MOST_RUNNING, Subject, count, either, is_pass, is_set, number, text};
use crate::record::Record;
use std::collections::BTreeMap;

/// How near to the limit of context or pool a request may be cut: the engines keep a page and a few tokens
/// back.
const NEAR_LIMIT: u64 = 300;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Waiting,
    /// Part of its prompt is computed: so many tokens, prefix included.
    Chunk(u64),
    Running,
    Ended,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waits",
            Self::Chunk(_) => "is in its prefill",
            Self::Running => "runs",
            Self::Ended => "has ended",
        }
    }
}

struct Request {
    prompt: u64,
    max_new: Option<u64>,
    made: u64,
    /// Whether it was part of the last pass.
    in_last: bool,
    /// Whether one token was computed in place of a prompt that is too long.
    stub: bool,
    stage: Stage,
}

impl Request {
    /// Whether a record may say that so many tokens were made.
    const fn may_have_made(&self, said: u64) -> bool {
        said == self.made || (self.in_last && said + 1 == self.made)
    }
}

/// The batch that is being formed.
#[derive(Default)]
struct Batch {
    /// Admitted requests, and whether their prefill ends with this batch.
    admitted: Vec<(u64, Ends)>,
    extend: u64,
    prefix: u64,
    /// Running requests that it leaves out.
    left_out: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Here,
    Later,
}

#[derive(Default)]
pub(super) struct Requests {
    all: BTreeMap<u64, Request>,
    /// Ids of requests that run.
    running: Vec<u64>,
    batch: Batch,
    most_running: Option<u64>,
    /// Most tokens of a request, prompt and outputs, that context and pool allow; `None`: not known.
    longest: Option<u64>,
    /// Requests whose prefill the last pass ended: they neither wait nor, yet, run.
    joined: u64,
    open: u64,
    finished: u64,
    /// Step of the last move between the tiers of the prefix cache, and of the last prefill. A move keeps
    /// slots in use until a later prefill looks at it.
    moved: Option<u64>,
    prefilled: Option<u64>,
}

impl Subject for Requests {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "settings_resolved" => {
                self.longest = number(record, "context_len").filter(|n| *n > 0);
            }
            "serving_started" => {
                let pool = number(record, "pool_tokens");
                let longest = number(record, "max_model_len");
                self.longest = self.longest.into_iter().chain(pool).chain(longest).min();
                self.most_running = either(record, MOST_RUNNING).filter(|n| *n > 0);
            }
            "request_arrived" => self.arrived(record, found),
            "request_refused" => self.refused(record, found),
            "admitted" => self.admitted(record, found),
            "deferred" => self.deferred(record, found),
            "retracted" | "preempted" => self.retracted(record, found),
            "finished" => self.finish(record, found),
            "backed_up" if count(record, "stored_tokens") > 0 => {
                self.moved = number(record, "step");
            }
            "loaded_back" if count(record, "loaded_tokens") > 0 => {
                self.moved = number(record, "step");
            }
            "server_ended" | "run_ended" => self.counts(record, found),
            "step_failed" => {
                let batch = std::mem::take(&mut self.batch);
                let _ = self.batch_fits(record, &batch, found);
            }
            _ if is_pass(record) => self.pass(record, found),
            _ => {}
        }
    }

    fn close(&mut self, _last: &Record, _found: &mut Found) {}
}

impl Requests {
    fn of(&mut self, record: &Record, found: &mut Found) -> Option<&mut Request> {
        let id = count(record, "request");
        let request = self.all.get_mut(&id);
        if request.is_none() {
            found.say(record, format!("request {id} never arrived"));
        }
        request
    }

    fn arrived(&mut self, record: &Record, found: &mut Found) {
        let id = count(record, "request");
        let request = Request {
            prompt: count(record, "prompt_tokens"),
            max_new: number(record, "max_new_tokens"),
            made: 0,
            in_last: false,
            stub: false,
            stage: Stage::Waiting,
        };
        if self.all.insert(id, request).is_some() {
            found.say(record, format!("request {id} arrives twice"));
        }
        self.open += 1;
    }

    fn refused(&mut self, record: &Record, found: &mut Found) {
        let id = count(record, "request");
        let Some(request) = self.of(record, found) else { return };
        if request.stage != Stage::Waiting || request.made > 0 {
            let stage = request.stage.name();
            found.say(record, format!("request {id} is refused, and {stage}"));
        }
        request.stage = Stage::Ended;
        self.open = self.open.saturating_sub(1);
    }

    fn admitted(&mut self, record: &Record, found: &mut Found) {
        let id = count(record, "request");
        let (prefix, extend) = (count(record, "prefix_tokens"), count(record, "extend_tokens"));
        let ends = if is_set(record, "chunked") { Ends::Later } else { Ends::Here };
        let twice = self.batch.admitted.iter().any(|(other, _)| *other == id);
        let Some(request) = self.of(record, found) else { return };
        match request.stage {
            Stage::Waiting => {}
            Stage::Chunk(done) if done == prefix => {}
            Stage::Chunk(done) => {
                found.say(
                    record,
                    format!("request {id} goes on after {prefix} tokens, {done} are done"),
                );
            }
            stage @ (Stage::Running | Stage::Ended) => {
                found.say(record, format!("request {id} is admitted, and {}", stage.name()));
            }
        }
        let (done, whole) =
            (prefix.saturating_add(extend), request.prompt.saturating_add(request.made));
        let stub = (prefix, extend, ends) == (0, 1, Ends::Here) && whole > 1 && request.made == 0;
        request.stub |= stub;
        let fits = match ends {
            Ends::Here => done == whole || stub,
            Ends::Later => done < whole,
        };
        if !fits || extend == 0 || twice {
            let what =
                format!("request {id} has {whole} tokens; {prefix} and {extend} are admitted");
            found.say(record, what);
        }
        request.stage = Stage::Chunk(done);
        self.batch.admitted.push((id, ends));
        self.batch.extend = self.batch.extend.saturating_add(extend);
        self.batch.prefix = self.batch.prefix.saturating_add(prefix);
    }

    fn deferred(&mut self, record: &Record, found: &mut Found) {
        let id = count(record, "request");
        let Some(request) = self.of(record, found) else { return };
        match request.stage {
            Stage::Waiting | Stage::Chunk(_) => {}
            Stage::Running if text(record, "reason") == "budget" => self.batch.left_out.push(id),
            stage => found.say(record, format!("request {id} is deferred, and {}", stage.name())),
        }
    }

    fn retracted(&mut self, record: &Record, found: &mut Found) {
        let (id, outputs) = (count(record, "request"), count(record, "output_tokens"));
        let Some(request) = self.of(record, found) else { return };
        if !matches!(request.stage, Stage::Running | Stage::Chunk(_)) {
            found.say(record, format!("request {id} is retracted, and {}", request.stage.name()));
        }
        if !request.may_have_made(outputs) {
            let made = request.made;
            found.say(record, format!("request {id} has {outputs} outputs, {made} were made"));
        }
        request.made = outputs;
        request.stage = Stage::Waiting;
        self.running.retain(|other| *other != id);
    }

    fn finish(&mut self, record: &Record, found: &mut Found) {
        let (id, outputs) = (count(record, "request"), count(record, "output_tokens"));
        let abort = text(record, "finish") == "abort";
        let Some(request) = self.of(record, found) else { return };
        let ended = request.stage == Stage::Ended;
        // A token that was in flight when the request gave its slots back may be its last.
        let in_flight = request.stage == Stage::Waiting && outputs > 0 && outputs == request.made;
        if ended || !(abort || in_flight || request.stage == Stage::Running) {
            found.say(record, format!("request {id} finishes, and {}", request.stage.name()));
        }
        // Who is given up may have less than was made.
        let may_be = request.may_have_made(outputs) || (abort && outputs <= request.made);
        if !may_be {
            let made = request.made;
            found
                .say(record, format!("request {id} ends with {outputs} outputs, {made} were made"));
        }
        if request.max_new.is_some_and(|most| outputs > most) {
            found
                .say(record, format!("request {id} has {outputs} outputs, more than it asked for"));
        }
        if request.stub && !abort {
            found.say(record, format!("request {id} was not computed, and is no `abort`"));
        }
        if !matches!(text(record, "finish"), "stop" | "length" | "abort") {
            found.say(record, format!("request {id} finishes in no known way"));
        }
        request.stage = Stage::Ended;
        self.running.retain(|other| *other != id);
        self.batch.admitted.retain(|(other, _)| *other != id);
        if !ended {
            self.open = self.open.saturating_sub(1);
            self.finished += u64::from(!abort);
        }
    }

    /// Running requests that a token in flight may end by their limit: by what they asked for, which is
    /// sure, and by context or pool, of which only the order is known here.
    fn ending(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut sure, mut maybe) = (Vec::new(), Vec::new());
        for id in &self.running {
            let Some(request) = self.all.get(id).filter(|request| request.in_last) else {
                continue;
            };
            let all = request.prompt.saturating_add(request.made);
            if request.max_new.is_some_and(|most| request.made >= most) {
                sure.push(*id);
            } else if self.longest.is_some_and(|longest| all + NEAR_LIMIT >= longest) {
                maybe.push(*id);
            }
        }
        (sure, maybe)
    }

    /// Whether the pass is over what was admitted and what runs. Returns how many decode passes it holds,
    /// and the running requests that it leaves out.
    fn batch_fits(&self, record: &Record, batch: &Batch, found: &mut Found) -> (u64, Vec<u64>) {
        let decodes = (self.running.len() as u64).saturating_sub(batch.left_out.len() as u64);
        let admitted = batch.admitted.len() as u64;
        let mode = if record.kind == "decode_run" { "decode" } else { text(record, "mode") };
        let (requests, steps) = match mode {
            "decode" => (decodes, number(record, "steps").unwrap_or(1)),
            "mixed" => (admitted + decodes, 1),
            _ => (admitted, 0),
        };
        let said = count(record, "requests");
        let missing = requests.saturating_sub(said);
        let (mut out, maybe) =
            if steps > 0 && missing > 0 { self.ending() } else { Default::default() };
        if missing > out.len() as u64 {
            out.extend(maybe);
        }
        if said + out.len() as u64 != requests {
            found.say(record, format!("a {mode} of {said} requests, the log has {requests}"));
        }
        if mode == "decode" && admitted > 0 {
            found.say(record, format!("{admitted} requests were admitted to no prefill"));
        }
        if mode != "decode" {
            tokens(record, batch, said.saturating_sub(admitted), found);
        }
        (steps, out)
    }

    fn pass(&mut self, record: &Record, found: &mut Found) {
        let batch = std::mem::take(&mut self.batch);
        let (steps, out) = self.batch_fits(record, &batch, found);
        for request in self.all.values_mut().filter(|request| request.in_last) {
            request.in_last = false;
        }
        let has_row = |id: &&u64| !out.contains(id) && !batch.left_out.contains(id);
        for id in self.running.iter().filter(has_row) {
            if let Some(request) = self.all.get_mut(id).filter(|_| steps > 0) {
                request.made = request.made.saturating_add(steps);
                request.in_last = true;
            }
        }
        self.joined = 0;
        if text(record, "mode") == "prefill" || text(record, "mode") == "mixed" {
            self.prefilled = number(record, "step");
        }
        for (id, _) in batch.admitted.iter().filter(|(_, ends)| *ends == Ends::Here) {
            if let Some(request) = self.all.get_mut(id) {
                request.stage = Stage::Running;
                request.made += 1;
                request.in_last = true;
                self.running.push(*id);
                self.joined += 1;
            }
        }
        self.limits(record, found);
    }

    fn limits(&self, record: &Record, found: &mut Found) {
        let running = self.running.len() as u64;
        if let Some(most) = self.most_running.filter(|most| running > *most) {
            found.say(record, format!("{running} requests run, and at most {most} may"));
        }
        let (said, open) = (count(record, "running") + count(record, "waiting"), self.open);
        if said > open {
            found.say(record, format!("{said} requests run or wait, {open} are open"));
        }
    }

    fn counts(&self, record: &Record, found: &mut Found) {
        let (running, waiting) = (count(record, "running"), count(record, "waiting"));
        let finished = count(record, "finished");
        if finished != self.finished {
            let there = self.finished;
            found.say(record, format!("{finished} finished requests are said, {there} are there"));
        }
        // A request in its prefill neither runs nor waits.
        let chunks = self.all.values().filter(|r| matches!(r.stage, Stage::Chunk(_))).count();
        let between = (chunks as u64).saturating_add(self.joined);
        let (said, open) = (running.saturating_add(waiting), self.open);
        if said > open || said + between < open {
            found.say(record, format!("{running} run and {waiting} wait, {open} are open"));
        }
        if text(record, "outcome") == "finished" {
            let used = count(record, "used_tokens");
            let moving = self.moved.is_some() && self.moved >= self.prefilled;
            if said > 0 || open > 0 || (used > 0 && !moving) {
                let what =
                    format!("all is finished with {open} requests open and {used} tokens used");
                found.say(record, what);
            }
        }
    }
}

/// Tokens of a prefill or mixed pass: what was admitted, and one for each request that decodes.
fn tokens(record: &Record, batch: &Batch, decodes: u64, found: &mut Found) {
    let (said, there) = (count(record, "tokens"), batch.extend.saturating_add(decodes));
    if said != there {
        found.say(record, format!("a pass of {said} tokens, {there} were admitted"));
    }
    let Some(said) = number(record, "prefix_tokens") else { return };
    let there = batch.prefix;
    if said < there || (decodes == 0 && said != there) {
        found.say(record, format!("a pass over {said} prefix tokens, {there} were admitted"));
    }
}
