//! Bodies of requests: bounded in size, in time, and in what is held of them at once.

use std::{future::poll_fn, pin::Pin, time::Duration};

use axum::{
    body::{Body, HttpBody},
    http::{HeaderMap, header},
};
use tokio::{sync::SemaphorePermit, time::timeout};

use super::{error::ApiError, state::Shared};

/// What is read of a body that nobody wants, so that a client which is still sending gets to see the answer.
const UNWANTED: u64 = 64 << 20;
const UNWANTED_TIME: Duration = Duration::from_secs(2);
/// Unit of the budget.
const KIB: u64 = 1024;

/// A body, and its part of the budget until it is dropped.
pub(super) struct Held<'a> {
    bytes: Vec<u8>,
    budget: Option<SemaphorePermit<'a>>,
}

impl<'a> Held<'a> {
    /// Both parts; the second is to be kept as long as the first.
    pub(super) fn split(self) -> (Vec<u8>, Option<SemaphorePermit<'a>>) {
        (self.bytes, self.budget)
    }
}

/// Reads a body.
///
/// # Errors
/// 413 above the limit, 408 when it does not arrive, 400 when the connection breaks off.
pub(super) async fn read<'a>(
    state: &'a Shared,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Held<'a>, ApiError> {
    let limit = state.front.options.max_body_bytes;
    let announced = announced(headers);
    if let Some(bytes) = announced.filter(|bytes| *bytes > limit) {
        discard(headers, body).await;
        return Err(ApiError::body_too_large(Some(bytes), limit));
    }
    let reading = async {
        let budget = state.body_budget(announced.unwrap_or(limit).div_ceil(KIB)).await;
        let mut bytes = Vec::with_capacity(announced.map_or(0, |n| n.min(limit) as usize));
        while let Some(chunk) = chunk(&mut body).await? {
            if bytes.len() as u64 + chunk.len() as u64 > limit {
                return Ok::<_, ApiError>(None);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Some(Held { bytes, budget }))
    };
    let read = timeout(state.front.options.body_timeout, reading).await;
    match read.map_err(|_| ApiError::body_timeout())?? {
        Some(held) => Ok(held),
        None => {
            discard(headers, body).await;
            Err(ApiError::body_too_large(None, limit))
        }
    }
}

/// Passes over a body of which nothing is needed.
pub(super) async fn discard(headers: &HeaderMap, mut body: Body) {
    // A client that asks before it sends has not sent.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let passing = async {
        let mut passed = 0;
        while passed < UNWANTED
            && let Ok(Some(chunk)) = chunk(&mut body).await
        {
            passed += chunk.len() as u64;
        }
    };
    // A client that takes longer sees a closed connection.
    let _ = timeout(UNWANTED_TIME, passing).await;
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn chunk(body: &mut Body) -> Result<Option<axum::body::Bytes>, ApiError> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Trailers are no part of it.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                let message = format!("the body broke off: {error}");
                return Err(ApiError::invalid("broken_body", message));
            }
        }
    }
}
