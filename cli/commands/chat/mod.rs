//! `chat`: a conversation with a model in this process, its words as they become certain.

mod lines;
pub mod options;

use crate::{
    commands::serve::dead,
    exit::{self, Failure},
    host::Stop,
    interrupt,
    output::Output,
};
use lines::Lines;
use options::ChatArgs;
use plimsoll_backend_host::model::Sampling;
use plimsoll_checkpoint::{Around, Turn};
use plimsoll_core::{
    decision::{DecisionSink, Record},
    engine::serving::Unwatched,
    sched::Finish,
};
use plimsoll_server::{
    engine::{Ended, Event, Phase, Submission},
    http::today,
    start::{Running, plan},
};
use serde_json::{Value, json};
use std::time::Instant;

/// A conversation keeps no log.
struct NoLog;

impl DecisionSink for NoLog {
    fn record(&mut self, _: Record) {}
}

/// Talks until the input ends.
pub fn chat(args: &ChatArgs, output: &Output) -> Result<u8, Failure> {
    let mut ask = args.model.ask()?;
    // One talks at a time: more would take pool and arena for nobody.
    ask.max_running_requests = Some(1);
    let planned = plan(ask).map_err(Failure::input)?;
    // There is nothing to close: the first Ctrl-C ends it.
    interrupt::exit_at_once(output);
    let running = planned.start(NoLog, Unwatched).map_err(Failure::no_device)?;
    if !running.wait_ready() {
        return Err(match running.end() {
            Some((Err(error), ..)) => dead(error),
            _ => Failure::no_device("the engine ended before it was ready"),
        });
    }
    let outcome = talk(args, &running, output);
    // It has nothing open any more: it ends at once.
    drop(running.end());
    outcome
}

fn talk(
    args: &ChatArgs,
    running: &Running<NoLog, Unwatched>,
    output: &Output,
) -> Result<u8, Failure> {
    let stop = output.host().map(|host| host.stop.clone()).unwrap_or_default();
    let mut chat = Chat::new(args, running, output, stop);
    if running.template.is_none() {
        output.note(
            "note: the model has no chat template: what you write is gone on with as it stands",
        );
    }
    let code = match &args.prompt {
        Some(prompt) => chat.answer(prompt)?,
        None => {
            let mut lines = Lines::of(output);
            loop {
                let Some(line) = lines.next(output)? else { break exit::OK };
                if line.trim().is_empty() {
                    continue;
                }
                match chat.answer(&line)? {
                    exit::OK => {}
                    code => break code,
                }
            }
        }
    };
    chat.close()?;
    Ok(code)
}

/// A conversation.
struct Chat<'a> {
    args: &'a ChatArgs,
    running: &'a Running<NoLog, Unwatched>,
    output: &'a Output,
    stop: Stop,
    /// Messages so far, the system's first where there is one.
    messages: Vec<Value>,
    /// Answers, where they go to a file: it is written once.
    kept: String,
}

/// An answer that came.
struct Answer {
    text: String,
    ended: Option<Ended>,
    first: Option<Instant>,
    last: Instant,
}

impl<'a> Chat<'a> {
    fn new(
        args: &'a ChatArgs,
        running: &'a Running<NoLog, Unwatched>,
        output: &'a Output,
        stop: Stop,
    ) -> Self {
        let messages = args.system.iter().map(|text| message("system", text)).collect();
        Self { args, running, output, stop, messages, kept: String::new() }
    }

    /// Answers a question; answers the exit code, 0 where the conversation may go on.
    fn answer(&mut self, question: &str) -> Result<u8, Failure> {
        self.messages.push(message("user", question));
        let answer = loop {
            let submission = Submission {
                sampling: Sampling {
                    temperature: self.args.temperature,
                    top_p: self.args.top_p,
                    seed: self.args.seed,
                    ..Sampling::default()
                },
                max_new_tokens: self.args.max_tokens,
                ..Submission::greedy(self.prompt(question)?, 1)
            };
            match self.hear(submission)? {
                Some(answer) => break answer,
                None => self.output.note(
                    "note: the context is full: the oldest question and its answer are left out",
                ),
            }
        };
        self.say("\n")?;
        self.tell(&answer);
        if answer.ended.is_none() {
            self.output.note("interrupted");
            return Ok(exit::INTERRUPTED);
        }
        self.messages.push(message("assistant", &answer.text));
        Ok(exit::OK)
    }

    /// The ids of the conversation so far, or of the question alone for a model that knows no conversations.
    fn prompt(&self, question: &str) -> Result<Vec<u32>, Failure> {
        let tokenizer = &self.running.tokenizer;
        let ids = match &self.running.template {
            None => tokenizer.encode(question, Around::Special),
            Some(template) => template
                .render(&json!(self.messages), &Value::Null, Turn::Assistant, today())
                .and_then(|text| tokenizer.encode(&text, Around::Nothing)),
        };
        ids.map_err(Failure::input)
    }

    /// Sends a prompt and says what comes. `None`: it was too long, and the conversation is shorter now.
    fn hear(&mut self, submission: Submission) -> Result<Option<Answer>, Failure> {
        let mut ticket = self.running.engine.submit(submission);
        let mut answer =
            Answer { text: String::new(), ended: None, first: None, last: Instant::now() };
        while !self.stop.is_asked() {
            let Some(event) = ticket.next_blocking() else { return Err(self.gone()) };
            answer.last = Instant::now();
            match event {
                Event::Prompt(_) => {}
                Event::Token(piece) => {
                    answer.first.get_or_insert(answer.last);
                    self.say(&piece.text)?;
                    answer.text.push_str(&piece.text);
                }
                Event::Finished(ended) if ended.finish == Finish::Abort => return Err(self.gone()),
                Event::Finished(ended) => {
                    self.say(&ended.text)?;
                    answer.text.push_str(&ended.text);
                    answer.ended = Some(ended);
                    break;
                }
                Event::Refused(refusal) if refusal.code == "prompt_too_long" && self.forget() => {
                    return Ok(None);
                }
                Event::Refused(refusal) if refusal.code == "engine_gone" => return Err(self.gone()),
                Event::Refused(refusal) => return Err(Failure::input(refusal.message)),
            }
        }
        Ok(Some(answer))
    }

    /// Leaves out the oldest question with its answer; whether there was one beside the latest question.
    fn forget(&mut self) -> bool {
        let system = usize::from(self.args.system.is_some());
        if self.running.template.is_none() || self.messages.len() < system + 3 {
            return false;
        }
        self.messages.drain(system..system + 2);
        true
    }

    fn gone(&self) -> Failure {
        match self.running.engine.status().phase {
            Phase::Failed(why) => Failure::no_device(why),
            _ => Failure::no_device("the engine has ended"),
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        if self.output.is_file() {
            self.kept.push_str(text);
            return Ok(());
        }
        if text.is_empty() { Ok(()) } else { self.output.write(text) }
    }

    fn close(&self) -> Result<(), Failure> {
        if self.output.is_file() { self.output.write(&self.kept) } else { Ok(()) }
    }

    /// How fast it was.
    fn tell(&self, answer: &Answer) {
        let Some(ended) = &answer.ended else { return };
        let tokens = ended.tokens;
        let gaps = tokens.completion.saturating_sub(1);
        let rate = answer.first.filter(|_| gaps > 0).map(|first| {
            let seconds = answer.last.saturating_duration_since(first).as_secs_f64();
            format!(", {:.1} tokens/s", gaps as f64 / seconds.max(1e-9))
        });
        self.output.note(&format!(
            "[{} tokens{}; prompt {}, {} of them cached]",
            tokens.completion,
            rate.unwrap_or_default(),
            tokens.prompt,
            tokens.cached
        ));
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}
