//! `/generate`, SGLang's own form of a request.

use plimsoll_checkpoint::Around;
use serde::Deserialize;

use super::{
    Common, Job,
    completion::MAX_LOGPROBS,
    fields::{Seed, Stop},
    job,
    prompt::{Encoding, Prompts, encode_all},
    read,
    shape::Shape,
    within,
};
use crate::http::{
    answer::{Form, Style, Told},
    error::ApiError,
    state::Shared,
};

/// Tokens of an answer where the request does not say.
const DEFAULT_TOKENS: i64 = 128;

/// A request in SGLang's form.
#[derive(Debug, Deserialize)]
struct Native {
    /// What is continued, as text.
    text: Option<Prompts>,
    /// The same as ids.
    input_ids: Option<Prompts>,
    /// How tokens are chosen; one object for all prompts.
    sampling_params: Option<Params>,
    /// Whether the answer comes piece by piece.
    stream: Option<bool>,
    /// Whether logprobs of the answer's tokens are told.
    return_logprob: Option<bool>,
    /// With this many alternatives.
    top_logprobs_num: Option<i64>,
    /// Where logprobs of the prompt begin: only -1, for none.
    logprob_start_len: Option<i64>,
    /// Only a model without adapters is served.
    lora_path: Option<Shape>,
    /// Only text is.
    image_data: Option<Shape>,
    /// Only text is.
    audio_data: Option<Shape>,
    /// Priority, where the scheduler goes by it.
    priority: Option<i64>,
    /// Prefixes are shared only among requests with the same text here.
    extra_key: Option<String>,
}

/// `sampling_params`; the fields that are named as in the other endpoints mean the same.
#[derive(Clone, Debug, Default, Deserialize)]
struct Params {
    max_new_tokens: Option<i64>,
    min_new_tokens: Option<Shape>,
    n: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    stop_regex: Option<Shape>,
    sampling_seed: Option<Seed>,
    json_schema: Option<Shape>,
    regex: Option<Shape>,
    ebnf: Option<Shape>,
    structural_tag: Option<Shape>,
    logit_bias: Option<Shape>,
    no_stop_trim: Option<Shape>,
}

impl Native {
    fn unserved(&self, params: &Params) -> Option<(&'static str, &'static str)> {
        const SHAPED: &str = "answers are not held to a form";
        const TEXT: &str = "text is served alone";
        let special = params.skip_special_tokens == Some(false);
        let list = [
            ("lora_path", self.lora_path, "one model is served, without adapters"),
            ("image_data", self.image_data, TEXT),
            ("audio_data", self.audio_data, TEXT),
            ("min_new_tokens", params.min_new_tokens, "an answer may end anywhere"),
            ("stop_regex", params.stop_regex, "stops are texts and ids"),
            ("json_schema", params.json_schema, SHAPED),
            ("regex", params.regex, SHAPED),
            ("ebnf", params.ebnf, SHAPED),
            ("structural_tag", params.structural_tag, SHAPED),
            ("logit_bias", params.logit_bias, "logits are the model's"),
            ("no_stop_trim", params.no_stop_trim, "stops are cut off"),
            (
                "skip_special_tokens",
                special.then_some(Shape::Something),
                "special tokens are no text",
            ),
        ];
        let asks = |shape: Option<Shape>| shape.is_some_and(|shape| shape != Shape::Nothing);
        list.into_iter().find(|(_, shape, _)| asks(*shape)).map(|(name, _, why)| (name, why))
    }
}

/// Reads a request.
///
/// # Errors
/// [`ApiError`] with the parameter.
pub(crate) fn prepare(shared: &Shared, body: &[u8], number: u64) -> Result<Job, ApiError> {
    let own: Native = read(body)?;
    let params = own.sampling_params.clone().unwrap_or_default();
    if let Some((name, why)) = own.unserved(&params) {
        return Err(ApiError::unsupported(name, why));
    }
    if own.logprob_start_len.is_some_and(|start| start != -1) {
        let why = "logprobs of the prompt come from /v1/completions with `echo`";
        return Err(ApiError::unsupported("logprob_start_len", why));
    }
    let tokens = params.max_new_tokens.unwrap_or(DEFAULT_TOKENS);
    let tokens = within("max_new_tokens", tokens, 0..=i64::MAX)?;
    let common = Common {
        n: params.n,
        stream: own.stream,
        stop: params.stop,
        stop_token_ids: params.stop_token_ids,
        seed: params.sampling_seed,
        temperature: params.temperature,
        top_p: params.top_p,
        // What SGLang writes for all tokens.
        top_k: params.top_k.filter(|k| *k != 1 << 30),
        min_p: params.min_p,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        repetition_penalty: params.repetition_penalty,
        ignore_eos: params.ignore_eos,
        priority: own.priority,
        cache_salt: own.extra_key,
        ..Common::default()
    };
    let mut submission = common.submission(&shared.front.options.defaults)?;
    // The engine makes a token at least; it is left out again.
    submission.max_new_tokens = Some(tokens.max(1));
    let top = within("top_logprobs_num", own.top_logprobs_num.unwrap_or(0), 0..=MAX_LOGPROBS)?;
    if own.return_logprob.unwrap_or(false) {
        submission.sampling.logprobs = Some(top as u32);
    }
    let prompts = match (own.text, own.input_ids) {
        (Some(text), None) => text,
        (None, Some(ids)) => ids,
        _ => {
            let message = "exactly one of `text` and `input_ids` must be given";
            return Err(ApiError::invalid("missing_parameter", message).at("text"));
        }
    };
    let (prompts, listed) = prompts.list();
    let how = Encoding { around: Around::Special, echo: false };
    let prompts = encode_all(shared, prompts, how)?;
    let style = Style {
        form: Form::Native,
        stream: own.stream.unwrap_or(false),
        told: Told::Nothing,
        logprobs: submission.sampling.logprobs,
        ids: true,
        silent: tokens == 0,
        listed: listed || common.n.unwrap_or(1) > 1,
    };
    job(shared, number, &common, prompts, submission, style)
}
