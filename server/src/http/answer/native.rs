//! The form of `/generate`.

use plimsoll_core::sched::Finish;
use serde::Serialize;
use std::time::Instant;

use super::{Part, Reply, completion::StopReason, progress::Progress, token, usage::Usage};
use crate::engine::{Ended, Piece};

/// An answer as far as it is.
#[derive(Serialize)]
pub(super) struct Page<'a> {
    text: &'a str,
    output_ids: &'a [u32],
    meta_info: Meta<'a>,
    /// Its place among several in a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

#[derive(Serialize)]
struct Meta<'a> {
    id: &'a str,
    finish_reason: Option<&'a FinishReason>,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: u64,
    /// Seconds since the request came.
    e2e_latency: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_logprobs: Option<&'a [Entry]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<&'a [Vec<Entry>]>,
}

#[derive(Serialize)]
struct FinishReason {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<StopReason>,
}

/// Logprob, id and text of a token.
type Entry = (f32, u32, String);

/// What is kept of an answer, because every event repeats it.
#[derive(Default)]
pub(super) struct Kept {
    logprobs: Vec<Entry>,
    top: Vec<Vec<Entry>>,
    finish: Option<FinishReason>,
}

impl Kept {
    /// Adds a part; whether there is something to tell in it.
    pub(super) fn add(&mut self, reply: &Reply, progress: &mut Progress, part: &Part<'_>) -> bool {
        match part {
            Part::Begin(_) => false,
            Part::Token(_) if reply.style.silent => false,
            Part::End(_) if reply.style.silent => {
                let (r#type, length) = (Finish::Length.name(), Some(0));
                self.finish = Some(FinishReason { r#type, length, matched: None });
                true
            }
            Part::Token(piece) => {
                if reply.style.logprobs.is_some() {
                    self.logprob(reply, piece);
                }
                progress.text.push_str(&piece.text);
                true
            }
            Part::End(ended) => {
                progress.text.push_str(&ended.text);
                self.finish = Some(finish(ended, progress));
                true
            }
        }
    }

    fn logprob(&mut self, reply: &Reply, piece: &Piece) {
        let text = |id| token::text(&reply.tokenizer, id).text;
        let own = token::finite(piece.logprob.unwrap_or(f32::NAN));
        self.logprobs.push((own, piece.token, text(piece.token)));
        let top = piece.top.iter().take(reply.style.logprobs.unwrap_or(0) as usize);
        let top = top.map(|one| (token::finite(one.logprob), one.token, text(one.token)));
        self.top.push(top.collect());
    }

    /// The answer as far as it is.
    pub(super) fn page<'a>(
        &'a self,
        reply: &'a Reply,
        choice: usize,
        progress: &'a Progress,
        arrived: Instant,
    ) -> Page<'a> {
        let usage = Usage::one(reply, choice, progress);
        let logprobs = reply.style.logprobs;
        Page {
            text: &progress.text,
            output_ids: if reply.style.silent { &[] } else { &progress.ids },
            meta_info: Meta {
                id: &reply.id,
                finish_reason: self.finish.as_ref(),
                prompt_tokens: usage.prompt(),
                completion_tokens: usage.completion(),
                cached_tokens: usage.cached(),
                e2e_latency: arrived.elapsed().as_secs_f64(),
                output_token_logprobs: logprobs.map(|_| self.logprobs.as_slice()),
                output_top_logprobs: logprobs.filter(|n| *n > 0).map(|_| self.top.as_slice()),
            },
            index: (reply.style.listed && reply.style.stream).then_some(choice),
        }
    }
}

fn finish(ended: &Ended, progress: &Progress) -> FinishReason {
    let length = (ended.finish == Finish::Length).then_some(progress.ids.len() as u64);
    let matched = ended.matched.as_ref().map(Into::into);
    FinishReason { r#type: ended.finish.name(), length, matched }
}
