//! `/tokenize` and `/detokenize`, in vLLM's form.

use plimsoll_checkpoint::{Around, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    chat::conversation,
    check_model,
    prompt::{check_ids, check_text},
    read,
};
use crate::http::{error::ApiError, state::Shared};

/// A text or a conversation.
#[derive(Debug, Deserialize)]
struct Tokenize {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Value>>,
    /// Whether the model's special tokens are put around it: by default around a text, not around a
    /// conversation, whose template has written them.
    add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    return_token_strs: Option<bool>,
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: u64,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// Ids.
#[derive(Debug, Deserialize)]
struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

/// Text → ids, as the body of the answer.
///
/// # Errors
/// [`ApiError`] with the parameter.
pub(crate) fn tokenize(shared: &Shared, body: &[u8]) -> Result<String, ApiError> {
    let request: Tokenize = read(body)?;
    check_model(shared, request.model.as_deref())?;
    let (text, special) = match (request.prompt, request.messages) {
        (Some(prompt), None) => (prompt, true),
        (None, Some(messages)) => {
            let turn = request.add_generation_prompt.unwrap_or(true);
            let turn = if turn { Turn::Assistant } else { Turn::None };
            (conversation(shared, Some(messages), request.tools, turn)?, false)
        }
        _ => {
            let message = "exactly one of `prompt` and `messages` must be given";
            return Err(ApiError::invalid("missing_parameter", message).at("prompt"));
        }
    };
    check_text(shared, &text)?;
    let special = request.add_special_tokens.unwrap_or(special);
    let around = if special { Around::Special } else { Around::Nothing };
    let tokenizer = &shared.front.tokenizer;
    let tokens = tokenizer.encode(&text, around)?;
    let name = |id: &u32| tokenizer.token(*id).unwrap_or_default();
    let named = request.return_token_strs.unwrap_or(false);
    let token_strs = named.then(|| tokens.iter().map(name).collect());
    let max_model_len = shared.front.engine.info().context_length;
    json(&Tokens { count: tokens.len(), max_model_len, tokens, token_strs })
}

/// Ids → text, as the body of the answer; special tokens are written out.
///
/// # Errors
/// [`ApiError`] with the parameter.
pub(crate) fn detokenize(shared: &Shared, body: &[u8]) -> Result<String, ApiError> {
    let request: Detokenize = read(body)?;
    check_model(shared, request.model.as_deref())?;
    check_ids(shared, &request.tokens).map_err(|error| error.at("tokens"))?;
    json(&Text { prompt: shared.front.tokenizer.decode_all(&request.tokens)? })
}

fn json(page: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(page).map_err(|error| ApiError::internal(error.to_string()))
}
