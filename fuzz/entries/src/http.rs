//! Bodies of requests to the HTTP front end.

use crate::{assert_message, in_time};
use plimsoll_checkpoint::{ChatTemplate, Tokenizer};
use plimsoll_server::{
    engine::{EngineInfo, channel},
    http::{Front, FrontOptions, try_body},
};
use std::sync::{Arc, LazyLock};

const PATHS: [&str; 5] =
    ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"];
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}}"#;
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{{ tools }}";

static FRONT: LazyLock<Option<Front>> = LazyLock::new(|| {
    let info = EngineInfo { model: "m".to_owned(), context_length: 64, ..EngineInfo::default() };
    let tokenizer = Arc::new(Tokenizer::parse(TOKENIZER).ok()?);
    let template = Some(Arc::new(ChatTemplate::new(TEMPLATE, String::new(), String::new()).ok()?));
    let options = FrontOptions::default();
    Some(Front { engine: channel(info).0, tokenizer, template, options })
});

/// A body, read at every endpoint that takes one: there is a request in it, or an error that can be shown.
pub fn http_body(data: &[u8]) {
    assert!(FRONT.is_some(), "the front");
    let Some(front) = &*FRONT else { return };
    for path in PATHS {
        match in_time(|| try_body(front, path, data)) {
            None => assert_eq!(path, "", "an endpoint without a body"),
            Some(Ok(count)) => assert!(count > 0, "{path}: no request"),
            Some(Err(error)) => {
                let page: Result<serde_json::Value, _> = serde_json::from_str(&error);
                let page = page.unwrap_or_default();
                let message = page.pointer("/error/message").and_then(serde_json::Value::as_str);
                assert_message(message.unwrap_or_default());
            }
        }
    }
}

/// Requests of every endpoint.
pub(crate) fn bodies() -> Vec<Vec<u8>> {
    let bodies = [
        "{\"model\":\"m\",\"prompt\":\"a b\",\"max_tokens\":3,\"n\":2,\"stop\":[\"b\"],\"logprobs\":1,\"echo\":true}",
        "{\"prompt\":[[1,2],[0]],\"stream\":true,\"stream_options\":{\"include_usage\":true},\"seed\":-1}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},\
         {\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}],\"top_logprobs\":2,\
         \"logprobs\":true,\"tools\":[{}],\"temperature\":0.5}",
        "{\"text\":[\"a\",\"b\"],\"sampling_params\":{\"max_new_tokens\":4,\"top_k\":-1},\"return_logprob\":true}",
        "{\"tokens\":[0,1,2]}",
    ];
    bodies.iter().map(|body| body.as_bytes().to_vec()).collect()
}

pub(crate) const BODY_WORDS: &[&str] = &[
    "\"prompt\":",
    "\"messages\":",
    "\"role\":",
    "\"content\":",
    "\"type\":\"text\"",
    "\"sampling_params\":",
    "\"input_ids\":",
    "\"tokens\":",
    "\"n\":",
    "\"best_of\":",
    "\"seed\":",
    "\"stop\":",
    "\"logprobs\":",
    "\"temperature\":",
    "\"max_tokens\":",
    "\"arguments\":\"{}\"",
    "\"response_format\":",
    "\"tool_choice\":\"none\"",
    "null",
    "true",
    "-1",
    "1e308",
    "18446744073709551615",
    "\\ud83e\\udd80",
    "[[",
    "]]",
];
