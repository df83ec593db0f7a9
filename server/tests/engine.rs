//! The engine behind its handle: what it answers is what the model answers alone, whatever runs beside it and
//! whatever the machine takes away, and its recording is decided again on the simulator.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../checkpoint/tests/files/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of checkpoints")]
mod files;

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use files::{Gguf, Scratch};
use plimsoll_backend_host::model::{Generator, HostModel, Keep, KvFormat, ModelOptions, Sampling};
use plimsoll_checkpoint::Checkpoint;
use plimsoll_core::{
    engine::{
        live::{BodyError, LiveSettings},
        serving::Watchers,
    },
    sched::{EosRule, Finish, sglang::QueuePolicy},
    tape::own::{Draw, Sequence, StepLimits},
    units::Bytes,
};
use plimsoll_replay::{
    live::{self, PlannedRow, Recorder},
    wire::{Closing, Log},
};
use plimsoll_server::engine::{
    Chosen, Ended, Engine, EngineInfo, Event, Loaded, Matched, Model, Phase, Pressure, Submission,
    channel, run,
};

const PAGE: u64 = 4;

/// A model whose answers wander: small weights from a fixed sequence.
fn checkpoint(scratch: &Scratch) -> Checkpoint {
    let mut file = Gguf::new("llama");
    for (_, number) in file.numbers.iter_mut().filter(|(key, _)| key.ends_with("context_length")) {
        *number = 2048;
    }
    let mut state = 1_u64;
    for (_, _, values) in &mut file.tensors {
        for value in values {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *value = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0;
        }
    }
    Checkpoint::open(&scratch.file("model.gguf", file.bytes())).unwrap()
}

fn settings(pages: u64) -> LiveSettings {
    LiveSettings {
        pool_pages: pages,
        page_size: PAGE,
        chunked_prefill_size: 8,
        max_running_requests: 4,
        max_queued_requests: Some(64),
        context_length: if pages > 100 { 2048 } else { 64 },
        policy: QueuePolicy::Fcfs,
        conservativeness: 0.0,
        by_priority: false,
        prefix_cache: true,
    }
}

fn model(checkpoint: &mut Checkpoint, pages: u64) -> HostModel {
    let options = ModelOptions {
        threads: 1,
        limits: StepLimits { tokens: 12, outputs: 4 },
        pages: pages as usize,
        page_tokens: PAGE as usize,
        context: 2048,
        keep: Keep::F32,
        kv: KvFormat::F32,
    };
    HostModel::load(&checkpoint.shape, &mut checkpoint.weights, &options).unwrap()
}

/// Wants these numbers of pages, one after the other, and then none.
struct Wants(VecDeque<u64>);

impl Pressure for Wants {
    fn every(&self) -> Duration {
        Duration::ZERO
    }

    fn target(&mut self, _: u64) -> u64 {
        self.0.pop_front().unwrap_or(0)
    }
}

/// What many threads write into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs an engine, hands it to `with`, drains it, and answers its recording.
fn served(pages: u64, wants: &[u64], with: impl FnOnce(&Engine)) -> Log {
    served_by(|host| host, pages, wants, with)
}

/// The same with what `of` makes of the host's model.
fn served_by<M: Model + Send + 'static>(
    of: impl FnOnce(HostModel) -> M,
    pages: u64,
    wants: &[u64],
    with: impl FnOnce(&Engine),
) -> Log {
    let scratch = Scratch::new();
    let mut checkpoint = checkpoint(&scratch);
    let model = model(&mut checkpoint, pages);
    let pool = model.memory().kv;
    let model = of(model);
    let (engine, end) = channel(EngineInfo::default());
    let settings = settings(pages);
    let mut loaded = Loaded {
        model,
        tokenizer: Arc::new(checkpoint.tokenizer),
        eos: checkpoint.eos,
        settings: settings.clone(),
        pressure: Some(Box::new(Wants(wants.iter().copied().collect()))),
    };
    let plan = [("weights", 1000), ("kv_pool", pool), ("arena", 500)];
    let plan =
        plan.map(|(name, bytes)| PlannedRow { account: name.to_owned(), bytes: Bytes(bytes) });
    let text = Shared::default();
    let out = text.clone();
    let thread = thread::spawn(move || {
        let mut recorder = Recorder::new(out, &live::header(&[])).unwrap();
        live::begin(&settings, &plan, &mut recorder);
        run(&end, &mut loaded, &mut recorder, &mut Watchers::default()).unwrap();
        recorder.finish(Closing::Complete).unwrap();
    });
    with(&engine);
    engine.drain();
    thread.join().unwrap();
    assert_eq!(engine.status().phase, Phase::Stopped);
    let bytes = text.0.lock().unwrap().clone();
    Log::read(bytes.as_slice()).unwrap()
}

/// All tokens and all text of a request.
fn answer(engine: &Engine, submission: Submission) -> impl FnOnce() -> (Vec<u32>, String, Ended) {
    let mut ticket = engine.submit(submission);
    move || {
        let (mut tokens, mut text) = (Vec::new(), String::new());
        loop {
            match ticket.next_blocking() {
                Some(Event::Token(piece)) => {
                    tokens.push(piece.token);
                    text.push_str(&piece.text);
                }
                Some(Event::Finished(ended)) => return (tokens, text + &ended.text, ended),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn prompt(number: u32) -> Vec<u32> {
    // Every third shares its first twelve tokens.
    (0..14 + number % 5)
        .map(|at| if at < 12 { number % 3 + at } else { number * 7 + at } % 250)
        .collect()
}

fn alone(sampling: Sampling, prompt: &[u32], limit: usize) -> Vec<u32> {
    let scratch = Scratch::new();
    let mut checkpoint = checkpoint(&scratch);
    let eos = checkpoint.eos.clone();
    let mut model = model(&mut checkpoint, 16);
    Generator::new(&mut model).generate(prompt, sampling, (limit, &eos)).unwrap().tokens
}

fn sampling(number: u32) -> Sampling {
    let temperature = if number.is_multiple_of(2) { 0.0 } else { 0.8 };
    Sampling { temperature, seed: u64::from(number), ..Sampling::default() }
}

fn many(engine: &Engine) {
    let asked: Vec<_> = (0..12)
        .map(|number| {
            let submission =
                Submission { sampling: sampling(number), ..Submission::greedy(prompt(number), 20) };
            (number, answer(engine, submission))
        })
        .collect();
    for (number, answer) in asked {
        let (tokens, _, ended) = answer();
        assert_eq!(tokens, alone(sampling(number), &prompt(number), 20), "request {number}");
        assert!(matches!(ended.finish, Finish::Stop | Finish::Length));
    }
}

fn kinds(log: &Log, kind: &str) -> usize {
    log.records.iter().filter(|record| record.kind == kind).count()
}

fn decided_again(log: &Log) {
    let again = live::again(log).unwrap();
    assert!(again.difference.is_none(), "{}", again.difference.unwrap());
    assert_eq!(again.log.digests.decisions, log.digests.decisions);
}

#[test]
fn a_batch_answers_what_each_request_is_answered_alone() {
    let log = served(60, &[], many);
    assert!(log.complete && live::is_live(&log));
    let cached = |record: &plimsoll_replay::record::Record| {
        record.kind == "admitted"
            && record.fields.get("prefix_tokens")
                != Some(&plimsoll_replay::record::FieldValue::from(0_u64))
    };
    assert!(log.records.iter().any(cached), "prefixes are found");
    decided_again(&log);
}

#[test]
fn a_pool_that_is_too_small_retracts_and_answers_the_same() {
    let log = served(16, &[], many);
    assert!(kinds(&log, "retracted") > 0);
    decided_again(&log);
}

#[test]
fn memory_that_others_take_costs_time_and_no_token() {
    let log = served(20, &[4, 14, 20, 20, 9], many);
    assert!(kinds(&log, "lent") > 0 && kinds(&log, "taken_back") > 0);
    decided_again(&log);
}

#[test]
fn stops_end_an_answer_and_are_no_part_of_it() {
    served(60, &[], |engine| {
        let whole = answer(engine, Submission::greedy(prompt(1), 20))();
        let (tokens, text, _) = &whole;
        assert!(text.len() > 6, "{text:?}");
        let end = text.char_indices().nth(4).unwrap().0;
        let stop: String = text[end..].chars().take(2).collect();
        let first = text.find(&stop).unwrap();
        let submission =
            Submission { stop: vec![stop.clone()], ..Submission::greedy(prompt(1), 20) };
        let (_, cut, ended) = answer(engine, submission)();
        assert_eq!(cut, text[..first]);
        assert_eq!((ended.finish, ended.matched), (Finish::Stop, Some(Matched::Text(stop))));
        let id = tokens[3];
        let at = tokens.iter().position(|token| *token == id).unwrap();
        let submission =
            Submission { stop_token_ids: vec![id], ..Submission::greedy(prompt(1), 20) };
        let (cut, _, ended) = answer(engine, submission)();
        assert_eq!(cut, tokens[..at]);
        assert_eq!(
            (ended.matched, ended.tokens.completion),
            (Some(Matched::Token(id)), at as u64 + 1)
        );
        let ignored = Submission { eos: EosRule::Ignored, ..Submission::greedy(prompt(2), 30) };
        assert_eq!(answer(engine, ignored)().0.len(), 30);
    });
}

#[test]
fn who_leaves_frees_his_slots_and_who_asks_for_too_much_hears_why() {
    let log = served(60, &[], |engine| {
        let mut ticket = engine
            .submit(Submission { eos: EosRule::Ignored, ..Submission::greedy(prompt(1), 40) });
        assert!(matches!(ticket.next_blocking(), Some(Event::Token(_))));
        drop(ticket);
        let mut long = engine.submit(Submission::greedy(vec![1; 63], 1));
        match long.next_blocking() {
            Some(Event::Refused(refusal)) => {
                assert_eq!(refusal.code, "prompt_too_long");
                assert!(refusal.message.contains("63 tokens"), "{}", refusal.message);
            }
            other => panic!("{other:?}"),
        }
        let odd = Sampling { temperature: 9.0, ..Sampling::default() };
        let mut odd = engine.submit(Submission { sampling: odd, ..Submission::greedy(vec![1], 1) });
        assert!(matches!(odd.next_blocking(), Some(Event::Refused(r)) if r.code == "bad_sampling"));
        assert_eq!(answer(engine, Submission::greedy(prompt(3), 5))().2.tokens.prompt, 17);
    });
    assert_eq!(kinds(&log, "given_up"), 1);
    decided_again(&log);
}

#[test]
fn a_recording_that_is_cut_off_is_decided_again_up_to_the_cut() {
    let log = served(16, &[3, 9], many);
    let mut text = Vec::new();
    let mut writer = plimsoll_replay::wire::LogWriter::new(&mut text, &log.header).unwrap();
    for record in &log.records {
        writer.push(record.clone()).unwrap();
    }
    writer.finish(Closing::Complete).unwrap();
    for part in [3, 5, 9] {
        let cut = &text[..text.len() * part / 10];
        let cut = Log::read(cut).unwrap();
        assert!(cut.cut_at.is_some());
        let again = live::again(&cut).unwrap();
        assert!(again.difference.is_none(), "at {part}0 %: {}", again.difference.unwrap());
    }
}

#[test]
fn a_client_that_does_not_read_is_given_up_before_its_events_fill_the_memory() {
    served(600, &[], |engine| {
        let endless = Submission { eos: EosRule::Ignored, ..Submission::greedy(prompt(1), 1800) };
        let mut lazy = engine.submit(endless.clone());
        while engine.status().totals.generation_tokens < 1025 {
            thread::sleep(Duration::from_millis(2));
        }
        // Others go on.
        assert_eq!(answer(engine, Submission::greedy(prompt(3), 5))().2.tokens.prompt, 17);
        let mut events = 0;
        let last = loop {
            match lazy.next_blocking() {
                Some(Event::Token(_)) => events += 1,
                other => break other,
            }
        };
        assert!((1025..1100).contains(&events), "{events}");
        assert!(matches!(last, Some(Event::Refused(refusal)) if refusal.code == "slow_reader"));
        // Who reads gets all of it.
        assert_eq!(answer(engine, endless)().0.len(), 1800);
    });
}

/// The host's model as a device has it: it draws tokens by itself where it is asked to, and answers nothing any more
/// after so many steps.
struct Device {
    host: HostModel,
    steps: u64,
    drawn: Arc<Mutex<[u64; 2]>>,
}

impl Model for Device {
    fn draws(&self) -> bool {
        true
    }

    fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        take: &mut dyn FnMut(Chosen<'_>),
    ) -> Result<(), BodyError> {
        if self.steps == 0 {
            return Err(BodyError::Failed("device 0 is lost: CUDA_ERROR_LAUNCH_FAILED".to_owned()));
        }
        self.steps -= 1;
        let logits = self.host.step(sequences).map_err(|e| BodyError::Failed(e.to_string()))?;
        assert_eq!(draws.len(), logits.count(), "an entry for each row");
        for (row, draw) in logits.rows().zip(draws) {
            self.drawn.lock().unwrap()[usize::from(draw.is_none())] += 1;
            take(draw.map_or(Chosen::Logits(row), |draw| Chosen::Token(drawn(row, draw))));
        }
        Ok(())
    }

    fn lend(&mut self, page: u32) -> Result<(), BodyError> {
        Model::lend(&mut self.host, page)
    }

    fn take_back(&mut self, page: u32) -> Result<(), BodyError> {
        Model::take_back(&mut self.host, page)
    }
}

/// What a device draws, in the plainest way.
fn drawn(logits: &[f32], draw: Draw) -> u32 {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let of = |id: &u32| logits[*id as usize];
    ids.sort_by(|a, b| of(b).total_cmp(&of(a)).then(a.cmp(b)));
    let most = of(&ids[0]);
    if draw.temperature == 0.0 {
        return ids[0];
    }
    if draw.top_k > 0 {
        ids.truncate(draw.top_k as usize);
    }
    let weight = |id: &u32| (f64::from(of(id) - most) / f64::from(draw.temperature)).exp();
    let total: f64 = ids.iter().map(weight).sum();
    let (mut kept, mut sum) = (0, 0.0);
    for id in &ids {
        if kept > 0 && weight(id) < f64::from(draw.min_p) {
            break;
        }
        (kept, sum) = (kept + 1, sum + weight(id));
        if sum >= f64::from(draw.top_p) * total {
            break;
        }
    }
    ids.truncate(kept);
    ids.sort_unstable();
    let mut left = draw.unit * sum;
    let found = ids.iter().find(|id| {
        left -= weight(id);
        left < 0.0
    });
    *found.unwrap_or(&ids[kept - 1])
}

/// All ways of choosing; the last two need the logits.
fn choices(number: u32) -> Sampling {
    let warm = Sampling { temperature: 0.9, seed: u64::from(number), ..Sampling::default() };
    match number % 7 {
        0 => Sampling::default(),
        1 => warm,
        2 => Sampling { top_k: 7, ..warm },
        3 => Sampling { top_p: 0.8, ..warm },
        4 => Sampling { top_k: 40, top_p: 0.9, min_p: 0.05, ..warm },
        5 => Sampling { presence_penalty: 0.5, ..warm },
        _ => Sampling { logprobs: Some(2), ..warm },
    }
}

#[test]
fn a_model_that_draws_itself_gives_the_tokens_of_one_that_does_not() {
    let drawn = Arc::new(Mutex::new([0; 2]));
    let kept = Arc::clone(&drawn);
    // Some requests are retracted on the way: what they drew stays drawn.
    let log = served_by(
        |host| Device { host, steps: u64::MAX, drawn: kept },
        16,
        &[],
        |engine| {
            let ask = |number| Submission {
                sampling: choices(number),
                ..Submission::greedy(prompt(number), 20)
            };
            let asked: Vec<_> =
                (0..14).map(|number| (number, answer(engine, ask(number)))).collect();
            for (number, answer) in asked {
                let (tokens, ..) = answer();
                assert_eq!(tokens, alone(choices(number), &prompt(number), 20), "request {number}");
            }
        },
    );
    assert!(kinds(&log, "retracted") > 0);
    let [drawn, logits] = *drawn.lock().unwrap();
    assert!(drawn > 100 && logits > 30, "{drawn} drawn there, {logits} here");
    decided_again(&log);
}

#[test]
fn a_device_that_is_lost_ends_everybodys_answer() {
    let scratch = Scratch::new();
    let mut checkpoint = checkpoint(&scratch);
    let host = model(&mut checkpoint, 60);
    let (engine, end) = channel(EngineInfo::default());
    let mut loaded = Loaded {
        model: Device { host, steps: 8, drawn: Arc::default() },
        tokenizer: Arc::new(checkpoint.tokenizer),
        eos: checkpoint.eos,
        settings: settings(60),
        pressure: None,
    };
    let submission = Submission { eos: EosRule::Ignored, ..Submission::greedy(prompt(1), 40) };
    let tickets: Vec<_> = (0..3).map(|_| engine.submit(submission.clone())).collect();
    let (sink, watcher) =
        (&mut Recorder::new(Vec::new(), &live::header(&[])).unwrap(), &mut Watchers::default());
    let error = run(&end, &mut loaded, sink, watcher).unwrap_err().to_string();
    assert!(error.contains("device 0 is lost: CUDA_ERROR_LAUNCH_FAILED"), "{error}");
    assert_eq!(engine.status().phase, Phase::Failed(error.clone()));
    for mut ticket in tickets {
        let last = loop {
            match ticket.next_blocking() {
                Some(Event::Token(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(last, Some(Event::Refused(refusal))
            if refusal.code == "engine_gone" && refusal.message == error));
    }
}
