//! A server under load, over the interface of `OpenAI`: `/v1/completions` as a stream, a thread a stream.

use super::{
    drive::{Heard, Target, Trouble, Voice, What, answer_tokens},
    fold::Fold,
    options::PromptAs,
};
use crate::{
    commands::watch::client::{Client, FetchError, Unanswered},
    exit::Failure,
};
use plimsoll_core::{
    engine::serving::{Arrival, SamplingChoice},
    sched::{EosRule, RequestId},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Read},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

/// Most streams at once; more requests wait here for a free one, and their time runs meanwhile.
pub const MOST_STREAMS: usize = 256;
/// Longest line of a stream.
const LONGEST_LINE: u64 = 1 << 20;

/// Words that are about a token each in every vocabulary.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their", "we",
    "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up", "said",
    "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new", "some",
];

struct Job {
    request: RequestId,
    body: String,
    voice: Voice,
}

/// A server, and how prompts travel to it.
pub struct Remote {
    client: Arc<Client>,
    model: String,
    fold: Fold,
    prompt_as: PromptAs,
    eos: EosRule,
    jobs: Sender<Job>,
    queue: Arc<Mutex<Receiver<Job>>>,
    /// Requests that are sent or wait for a thread.
    open: Arc<AtomicUsize>,
    threads: usize,
}

impl Remote {
    /// Nothing is sent yet.
    pub fn new(
        client: Client,
        model: String,
        fold: Fold,
        prompt_as: PromptAs,
        eos: EosRule,
    ) -> Self {
        let (jobs, queue) = channel();
        Self {
            client: Arc::new(client),
            model,
            fold,
            prompt_as,
            eos,
            jobs,
            queue: Arc::new(Mutex::new(queue)),
            open: Arc::default(),
            threads: 0,
        }
    }

    fn body(&self, arrival: &Arrival) -> String {
        let request = &arrival.request;
        let ids = self.fold.prompt(&request.prompt);
        let prompt = match self.prompt_as {
            PromptAs::Ids => json!(ids),
            PromptAs::Text => {
                let word = |id: &u32| WORDS.get(*id as usize % WORDS.len()).copied();
                json!(ids.iter().filter_map(word).collect::<Vec<_>>().join(" "))
            }
        };
        let greedy = arrival.sampling.choice == SamplingChoice::Greedy;
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": answer_tokens(request),
            "temperature": if greedy { 0.0 } else { 1.0 },
            "stream": true,
            "stream_options": { "include_usage": true },
            "ignore_eos": self.eos == EosRule::Ignored,
        });
        if let (Some(priority), Some(map)) = (request.priority, body.as_object_mut()) {
            map.insert("priority".to_owned(), json!(priority));
        }
        body.to_string()
    }

    /// One thread more, where there are fewer than requests. One that cannot be had is none: the others do its
    /// work.
    fn grow(&mut self) {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        if self.threads >= MOST_STREAMS || open <= self.threads {
            return;
        }
        let (client, queue) = (Arc::clone(&self.client), Arc::clone(&self.queue));
        let open = Arc::clone(&self.open);
        let work = move || {
            loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = job else { return };
                stream(&client, job);
                open.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("stream".to_owned()).stack_size(512 << 10);
        self.threads += usize::from(thread.spawn(work).is_ok());
    }
}

impl Target for Remote {
    fn send(&mut self, arrival: &Arrival, voice: &Voice) {
        let job =
            Job { request: arrival.request.id, body: self.body(arrival), voice: voice.clone() };
        self.grow();
        // The other end is kept here: it is not closed.
        let _ = self.jobs.send(job);
    }

    fn made(&mut self, request: RequestId, token: u32) {
        self.fold.made(request, token);
    }
}

/// The name of the first model that a server lists.
///
/// # Errors
///
/// Nobody is there, or no server that lists models.
pub fn first_model(client: &Client, place: &str) -> Result<String, Failure> {
    let page = client.get("/v1/models").map_err(|error| match error {
        FetchError::Status(401 | 403) => {
            Failure::input(format!("{place} wants an API key: --api-key-env NAME"))
        }
        FetchError::Status(status) => Failure::input(format!(
            "{place} answers /v1/models with status {status}: no server with OpenAI's interface"
        )),
        other => Failure::no_device(format!("{place}: {other}")),
    })?;
    let page: Value = serde_json::from_str(&page).unwrap_or_default();
    let id = page.pointer("/data/0/id").and_then(Value::as_str);
    id.map(str::to_owned).ok_or_else(|| {
        Failure::input(format!("{place} lists no model at /v1/models: --model-name NAME"))
    })
}

/// Sends one request and tells everything that comes back.
fn stream(client: &Client, job: Job) {
    let Job { request, body, voice } = job;
    // When nobody listens any more the load is over.
    let tell = |what| voice.send(Heard { request, at: Instant::now(), what }).is_ok();
    let body = match client.post("/v1/completions", &body) {
        Ok(body) => body,
        Err(Unanswered { error: FetchError::Status(status), text }) => {
            let trouble = Trouble { reason: format!("status_{status}"), message: said(&text) };
            tell(What::Refused(trouble));
            return;
        }
        Err(Unanswered {
            error: error @ (FetchError::Refused | FetchError::UnknownHost), ..
        }) => {
            tell(What::Lost(error.to_string()));
            return;
        }
        Err(Unanswered { error, .. }) => {
            let trouble = Trouble { reason: error.word(), message: error.to_string() };
            tell(What::Broken(trouble));
            return;
        }
    };
    let mut answer = Answer::default();
    let mut lines = BufReader::new(body);
    let broken = loop {
        let mut line = String::new();
        match lines.by_ref().take(LONGEST_LINE).read_line(&mut line) {
            Ok(0) => break answer.cut(),
            Ok(_) => {}
            Err(error) => {
                let message = format!("the stream broke: {error}");
                break Some(Trouble { reason: "broken".to_owned(), message });
            }
        }
        match answer.take(&line) {
            Step::Nothing => {}
            Step::Token if tell(What::Token(None)) => {}
            Step::Token => return,
            Step::Done => break None,
            Step::Trouble(trouble) => break Some(trouble),
        }
    };
    tell(broken.map_or_else(|| answer.ended(), What::Broken));
}

/// What a line of a stream is.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Token,
    Done,
    Trouble(Trouble),
}

/// An answer as far as it was read.
#[derive(Debug, Default)]
struct Answer {
    usage: Value,
    finished: bool,
}

impl Answer {
    fn take(&mut self, line: &str) -> Step {
        let Some(data) = line.trim().strip_prefix("data:").map(str::trim) else {
            return Step::Nothing;
        };
        if data == "[DONE]" {
            return Step::Done;
        }
        let Ok(chunk) = serde_json::from_str::<Value>(data) else {
            let message = "a line of the stream is no JSON".to_owned();
            return Step::Trouble(Trouble { reason: "broken".to_owned(), message });
        };
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            let reason = "error_in_stream".to_owned();
            return Step::Trouble(Trouble { reason, message: said(data) });
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.usage = usage.clone();
        }
        let Some(choice) = chunk.pointer("/choices/0") else { return Step::Nothing };
        let ends = choice.get("finish_reason").and_then(Value::as_str);
        self.finished |= ends.is_some();
        if ends == Some("abort") {
            let message = "the server gave the request up".to_owned();
            return Step::Trouble(Trouble { reason: "given_up".to_owned(), message });
        }
        let text = choice.get("text").and_then(Value::as_str).unwrap_or_default();
        // The last chunk of some servers has no token, but says why there are no more.
        if ends.is_none() || !text.is_empty() { Step::Token } else { Step::Nothing }
    }

    /// The stream is at its end without saying so.
    fn cut(&self) -> Option<Trouble> {
        (!self.finished).then(|| Trouble {
            reason: "broken".to_owned(),
            message: "the stream ended before the answer".to_owned(),
        })
    }

    fn ended(&self) -> What {
        let count = |place: &str| self.usage.pointer(place).and_then(Value::as_u64);
        What::Ended {
            outputs: count("/completion_tokens"),
            prompt: count("/prompt_tokens"),
            cached: count("/prompt_tokens_details/cached_tokens"),
        }
    }
}

/// The message in an error of the server, at most a line of it.
fn said(text: &str) -> String {
    let page: Value = serde_json::from_str(text).unwrap_or_default();
    let places = ["/error/message", "/message", "/detail"];
    let found = places.iter().find_map(|place| page.pointer(place)?.as_str());
    let found = found.unwrap_or(text).trim();
    found.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_line_by_line() {
        let mut answer = Answer::default();
        assert_eq!(answer.take("\n"), Step::Nothing);
        assert_eq!(answer.take(": ping\n"), Step::Nothing);
        let token = r#"data: {"choices":[{"text":"","finish_reason":null}]}"#;
        assert_eq!(answer.take(token), Step::Token);
        assert!(answer.cut().is_some());
        let last = r#"data: {"choices":[{"text":"","finish_reason":"length"}],"usage":null}"#;
        assert_eq!(answer.take(last), Step::Nothing);
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,
            "prompt_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(answer.take(&usage.replace('\n', "")), Step::Nothing);
        assert_eq!(answer.take("data: [DONE]"), Step::Done);
        assert!(matches!(
            answer.ended(),
            What::Ended { outputs: Some(3), prompt: Some(5), cached: Some(4) }
        ));
        for wrong in [
            "data: {",
            r#"data: {"error":{"message":"full"}}"#,
            r#"data: {"choices":[{"finish_reason":"abort"}]}"#,
        ] {
            assert!(matches!(Answer::default().take(wrong), Step::Trouble(_)), "{wrong}");
        }
    }

    #[test]
    fn errors_are_said_in_the_servers_words() {
        assert_eq!(said(r#"{"error":{"message":"too\nlong"}}"#), "too long");
        assert_eq!(said("plain"), "plain");
        assert!(said(&"x".repeat(9000)).len() <= 300);
    }
}
