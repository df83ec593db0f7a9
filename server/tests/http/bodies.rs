//! Bodies of many kinds: whatever a client sends is answered, in the form of the interface.

use std::sync::{LazyLock, Mutex};

use plimsoll_server::http::{FrontOptions, try_body};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    client::{Server, front},
    script::Script,
};

const PATHS: [&str; 5] =
    ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"];

#[test]
fn malformed_json_is_400() {
    let server = Server::start();
    let bodies: [&[u8]; 13] = [
        b"",
        b" ",
        b"null",
        b"[]",
        b"[\"org/tiny\", \"a\"]",
        b"\"a\"",
        b"{",
        b"{\"prompt\":\"a\"",
        b"{\"prompt\":\"a\"} x",
        b"{\"prompt\":\"a\",}",
        b"{\"prompt\":\"\xff\"}",
        b"{\"prompt\":\"\\ud800\"}",
        b"{\"prompt\":\"a\",\"temperature\":NaN}",
    ];
    for path in PATHS {
        for body in bodies {
            let reply = server.call("POST", path, "", body);
            let (status, error) = reply.error();
            let code = error["code"].as_str().unwrap();
            let text = String::from_utf8_lossy(body);
            assert_eq!(status, 400, "{path} {text}: {error}");
            assert!(
                ["invalid_json", "missing_parameter", "invalid_value"].contains(&code),
                "{error}"
            );
        }
    }
    let huge = br#"{"prompt":"a","temperature":1e999}"#;
    assert_eq!(server.call("POST", PATHS[0], "", huge).error().0, 400);
    let deep =
        format!("{{\"prompt\":\"a\",\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_ne!(server.call("POST", PATHS[0], "", deep.as_bytes()).status, 500);
    let deep = format!("{{\"messages\":[{{\"role\":{}1{}}}]}}", "[".repeat(200), "]".repeat(200));
    assert_eq!(server.call("POST", PATHS[1], "", deep.as_bytes()).error().0, 400);
    // Half a message of HTTP is none of ours to answer in JSON, but the server goes on.
    assert_eq!(server.get("/health").status, 200);
}

/// Any JSON, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-5_i64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    let known = [
        "prompt",
        "messages",
        "model",
        "n",
        "stream",
        "stream_options",
        "max_tokens",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "logprobs",
        "top_logprobs",
        "echo",
        "text",
        "input_ids",
        "sampling_params",
        "max_new_tokens",
        "role",
        "content",
        "type",
        "tools",
        "tool_choice",
        "tool_calls",
        "function",
        "arguments",
        "tokens",
        "logit_bias",
        "best_of",
        "stop_token_ids",
        "priority",
        "cache_salt",
        "response_format",
        "return_logprob",
    ];
    prop_oneof![
        20 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "[a-z_]{1,8}".prop_map(String::from),
    ]
}

/// A body near to a right one: a right one with some fields replaced.
fn near() -> impl Strategy<Value = Value> {
    let right = json!({
        "prompt": "ab", "messages": [{"role": "user", "content": "a"}], "text": "ab", "tokens": [1],
    });
    let changes = prop::collection::btree_map(key(), any_json(), 0..4);
    (changes, prop::sample::subsequence(vec!["prompt", "messages", "text", "tokens"], 1..4))
        .prop_map(move |(changes, keep)| {
            let mut map = serde_json::Map::new();
            for name in keep {
                map.insert(name.to_owned(), right[name].clone());
            }
            map.extend(changes);
            Value::Object(map)
        })
}

/// What is read of a body: a number of answers, or an error in the interface's form.
fn check(path: &str, body: &[u8]) {
    static FRONT: LazyLock<Mutex<plimsoll_server::http::Front>> =
        LazyLock::new(|| Mutex::new(front(Script::default(), FrontOptions::default()).0));
    match try_body(&FRONT.lock().unwrap(), path, body).unwrap() {
        Ok(count) => assert!(count > 0),
        Err(error) => {
            let page: Value = serde_json::from_str(&error).unwrap();
            let message = page["error"]["message"].as_str().unwrap();
            assert!(!message.is_empty() && message.chars().count() <= 401, "{message}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered(body: Vec<u8>, path in 0_usize..5) {
        check(PATHS[path], &body);
    }

    #[test]
    fn any_json_is_answered(body in any_json(), path in 0_usize..5) {
        check(PATHS[path], body.to_string().as_bytes());
    }

    #[test]
    fn whatever_is_near_a_right_body_is_answered(body in near(), path in 0_usize..5) {
        check(PATHS[path], body.to_string().as_bytes());
    }

    #[test]
    fn a_right_body_that_is_cut_is_400(cut in 1_usize..40) {
        let body = json!({"prompt": "ab", "max_tokens": 3, "stop": ["a"]}).to_string();
        let body = &body.as_bytes()[..cut.min(body.len() - 1)];
        let front = front(Script::default(), FrontOptions::default()).0;
        let error = try_body(&front, PATHS[0], body).unwrap().unwrap_err();
        prop_assert!(error.contains("\"code\":\"invalid_json\""), "{error}");
    }
}
