//! Events of the engine → answers, whole or piece by piece.

mod chat;
mod completion;
mod merged;
mod native;
mod progress;
mod stream;
mod token;
mod usage;
mod whole;

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    http::{HeaderValue, Response, header},
};
use plimsoll_checkpoint::Tokenizer;

use super::{
    error::ApiError,
    request::{Job, prompt::Encoded},
    state::{Admission, Shared},
};
use crate::engine::{Ended, Piece};
use merged::Merged;
use progress::Progress;

/// Whose form an answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
    /// `/generate`.
    Native,
}

impl Form {
    /// How ids of its answers begin.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Completion => "cmpl-",
            Self::Chat => "chatcmpl-",
            Self::Native => "",
        }
    }
}

/// What a stream tells of the tokens used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// Nothing.
    Nothing,
    /// All of them in an event at the end.
    AtTheEnd,
    /// And in every event those so far.
    Always,
}

/// How an answer is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) form: Form,
    /// Piece by piece.
    pub(crate) stream: bool,
    pub(crate) told: Told,
    /// Logprobs, with this many alternatives.
    pub(crate) logprobs: Option<u32>,
    /// Ids beside the text.
    pub(crate) ids: bool,
    /// The answer itself is left out: only the prompt is repeated.
    pub(crate) silent: bool,
    /// As a list, even of one (`/generate` alone).
    pub(crate) listed: bool,
}

/// What all parts of an answer have in common.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) style: Style,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) prompts: Vec<Encoded>,
    /// Answers to each prompt.
    pub(crate) n: usize,
}

impl Reply {
    /// The prompt of an answer.
    fn prompt(&self, choice: usize) -> Option<&Encoded> {
        self.prompts.get(choice / self.n.max(1))
    }

    fn prompt_tokens(&self, choice: usize) -> u64 {
        self.prompt(choice).map_or(0, |prompt| prompt.ids.len() as u64)
    }
}

/// A part of one answer that can be written.
#[derive(Debug)]
enum Part<'a> {
    /// What comes before the first token: the prompt again, with the logprobs of its tokens.
    Begin(&'a [Piece]),
    /// A token.
    Token(&'a Piece),
    /// The end.
    End(&'a Ended),
}

/// A request under way.
#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    tickets: Merged,
    progress: Vec<Progress>,
    reply: Reply,
    arrived: Instant,
    /// Makes room when the answer is over.
    _admission: Admission,
}

/// Sends a job to the engine and answers with what comes back.
///
/// # Errors
/// What the engine refuses before anything is written.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    job: Job,
    admission: Admission,
    arrived: Instant,
) -> Result<Response<Body>, ApiError> {
    let progress = job.submissions.iter().map(|_| Progress::default()).collect();
    let engine = &shared.front.engine;
    let tickets = job.submissions.into_iter().map(|s| engine.submit(s)).collect();
    let running = Running {
        shared: Arc::clone(shared),
        tickets: Merged::new(tickets),
        progress,
        reply: job.reply,
        arrived,
        _admission: admission,
    };
    let id = HeaderValue::from_str(&running.reply.id);
    let mut response = match running.reply.style.stream {
        true => stream::open(running).await?,
        false => whole::collect(running).await?,
    };
    if let Ok(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

/// A response of JSON.
pub(crate) fn json(body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
