//! Bodies of requests → jobs for the engine. Everything that a client can get wrong is found here.

pub(crate) mod chat;
pub(crate) mod completion;
mod fields;
pub(crate) mod native;
pub(crate) mod prompt;
mod sampling;
mod shape;
pub(crate) mod tokens;

use std::sync::Arc;

use serde::de::DeserializeOwned;

pub(crate) use fields::Common;

use super::{
    answer::{Reply, Style, Told},
    error::ApiError,
    state::{Shared, now},
};
use crate::engine::Submission;
use prompt::Encoded;

/// Most answers to one prompt.
const MAX_N: i64 = 128;
/// Most answers of one request: prompts × `n`.
const MAX_CHOICES: usize = 2048;
/// Most prompt tokens of one request, `n` copies counted: 64 MiB of ids.
const MAX_TOKENS: usize = 16 << 20;

/// A request, ready for the engine.
#[derive(Debug)]
pub(crate) struct Job {
    /// One for each answer: `n` for the first prompt, then those of the second.
    pub(crate) submissions: Vec<Submission>,
    /// How the answers are written.
    pub(crate) reply: Reply,
}

/// Reads a JSON object; keys that nobody asks for are passed over.
///
/// # Errors
/// 400 with the parameter, where the fault has one, and its place in the text.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // An array would fill the fields in their order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(ApiError::invalid("invalid_json", "the body must be a JSON object"));
    }
    let mut text = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.inner();
        if !inner.is_data() {
            return ApiError::invalid("invalid_json", format!("the body is no JSON: {inner}"));
        }
        match path.as_str() {
            "." => ApiError::invalid("invalid_value", inner.to_string()),
            _ => ApiError::invalid("invalid_value", format!("`{path}`: {inner}")).at(&path),
        }
    })?;
    text.end().map_err(|error| {
        ApiError::invalid("invalid_json", format!("the body goes on behind its JSON: {error}"))
    })?;
    Ok(value)
}

/// A whole number within bounds.
pub(super) fn within(
    name: &str,
    found: i64,
    bounds: std::ops::RangeInclusive<i64>,
) -> Result<u64, ApiError> {
    let allowed = match *bounds.end() {
        i64::MAX => format!("{} and above", bounds.start()),
        end => format!("{} to {end}", bounds.start()),
    };
    let inside = bounds.contains(&found).then_some(found).and_then(|n| u64::try_from(n).ok());
    inside.ok_or_else(|| ApiError::value(name, found, &allowed))
}

/// Whether the model that a request names is the one served.
pub(super) fn check_model(shared: &Shared, asked: Option<&str>) -> Result<(), ApiError> {
    let info = shared.front.engine.info();
    match asked {
        None | Some("" | "default") => Ok(()),
        Some(name) if name == info.model || name == info.path => Ok(()),
        Some(name) => Err(ApiError::no_model(name, &info.model)),
    }
}

/// Whether the answer comes piece by piece, and what is told of its tokens.
fn streaming(common: &Common) -> Result<(bool, Told), ApiError> {
    let stream = common.stream.unwrap_or(false);
    let Some(options) = common.stream_options else { return Ok((stream, Told::Nothing)) };
    if !stream {
        let message = "`stream_options` goes with `stream`: true alone";
        return Err(ApiError::invalid("invalid_value", message).at("stream_options"));
    }
    let told = match (options.include_usage, options.continuous_usage_stats) {
        (Some(true), Some(true)) => Told::Always,
        (Some(true), _) => Told::AtTheEnd,
        _ => Told::Nothing,
    };
    Ok((stream, told))
}

/// Puts submissions and reply together: `n` for each prompt, with seeds one after the other.
fn job(
    shared: &Shared,
    number: u64,
    common: &Common,
    prompts: Vec<Encoded>,
    template: Submission,
    style: Style,
) -> Result<Job, ApiError> {
    let n = within("n", common.n.unwrap_or(1), 1..=MAX_N)? as usize;
    let choices = prompts.len().saturating_mul(n);
    if choices > MAX_CHOICES {
        let found = format!("{} prompts × {n}", prompts.len());
        let allowed = format!("up to {MAX_CHOICES} answers in one request");
        return Err(ApiError::value("n", found, &allowed));
    }
    let tokens: usize = prompts.iter().map(|prompt| prompt.ids.len()).sum();
    if tokens.saturating_mul(n) > MAX_TOKENS {
        let found = format!("{tokens} tokens × {n}");
        let allowed = format!("up to {MAX_TOKENS} tokens of prompts in one request");
        return Err(ApiError::value("prompt", found, &allowed));
    }
    let first = common.seed.map_or_else(|| shared.mixed(number), |seed| seed.0);
    let mut submissions = Vec::with_capacity(choices);
    for prompt in &prompts {
        for _ in 0..n {
            let mut submission = template.clone();
            submission.prompt = prompt.ids.to_vec();
            submission.sampling.seed = first.wrapping_add(submissions.len() as u64);
            submissions.push(submission);
        }
    }
    let reply = Reply {
        style,
        id: format!("{}{:016x}", style.form.prefix(), shared.mixed(number)),
        created: now(),
        model: shared.front.engine.info().model.clone(),
        tokenizer: Arc::clone(&shared.front.tokenizer),
        prompts,
        n,
    };
    Ok(Job { submissions, reply })
}
