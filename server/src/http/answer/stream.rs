//! Answers piece by piece, as server-sent events.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderValue, Response, header},
};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{
    Form, Part, Running, Told, chat, completion, merged::Next, native::Kept, usage::Usage,
};
use crate::{engine::Event, http::error::ApiError};

/// How long the status waits for the first event: a request that the engine refuses gets the status of its
/// refusal, one that waits in the queue for long an open stream.
const FIRST_EVENT: Duration = Duration::from_secs(2);
/// Bytes of one frame, after which the rest waits for the next.
const FRAME: usize = 16 << 10;

/// The body of a stream. Dropping it, as a client that leaves does, gives the request up.
struct Events {
    running: Running,
    kept: Vec<Kept>,
    /// What happened before the status was known.
    first: Option<Next>,
    silence: Pin<Box<Sleep>>,
    over: bool,
}

/// Waits until the request is taken in, and opens the stream.
///
/// # Errors
/// When the engine refuses it at once.
pub(super) async fn open(mut running: Running) -> Result<Response<Body>, ApiError> {
    let first = timeout(FIRST_EVENT, poll_fn(|context| running.tickets.poll(context))).await.ok();
    match first {
        Some(Next::Gone) => return Err(ApiError::engine_gone()),
        Some(Next::Event(_, Event::Refused(refusal))) => return Err(refusal.into()),
        _ => {}
    }
    let kept = running.progress.iter().map(|_| Kept::default()).collect();
    let silence = Box::pin(sleep(running.shared.front.options.keep_alive));
    let mut response =
        Response::new(Body::new(Events { running, kept, first, silence, over: false }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect before they pass on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut out = Vec::new();
        while !self.over && out.len() < FRAME {
            let next = match self.first.take() {
                Some(next) => next,
                None => match self.running.tickets.poll(context) {
                    Poll::Ready(next) => next,
                    Poll::Pending => break,
                },
            };
            self.write(next, &mut out);
        }
        if out.is_empty() && self.over {
            return Poll::Ready(None);
        }
        if out.is_empty() {
            if self.silence.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            out.extend_from_slice(b": waiting\n\n");
        }
        let again = Instant::now() + self.running.shared.front.options.keep_alive;
        self.silence.as_mut().reset(again);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }
}

impl Events {
    /// Writes what happened; it may be nothing.
    fn write(&mut self, next: Next, out: &mut Vec<u8>) {
        match next {
            Next::Over => self.close(out),
            Next::Gone => self.fail(&ApiError::engine_gone(), out),
            Next::Event(_, Event::Refused(refusal)) => self.fail(&refusal.into(), out),
            Next::Event(at, Event::Prompt(pieces)) => self.begin(at, &Part::Begin(&pieces), out),
            Next::Event(at, Event::Token(piece)) => {
                self.begin(at, &Part::Begin(&[]), out);
                let (arrived, shared) = (self.running.arrived, &self.running.shared);
                if let Some(progress) = self.running.progress.get_mut(at) {
                    progress.token(piece.token, arrived, &shared.metrics);
                }
                self.part(at, &Part::Token(&piece), out);
            }
            Next::Event(at, Event::Finished(ended)) => {
                self.begin(at, &Part::Begin(&[]), out);
                let (arrived, shared) = (self.running.arrived, &self.running.shared);
                if let Some(progress) = self.running.progress.get_mut(at) {
                    progress.end(&ended, arrived, &shared.metrics);
                }
                self.part(at, &Part::End(&ended), out);
            }
        }
    }

    /// What comes before the first token, once.
    fn begin(&mut self, at: usize, part: &Part<'_>, out: &mut Vec<u8>) {
        if self.running.progress.get(at).is_some_and(|progress| !progress.begun) {
            self.part(at, part, out);
        }
        if let Some(progress) = self.running.progress.get_mut(at) {
            progress.begun = true;
        }
    }

    /// One part of one answer.
    fn part(&mut self, at: usize, part: &Part<'_>, out: &mut Vec<u8>) {
        let Running { reply, progress, arrived, .. } = &mut self.running;
        let Some((progress, kept)) = progress.get_mut(at).zip(self.kept.get_mut(at)) else {
            return;
        };
        match reply.style.form {
            Form::Completion => {
                let mut choice = completion::choice(at);
                if choice.add(reply, progress, part) {
                    let usage = reply.usage_so_far(at, progress);
                    event(&reply.completion(vec![choice], usage), out);
                }
            }
            Form::Chat => {
                if let Some(delta) = chat::Delta::of(reply, at, part) {
                    let usage = reply.usage_so_far(at, progress);
                    event(&reply.chat_event(vec![delta], Some(progress), usage), out);
                }
            }
            Form::Native => {
                if kept.add(reply, progress, part) {
                    event(&kept.page(reply, at, progress, *arrived), out);
                }
            }
        }
    }

    /// The end of a stream.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Running { reply, progress, .. } = &self.running;
        if reply.style.told != Told::Nothing {
            let usage = Some(Some(Usage::of(reply, progress)));
            match reply.style.form {
                Form::Completion => event(&reply.completion(Vec::new(), usage), out),
                Form::Chat => event(&reply.chat_event(Vec::new(), None, usage), out),
                Form::Native => {}
            }
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.over = true;
    }

    /// An error where the status is sent already.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(error.json().as_bytes());
        out.extend_from_slice(b"\n\n");
        self.over = true;
    }
}

/// One event. JSON has no line ends outside its texts, and none inside them.
fn event(page: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // Writing to memory does not fail, and the pages have texts as keys.
    let _ = serde_json::to_writer(&mut *out, page);
    out.extend_from_slice(b"\n\n");
}
