//! An engine that answers every request with one text, a token a turn, and a tokenizer of bytes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use plimsoll_backend_host::model::Logprob;
use plimsoll_checkpoint::{StopStrings, TextStream, Tokenizer};
use plimsoll_core::{
    sched::{EosRule, Finish, RequestId},
    units::Bytes,
};
use plimsoll_server::engine::{
    Command, Ended, Engine, EngineEnd, EngineInfo, Event, Events, Matched, MemoryRow, Phase, Piece,
    Refusal, Submission, TokenUse, channel,
};
use serde_json::{Map, Value, json};

/// The token that ends a text.
pub(crate) const EOS: u32 = 257;

/// How the engine behaves.
#[derive(Clone)]
pub(crate) struct Script {
    /// What it answers, again and again where the end is ignored.
    pub(crate) answer: &'static str,
    /// Pause of a turn.
    pub(crate) pace: Duration,
    /// Requests that it takes at once.
    pub(crate) room: usize,
    /// The phase that it is in from the start.
    pub(crate) phase: Phase,
    /// Whether it dies at the first request.
    pub(crate) dies: bool,
}

impl Default for Script {
    fn default() -> Self {
        let (pace, room) = (Duration::ZERO, 4096);
        Self { answer: "Hé 🦀 ok", pace, room, phase: Phase::Ready, dies: false }
    }
}

/// What it was told.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    pub(crate) submissions: Vec<Submission>,
    /// Requests that were given up while they ran.
    pub(crate) aborted: Vec<u64>,
    pub(crate) running: usize,
    pub(crate) drained: bool,
}

/// A tokenizer whose tokens are bytes, with `<s>` as 256 and `</s>` as 257.
pub(crate) fn tokenizer() -> Tokenizer {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256_u32).filter(|b| !plain(b)).zip(256..);
    let mut names: BTreeMap<u32, u32> = others.collect();
    names.extend((0..256).filter(plain).map(|b| (b, b)));
    let name = |code: u32| char::from_u32(code).unwrap_or('?').to_string();
    let mut vocab: Map<String, Value> =
        names.iter().map(|(byte, code)| (name(*code), json!(byte))).collect();
    vocab.insert("<s>".to_owned(), json!(256));
    vocab.insert("</s>".to_owned(), json!(EOS));
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": false});
    let document = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(256, "<s>"), added(EOS, "</s>")],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    });
    Tokenizer::parse(&document.to_string()).unwrap()
}

/// What the engine says of itself.
pub(crate) fn info() -> EngineInfo {
    let row =
        |name: &str, bytes| MemoryRow { device: None, name: name.to_owned(), bytes: Bytes(bytes) };
    EngineInfo {
        model: "org/tiny".to_owned(),
        path: "/models/tiny".to_owned(),
        created: 1_700_000_000,
        context_length: 256,
        max_total_num_tokens: 4096,
        page_size: 16,
        max_running_requests: 64,
        max_queued_requests: None,
        chunked_prefill_size: 128,
        device: "host".to_owned(),
        precision: "float32".to_owned(),
        memory: vec![row("weights", 1 << 30), row("kv_pool", 1 << 29)],
    }
}

/// Starts the engine.
pub(crate) fn start(script: Script) -> (Engine, Arc<Mutex<Seen>>) {
    let (engine, end) = channel(info());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let told = Arc::clone(&seen);
    end.enter(script.phase.clone());
    thread::spawn(move || run(&end, &script, &told));
    (engine, seen)
}

struct Running {
    submission: Box<Submission>,
    events: Events,
    text: TextStream,
    stops: StopStrings,
    sent: u64,
}

fn run(end: &EngineEnd, script: &Script, seen: &Mutex<Seen>) {
    let tokenizer = tokenizer();
    let mut running: BTreeMap<RequestId, Running> = BTreeMap::new();
    loop {
        let first = if running.is_empty() { end.commands.recv().ok() } else { None };
        if running.is_empty() && first.is_none() {
            return;
        }
        for command in first.into_iter().chain(end.commands.try_iter()) {
            let mut seen = seen.lock().unwrap();
            match command {
                Command::Submit(..) if script.dies => return,
                Command::Submit(id, submission, events) => {
                    seen.submissions.push((*submission).clone());
                    take(&mut running, script, id, submission, events);
                }
                Command::Abort(id) if running.remove(&id).is_some() => {
                    seen.aborted.push(id.0);
                    end.set(|status| status.totals.aborted += 1);
                }
                Command::Abort(_) => {}
                Command::Drain => seen.drained = true,
            }
        }
        let over: Vec<RequestId> = running
            .iter_mut()
            .filter_map(|(id, one)| token(&tokenizer, script, one, end).then_some(*id))
            .collect();
        over.iter().for_each(|id| drop(running.remove(id)));
        seen.lock().unwrap().running = running.len();
        end.set(|status| {
            status.usage.running = running.len() as u64;
            status.usage.pool = 4096;
            status.usage.available = 4096 - 16 * running.len().min(256) as u64;
            status.totals.finished += over.len() as u64;
        });
        thread::sleep(script.pace);
    }
}

fn take(
    running: &mut BTreeMap<RequestId, Running>,
    script: &Script,
    id: RequestId,
    submission: Box<Submission>,
    events: Events,
) {
    if running.len() >= script.room {
        let message = format!("{} requests wait", script.room);
        let _ = events.send(Event::Refused(Refusal { code: "queue_full", message }));
        return;
    }
    if let Some(count) = submission.prompt_logprobs {
        let rest = submission.prompt.iter().skip(1);
        let pieces = rest.map(|id| piece(*id, String::new(), Some(count))).collect();
        let _ = events.send(Event::Prompt(pieces));
    }
    let stops = StopStrings::new(&submission.stop);
    let text = TextStream::default();
    running.insert(id, Running { submission, events, text, stops, sent: 0 });
}

fn piece(token: u32, text: String, logprobs: Option<u32>) -> Piece {
    let top = |n: u32| {
        let nth = |i: u32| (token + i) % 256;
        (0..n).map(|i| Logprob { token: nth(i), logprob: -0.5 - i as f32 }).collect()
    };
    let top = logprobs.map(top).unwrap_or_default();
    Piece { token, text, logprob: logprobs.map(|_| -0.5), top }
}

/// One more token; whether it was the last.
fn token(tokenizer: &Tokenizer, script: &Script, one: &mut Running, end: &EngineEnd) -> bool {
    let bytes = script.answer.as_bytes();
    let (submission, at) = (&one.submission, one.sent as usize);
    if at >= bytes.len() && submission.eos == EosRule::Ends {
        return finish(tokenizer, one, Finish::Stop, Some(Matched::Token(EOS)), end);
    }
    let id = u32::from(bytes[at % bytes.len()]);
    one.sent += 1;
    let text = one.text.push(tokenizer, id).unwrap();
    let certain = one.stops.push(&text);
    let event = Event::Token(piece(id, certain.text, submission.sampling.logprobs));
    let _ = one.events.send(event);
    if let Some(stop) = certain.stop {
        let text = submission.stop[stop].clone();
        return finish(tokenizer, one, Finish::Stop, Some(Matched::Text(text)), end);
    }
    if submission.stop_token_ids.contains(&id) {
        return finish(tokenizer, one, Finish::Stop, Some(Matched::Token(id)), end);
    }
    let most = submission.max_new_tokens.unwrap_or(128);
    one.sent >= most && finish(tokenizer, one, Finish::Length, None, end)
}

fn finish(
    tokenizer: &Tokenizer,
    one: &mut Running,
    finish: Finish,
    matched: Option<Matched>,
    end: &EngineEnd,
) -> bool {
    let stopped = matches!(matched, Some(Matched::Text(_)));
    let rest = one.text.finish(tokenizer).unwrap();
    let mut text = if stopped { String::new() } else { one.stops.push(&rest).text };
    if !stopped {
        text.push_str(&one.stops.finish());
    }
    let prompt = one.submission.prompt.len() as u64;
    let tokens = TokenUse { prompt, cached: prompt / 2, completion: one.sent };
    end.set(|status| {
        status.totals.requests += 1;
        status.totals.prompt_tokens += prompt;
        status.totals.cached_tokens += prompt / 2;
        status.totals.generation_tokens += one.sent;
    });
    let _ = one.events.send(Event::Finished(Ended { finish, matched, text, tokens }));
    true
}
