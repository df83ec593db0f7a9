//! `/v1/completions`.

use plimsoll_checkpoint::Around;
use serde::Deserialize;

use super::{
    Common, Job, check_model,
    fields::Unserved,
    job,
    prompt::{Encoding, Prompts, encode_all},
    read, streaming, within,
};
use crate::http::{
    answer::{Form, Style},
    error::ApiError,
    state::Shared,
};

/// Tokens of an answer where the request does not say, as in the interface's first form.
const DEFAULT_TOKENS: i64 = 16;
/// Most alternatives to a token.
pub(super) const MAX_LOGPROBS: i64 = 20;

/// Parameters of this endpoint alone.
#[derive(Debug, Deserialize)]
struct Completion {
    /// What is continued.
    prompt: Option<Prompts>,
    /// Whether the prompt is repeated before the answer.
    echo: Option<bool>,
    /// Logprobs of the tokens, with this many alternatives.
    logprobs: Option<i64>,
    /// Whether the model's special tokens are put around a text.
    add_special_tokens: Option<bool>,
    /// Only true is served.
    skip_special_tokens: Option<bool>,
    /// Only `text` is served.
    response_format: Option<Format>,
}

/// Form of an answer.
#[derive(Debug, Deserialize)]
pub(super) struct Format {
    r#type: Option<String>,
}

/// Refuses what would need answers of a form.
pub(super) fn check_format(
    format: Option<&Format>,
    skip_special_tokens: Option<bool>,
) -> Result<(), ApiError> {
    let form = format.and_then(|format| format.r#type.as_deref());
    if form.is_some_and(|form| form != "text") {
        let why = "answers are not held to a form: only `text`";
        return Err(ApiError::unsupported("response_format", why));
    }
    if skip_special_tokens == Some(false) {
        let why = "special tokens are no text";
        return Err(ApiError::unsupported("skip_special_tokens", why));
    }
    Ok(())
}

/// Reads a request.
///
/// # Errors
/// [`ApiError`] with the parameter.
pub(crate) fn prepare(shared: &Shared, body: &[u8], number: u64) -> Result<Job, ApiError> {
    let common: Common = read(body)?;
    let own: Completion = read(body)?;
    check_model(shared, common.model.as_deref())?;
    let unserved: Unserved = read(body)?;
    if let Some((name, why)) = unserved.first(common.n.unwrap_or(1)) {
        return Err(ApiError::unsupported(name, why));
    }
    check_format(own.response_format.as_ref(), own.skip_special_tokens)?;
    let echo = own.echo.unwrap_or(false);
    let mut submission = common.submission(&shared.front.options.defaults)?;
    let tokens = within("max_tokens", common.max_tokens.unwrap_or(DEFAULT_TOKENS), 0..=i64::MAX)?;
    // The engine makes a token at least; it is left out again.
    submission.max_new_tokens = Some(tokens.max(1));
    if let Some(count) = own.logprobs {
        let count = within("logprobs", count, 0..=MAX_LOGPROBS)? as u32;
        submission.sampling.logprobs = Some(count);
        submission.prompt_logprobs = echo.then_some(count);
    }
    let Some(prompt) = own.prompt else {
        return Err(ApiError::invalid("missing_parameter", "`prompt` is missing").at("prompt"));
    };
    let (stream, told) = streaming(&common)?;
    let special = own.add_special_tokens.unwrap_or(true);
    let around = if special { Around::Special } else { Around::Nothing };
    let prompts = encode_all(shared, prompt.list().0, Encoding { around, echo })?;
    let style = Style {
        form: Form::Completion,
        stream,
        told,
        logprobs: submission.sampling.logprobs,
        ids: common.return_token_ids.unwrap_or(false),
        silent: tokens == 0,
        listed: true,
    };
    job(shared, number, &common, prompts, submission, style)
}
