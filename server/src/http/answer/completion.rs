//! The form of `/v1/completions`.

use plimsoll_core::sched::Finish;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{Part, Reply, Told, progress::Progress, token, usage::Usage};
use crate::engine::{Matched, Piece};

/// An answer, or a piece of one.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    /// Null in the events of a stream that tells it at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// One answer, or a piece of one.
#[derive(Serialize)]
pub(super) struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// Lists of one length, an entry for a token.
#[derive(Default, Serialize)]
pub(super) struct Logprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Top>>,
}

/// Texts with their logprobs, likeliest first.
pub(super) struct Top(Vec<(String, f32)>);

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, logprob) in &self.0 {
            map.serialize_entry(text, logprob)?;
        }
        map.end()
    }
}

/// The stop that ended an answer: an id or a text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    Token(u32),
    Text(String),
}

impl From<&Matched> for StopReason {
    fn from(matched: &Matched) -> Self {
        match matched {
            Matched::Token(id) => Self::Token(*id),
            Matched::Text(text) => Self::Text(text.clone()),
        }
    }
}

impl Choice {
    fn new(index: usize) -> Self {
        Self {
            index,
            text: String::new(),
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            prompt_token_ids: None,
        }
    }

    /// Adds a part; whether there is something to tell in it.
    pub(super) fn add(&mut self, reply: &Reply, progress: &mut Progress, part: &Part<'_>) -> bool {
        match part {
            Part::Begin(pieces) => self.begin(reply, progress, pieces),
            Part::Token(_) if reply.style.silent => false,
            Part::Token(piece) => {
                if reply.style.logprobs.is_some() {
                    let logprobs = self.logprobs.get_or_insert_default();
                    logprobs.add(reply, progress.characters, piece);
                }
                if reply.style.ids {
                    self.token_ids.get_or_insert_default().push(piece.token);
                }
                self.text(progress, &piece.text);
                !piece.text.is_empty() || self.logprobs.is_some() || self.token_ids.is_some()
            }
            Part::End(ended) => {
                self.finish_reason = Some(ended.finish.name());
                if reply.style.silent {
                    self.finish_reason = Some(Finish::Length.name());
                    return true;
                }
                self.stop_reason = ended.matched.as_ref().map(Into::into);
                self.text(progress, &ended.text);
                true
            }
        }
    }

    fn text(&mut self, progress: &mut Progress, text: &str) {
        progress.characters += text.chars().count();
        self.text.push_str(text);
    }

    /// The prompt again.
    fn begin(&mut self, reply: &Reply, progress: &mut Progress, pieces: &[Piece]) -> bool {
        let Some(prompt) = reply.prompt(self.index) else { return false };
        if reply.style.ids {
            self.prompt_token_ids = Some(prompt.ids.to_vec());
        }
        let Some(echo) = &prompt.echo else { return reply.style.ids };
        if reply.style.logprobs.is_some() {
            let logprobs = self.logprobs.get_or_insert_default();
            let mut offset = 0;
            if let Some(first) = prompt.ids.first() {
                // Nothing comes before it that could make it likely.
                let first =
                    Piece { token: *first, text: String::new(), logprob: None, top: vec![] };
                offset += logprobs.add(reply, offset, &first);
            }
            for piece in pieces {
                offset += logprobs.add(reply, offset, piece);
            }
        }
        self.text(progress, echo);
        true
    }
}

impl Logprobs {
    /// Adds a token; its length in characters.
    fn add(&mut self, reply: &Reply, offset: usize, piece: &Piece) -> usize {
        let text = token::text(&reply.tokenizer, piece.token).text;
        let length = text.chars().count();
        let logprob = piece.logprob.map(token::finite);
        let most = reply.style.logprobs.unwrap_or(0) as usize;
        let top = logprob.filter(|_| most > 0).map(|own| {
            let likely = token::texts(&reply.tokenizer, &piece.top).take(most);
            let mut top: Vec<(String, f32)> = likely.map(|(t, l)| (t.text, l)).collect();
            // The chosen token is always among them; of equal texts the likelier stays.
            top.push((text.clone(), own));
            let mut seen = std::collections::BTreeSet::new();
            top.retain(|(text, _)| seen.insert(text.clone()));
            Top(top)
        });
        self.text_offset.push(offset);
        self.token_logprobs.push(logprob);
        self.tokens.push(text);
        self.top_logprobs.push(top);
        length
    }
}

impl Reply {
    /// A page of `/v1/completions`.
    pub(super) fn completion(
        &self,
        choices: Vec<Choice>,
        usage: Option<Option<Usage>>,
    ) -> Page<'_> {
        let (id, model) = (&self.id, &self.model);
        Page { id, object: "text_completion", created: self.created, model, choices, usage }
    }

    /// What an event of a stream tells of the tokens used.
    pub(super) fn usage_so_far(&self, choice: usize, progress: &Progress) -> Option<Option<Usage>> {
        match self.style.told {
            Told::Nothing => None,
            Told::AtTheEnd => Some(None),
            Told::Always => Some(Some(Usage::one(self, choice, progress))),
        }
    }
}

/// An empty answer with that number.
pub(super) fn choice(index: usize) -> Choice {
    Choice::new(index)
}
