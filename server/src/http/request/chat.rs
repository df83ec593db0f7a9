//! `/v1/chat/completions`.

use plimsoll_checkpoint::{Around, Turn};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Common, Job, check_model,
    completion::{Format, MAX_LOGPROBS, check_format},
    fields::Unserved,
    job,
    prompt::{Encoding, OnePrompt, check_text, encode},
    read, streaming, within,
};
use crate::http::{
    answer::{Form, Style},
    error::ApiError,
    state::Shared,
};

/// Parameters of this endpoint alone.
#[derive(Debug, Deserialize)]
struct Chat {
    /// The conversation.
    messages: Option<Vec<Map<String, Value>>>,
    /// Functions that the template may tell the model of.
    tools: Option<Vec<Value>>,
    /// `none` or `auto`.
    tool_choice: Option<Value>,
    /// Most tokens of the answer; the newer name of `max_tokens`.
    max_completion_tokens: Option<i64>,
    /// Whether logprobs are told.
    logprobs: Option<bool>,
    /// How many alternatives to each token.
    top_logprobs: Option<i64>,
    /// Whether the assistant's turn is opened.
    add_generation_prompt: Option<bool>,
    /// Only true is served.
    skip_special_tokens: Option<bool>,
    /// Only `text` is served.
    response_format: Option<Format>,
}

/// Reads a request.
///
/// # Errors
/// [`ApiError`] with the parameter.
pub(crate) fn prepare(shared: &Shared, body: &[u8], number: u64) -> Result<Job, ApiError> {
    let common: Common = read(body)?;
    let own: Chat = read(body)?;
    check_model(shared, common.model.as_deref())?;
    let unserved: Unserved = read(body)?;
    if let Some((name, why)) = unserved.first(common.n.unwrap_or(1)) {
        return Err(ApiError::unsupported(name, why));
    }
    check_format(own.response_format.as_ref(), own.skip_special_tokens)?;
    let mut submission = common.submission(&shared.front.options.defaults)?;
    let limits =
        [("max_completion_tokens", own.max_completion_tokens), ("max_tokens", common.max_tokens)];
    for (name, given) in limits {
        if let (Some(given), None) = (given, submission.max_new_tokens) {
            submission.max_new_tokens = Some(within(name, given, 1..=i64::MAX)?);
        }
    }
    submission.sampling.logprobs = logprobs(&own)?;
    let (stream, told) = streaming(&common)?;
    let text = render(shared, own)?;
    let how = Encoding { around: Around::Nothing, echo: false };
    let prompts = vec![encode(shared, OnePrompt::Text(text), how)?];
    let style = Style {
        form: Form::Chat,
        stream,
        told,
        logprobs: submission.sampling.logprobs,
        ids: common.return_token_ids.unwrap_or(false),
        silent: false,
        listed: true,
    };
    job(shared, number, &common, prompts, submission, style)
}

fn logprobs(own: &Chat) -> Result<Option<u32>, ApiError> {
    let top = own.top_logprobs.map(|n| within("top_logprobs", n, 0..=MAX_LOGPROBS)).transpose()?;
    match (own.logprobs.unwrap_or(false), top.unwrap_or(0)) {
        (true, top) => Ok(Some(top as u32)),
        (false, 0) => Ok(None),
        (false, _) => {
            let message = "`top_logprobs` needs `logprobs`: true";
            Err(ApiError::invalid("invalid_value", message).at("top_logprobs"))
        }
    }
}

/// The conversation as text. `own` gives its messages and tools away.
fn render(shared: &Shared, own: Chat) -> Result<String, ApiError> {
    let tools = match own.tool_choice.as_ref().unwrap_or(&Value::Null) {
        Value::Null => own.tools,
        Value::String(choice) if choice == "auto" => own.tools,
        Value::String(choice) if choice == "none" => None,
        _ => {
            let why = "the model decides whether it calls a function: `none` or `auto`";
            return Err(ApiError::unsupported("tool_choice", why));
        }
    };
    let turn = own.add_generation_prompt.unwrap_or(true);
    conversation(shared, own.messages, tools, if turn { Turn::Assistant } else { Turn::None })
}

/// A conversation as text, by the model's template.
///
/// # Errors
/// Where the model has no template, or it does not take these messages.
pub(super) fn conversation(
    shared: &Shared,
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Value>>,
    turn: Turn,
) -> Result<String, ApiError> {
    let Some(template) = &shared.front.template else {
        let message = "the model has no chat template: use /v1/completions";
        return Err(ApiError::invalid("no_chat_template", message).at("messages"));
    };
    let messages = messages.unwrap_or_default();
    if messages.is_empty() {
        let message = "`messages` must have at least one message";
        return Err(ApiError::invalid("missing_parameter", message).at("messages"));
    }
    let messages = messages.into_iter().enumerate().map(|(at, map)| message(shared, at, map));
    let messages = Value::Array(messages.collect::<Result<_, _>>()?);
    let tools = tools.filter(|list| !list.is_empty()).map_or(Value::Null, Value::Array);
    Ok(template.render(&messages, &tools, turn, shared.today())?)
}

/// A message as templates expect it: a known role, content as one text.
fn message(shared: &Shared, at: usize, mut map: Map<String, Value>) -> Result<Value, ApiError> {
    let place = format!("messages[{at}]");
    match map.get("role").and_then(Value::as_str) {
        Some("developer") => {
            // The newer name of the same role, which templates do not know.
            map.insert("role".to_owned(), Value::from("system"));
        }
        Some(_) => {}
        None => {
            let message = format!("`{place}.role` must be a text");
            return Err(ApiError::invalid("invalid_value", message).at(&format!("{place}.role")));
        }
    }
    let content = match map.remove("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(&place, parts)?,
        Some(_) => {
            let message = format!("`{place}.content` must be a text or a list of parts");
            let error = ApiError::invalid("invalid_value", message);
            return Err(error.at(&format!("{place}.content")));
        }
    };
    check_text(shared, &content)?;
    map.insert("content".to_owned(), Value::String(content));
    if let Some(Value::Array(calls)) = map.get_mut("tool_calls") {
        calls.iter_mut().for_each(open_arguments);
    }
    Ok(Value::Object(map))
}

/// Parts of a content, of which only texts are served, one a line.
fn joined(place: &str, parts: Vec<Value>) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let text = match part {
            Value::String(text) => Some(text),
            Value::Object(mut part) => match (part.remove("type"), part.remove("text")) {
                (Some(Value::String(kind)), Some(Value::String(text))) if kind == "text" => {
                    Some(text)
                }
                _ => None,
            },
            _ => None,
        };
        let param = format!("{place}.content[{at}]");
        let why = "only parts of type `text` are";
        texts.push(text.ok_or_else(|| ApiError::unsupported(&param, why))?);
    }
    Ok(texts.join("\n"))
}

/// Arguments of a call are a text with JSON in it; templates want what is in it.
fn open_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    let opened = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(object @ Value::Object(_)) = opened {
        *arguments = object;
    }
}
