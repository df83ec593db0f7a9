//! The form of `/v1/chat/completions`.

use serde::Serialize;

use super::{Part, Reply, completion::StopReason, progress::Progress, token, usage::Usage};
use crate::engine::Piece;

/// A whole answer.
#[derive(Serialize)]
pub(super) struct Page<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// One answer.
#[derive(Default, Serialize)]
pub(super) struct Choice {
    index: usize,
    message: Message,
    #[serde(flatten)]
    end: End,
}

/// A piece of one.
#[derive(Default, Serialize)]
pub(super) struct Delta {
    index: usize,
    delta: Message,
    #[serde(flatten)]
    end: End,
}

#[derive(Default, Serialize)]
struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What stands beside the text.
#[derive(Default, Serialize)]
struct End {
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct Logprobs {
    content: Vec<Token>,
}

#[derive(Serialize)]
struct Token {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<Alternative>,
}

#[derive(Serialize)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl End {
    /// Adds a part; whether there is something to tell in it, beside the text, which is given back.
    fn add<'p>(&mut self, reply: &Reply, part: &Part<'p>) -> (bool, &'p str) {
        match part {
            Part::Begin(_) => (true, ""),
            Part::Token(piece) => {
                if reply.style.logprobs.is_some() {
                    self.logprobs.get_or_insert_default().content.push(logprob(reply, piece));
                }
                if reply.style.ids {
                    self.token_ids.get_or_insert_default().push(piece.token);
                }
                let told = self.logprobs.is_some() || self.token_ids.is_some();
                (told || !piece.text.is_empty(), &piece.text)
            }
            Part::End(ended) => {
                self.finish_reason = Some(ended.finish.name());
                self.stop_reason = ended.matched.as_ref().map(Into::into);
                (true, &ended.text)
            }
        }
    }
}

fn logprob(reply: &Reply, piece: &Piece) -> Token {
    let own = token::text(&reply.tokenizer, piece.token);
    let top = token::texts(&reply.tokenizer, &piece.top);
    let alternative = |(text, logprob): (token::TokenText, f32)| Alternative {
        token: text.text,
        logprob,
        bytes: text.bytes,
    };
    let most = reply.style.logprobs.unwrap_or(0) as usize;
    Token {
        token: own.text,
        logprob: token::finite(piece.logprob.unwrap_or(f32::NAN)),
        bytes: own.bytes,
        top_logprobs: top.map(alternative).take(most).collect(),
    }
}

impl Choice {
    /// An empty answer.
    pub(super) fn new(index: usize) -> Self {
        let message = Message { role: Some("assistant"), content: Some(String::new()) };
        Self { index, message, end: End::default() }
    }

    /// Adds a part.
    pub(super) fn add(&mut self, reply: &Reply, part: &Part<'_>) {
        let (_, text) = self.end.add(reply, part);
        self.message.content.get_or_insert_default().push_str(text);
    }
}

impl Delta {
    /// A piece with one part; `None` where it would tell nothing.
    pub(super) fn of(reply: &Reply, index: usize, part: &Part<'_>) -> Option<Self> {
        let mut end = End::default();
        let (told, text) = end.add(reply, part);
        let delta = match part {
            // The role comes first, by itself.
            Part::Begin(_) => Message { role: Some("assistant"), content: Some(String::new()) },
            _ => Message { role: None, content: (!text.is_empty()).then(|| text.to_owned()) },
        };
        told.then_some(Self { index, delta, end })
    }
}

impl Reply {
    fn chat_page<C>(
        &self,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<Usage>>,
    ) -> Page<'_, C> {
        let (id, model) = (&self.id, &self.model);
        let created = self.created;
        Page { id, object, created, model, choices, usage, prompt_token_ids: None }
    }

    /// A whole answer.
    pub(super) fn chat(&self, choices: Vec<Choice>, usage: Usage) -> Page<'_, Choice> {
        let ids = self.prompts.first().filter(|_| self.style.ids);
        let prompt_token_ids = ids.map(|prompt| prompt.ids.to_vec());
        Page { prompt_token_ids, ..self.chat_page("chat.completion", choices, Some(Some(usage))) }
    }

    /// An event of a stream.
    pub(super) fn chat_event(
        &self,
        choices: Vec<Delta>,
        progress: Option<&Progress>,
        usage: Option<Option<Usage>>,
    ) -> Page<'_, Delta> {
        let page = self.chat_page("chat.completion.chunk", choices, usage);
        // Once, with the role.
        let first = self.style.ids && progress.is_some_and(|progress| !progress.begun);
        let ids = self.prompts.first().filter(|_| first);
        Page { prompt_token_ids: ids.map(|prompt| prompt.ids.to_vec()), ..page }
    }
}
