//! Answers in one piece.

use std::future::poll_fn;

use axum::{body::Body, http::Response};
use serde::Serialize;

use super::{
    Form, Part, Running, chat, completion, json, merged::Next, native::Kept, usage::Usage,
};
use crate::{
    engine::{Ended, Event, Piece},
    http::error::ApiError,
};

/// All of one answer.
#[derive(Default)]
struct Collected {
    prompt: Vec<Piece>,
    pieces: Vec<Piece>,
    ended: Option<Ended>,
}

impl Collected {
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let begin = std::iter::once(Part::Begin(&self.prompt));
        begin.chain(self.pieces.iter().map(Part::Token)).chain(self.ended.iter().map(Part::End))
    }
}

/// Waits for all answers of a request and writes them.
///
/// # Errors
/// When the engine refuses one of them, or dies.
pub(super) async fn collect(mut running: Running) -> Result<Response<Body>, ApiError> {
    let mut all: Vec<Collected> = running.progress.iter().map(|_| Collected::default()).collect();
    loop {
        match poll_fn(|context| running.tickets.poll(context)).await {
            Next::Over => break,
            Next::Gone => return Err(ApiError::engine_gone()),
            Next::Event(at, event) => {
                let (arrived, metrics) = (running.arrived, &running.shared.metrics);
                let places = all.get_mut(at).zip(running.progress.get_mut(at));
                let Some((one, progress)) = places else { continue };
                match event {
                    Event::Refused(refusal) => return Err(refusal.into()),
                    Event::Prompt(pieces) => one.prompt = pieces,
                    Event::Token(piece) => {
                        progress.token(piece.token, arrived, metrics);
                        one.pieces.push(piece);
                    }
                    Event::Finished(ended) => {
                        progress.end(&ended, arrived, metrics);
                        one.ended = Some(ended);
                    }
                }
            }
        }
    }
    write(running, &all).map(json)
}

fn write(running: Running, all: &[Collected]) -> Result<String, ApiError> {
    let Running { reply, mut progress, arrived, .. } = running;
    match reply.style.form {
        Form::Completion => {
            let mut choices = Vec::with_capacity(all.len());
            for (at, (one, progress)) in all.iter().zip(&mut progress).enumerate() {
                let mut choice = completion::choice(at);
                for part in one.parts() {
                    choice.add(&reply, progress, &part);
                }
                choices.push(choice);
            }
            text(&reply.completion(choices, Some(Some(Usage::of(&reply, &progress)))))
        }
        Form::Chat => {
            let mut choices = Vec::with_capacity(all.len());
            for (at, one) in all.iter().enumerate() {
                let mut choice = chat::Choice::new(at);
                one.parts().for_each(|part| choice.add(&reply, &part));
                choices.push(choice);
            }
            text(&reply.chat(choices, Usage::of(&reply, &progress)))
        }
        Form::Native => {
            let mut pages = Vec::with_capacity(all.len());
            let mut kept: Vec<Kept> = all.iter().map(|_| Kept::default()).collect();
            for ((one, progress), kept) in all.iter().zip(&mut progress).zip(&mut kept) {
                for part in one.parts() {
                    kept.add(&reply, progress, &part);
                }
            }
            for (at, (kept, progress)) in kept.iter().zip(&progress).enumerate() {
                pages.push(kept.page(&reply, at, progress, arrived));
            }
            match pages.as_slice() {
                [page] if !reply.style.listed => text(page),
                pages => text(&pages),
            }
        }
    }
}

fn text(page: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(page).map_err(|error| ApiError::internal(error.to_string()))
}
