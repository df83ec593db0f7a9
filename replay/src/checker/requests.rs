//! Requests: the order of a life, and the tokens that are admitted and made.
//!
//! Arrived → admitted, in chunks → runs → finished, once; a running request may be retracted and begins
//! again. What is admitted adds up: the prefix found and all chunks are the prompt and the outputs made
//! before. A request makes one token in the pass that ends its prefill and one in every decode pass that it
//! is part of. Where results are processed one pass late (the overlap loop), the token of the last pass may
//! be missing.

use super::{Found, Subject, count, is_pass, is_set, number, text};
use crate::record::Record;
use std::collections::BTreeMap;

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
    /// Whether it was admitted with a single token in place of its prompt, so that it must be given up.
    token_only: bool,
    stage: Stage,
}

impl Request {
    /// Whether a record may say that so many tokens were made.
    const fn may_have_made(&self, said: u64) -> bool {
        said == self.made || (self.in_last && said + 1 == self.made)
    }

    /// Whether it has all the tokens that it asked for.
    fn is_full(&self) -> bool {
        self.max_new.is_some_and(|most| self.made >= most)
    }
}

/// The batch that is being formed.
#[derive(Default)]
struct Batch {
    /// Admitted requests, and whether their prefill ends with this batch.
    admitted: Vec<(u64, Ends)>,
    extend: u64,
    prefix: u64,
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
    open: u64,
    finished: u64,
}

impl Subject for Requests {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "serving_started" => {
                self.most_running = number(record, "max_running_requests").filter(|n| *n > 0);
            }
            "request_arrived" => self.arrived(record, found),
            "request_refused" => self.refused(record, found),
            "admitted" => self.admitted(record, found),
            "deferred" => self.deferred(record, found),
            "retracted" | "preempted" => self.retracted(record, found),
            "finished" => self.finish(record, found),
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
            token_only: false,
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
        let fits = match ends {
            Ends::Here => done == whole,
            Ends::Later => done < whole,
        };
        request.token_only = !fits && done == 1 && whole > 1 && ends == Ends::Here;
        if (!fits && !request.token_only) || extend == 0 || twice {
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
        if !matches!(request.stage, Stage::Waiting | Stage::Chunk(_)) {
            found.say(record, format!("request {id} is deferred, and {}", request.stage.name()));
        }
    }

    fn retracted(&mut self, record: &Record, found: &mut Found) {
        let (id, outputs) = (count(record, "request"), count(record, "output_tokens"));
        let Some(request) = self.of(record, found) else { return };
        if request.stage != Stage::Running {
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
        if ended || (!abort && request.stage != Stage::Running) {
            found.say(record, format!("request {id} finishes, and {}", request.stage.name()));
        }
        if request.token_only && !abort {
            found.say(record, format!("request {id} ends well without its prompt"));
        }
        if !request.may_have_made(outputs) && !(abort && outputs <= request.made) {
            let made = request.made;
            found
                .say(record, format!("request {id} ends with {outputs} outputs, {made} were made"));
        }
        if request.max_new.is_some_and(|most| outputs > most) {
            found
                .say(record, format!("request {id} has {outputs} outputs, more than it asked for"));
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

    /// Ids of the running requests that have all their tokens.
    fn full(&self) -> Vec<u64> {
        let full = |id: &&u64| self.all.get(id).is_some_and(Request::is_full);
        self.running.iter().filter(full).copied().collect()
    }

    /// Whether the pass is over what was admitted and what runs; decode passes that it holds.
    fn batch_fits(&self, record: &Record, batch: &Batch, found: &mut Found) -> u64 {
        let decodes = match self.left_out(record, batch).is_empty() {
            true => self.running.len() as u64,
            false => (self.running.len() - self.full().len()) as u64,
        };
        let admitted = batch.admitted.len() as u64;
        let mode = if record.kind == "decode_run" { "decode" } else { text(record, "mode") };
        let (requests, steps) = match mode {
            "decode" => (decodes, number(record, "steps").unwrap_or(1)),
            "mixed" => (admitted + decodes, 1),
            _ => (admitted, 0),
        };
        let said = count(record, "requests");
        if said != requests {
            found.say(record, format!("a {mode} of {said} requests, the log has {requests}"));
        }
        if mode == "decode" && admitted > 0 {
            found.say(record, format!("{admitted} requests were admitted to no prefill"));
        }
        if mode != "decode" {
            tokens(record, batch, requests - admitted, found);
        }
        steps
    }

    /// Running requests that a pass of this size leaves out: none, or all that have all their tokens.
    fn left_out(&self, record: &Record, batch: &Batch) -> Vec<u64> {
        let admitted = match text(record, "mode") {
            "mixed" => batch.admitted.len(),
            "prefill" => return Vec::new(),
            _ => 0,
        };
        let (full, said) = (self.full(), count(record, "requests"));
        let without = admitted + self.running.len() - full.len();
        if said == without as u64 { full } else { Vec::new() }
    }

    fn pass(&mut self, record: &Record, found: &mut Found) {
        let batch = std::mem::take(&mut self.batch);
        let steps = self.batch_fits(record, &batch, found);
        let left_out = self.left_out(record, &batch);
        for request in self.all.values_mut().filter(|request| request.in_last) {
            request.in_last = false;
        }
        for id in self.running.iter().filter(|id| !left_out.contains(id)) {
            if let Some(request) = self.all.get_mut(id).filter(|_| steps > 0) {
                request.made = request.made.saturating_add(steps);
                request.in_last = true;
            }
        }
        for (id, _) in batch.admitted.iter().filter(|(_, ends)| *ends == Ends::Here) {
            if let Some(request) = self.all.get_mut(id) {
                request.stage = Stage::Running;
                request.made += 1;
                request.in_last = true;
                self.running.push(*id);
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
        let between =
            self.all.values().filter(|r| matches!(r.stage, Stage::Chunk(_))).count() as u64;
        let (said, open) = (running.saturating_add(waiting), self.open);
        if said > open || said + between < open {
            found.say(record, format!("{running} run and {waiting} wait, {open} are open"));
        }
        if text(record, "outcome") == "finished" {
            let used = count(record, "used_tokens");
            if said > 0 || open > 0 || used > 0 {
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
