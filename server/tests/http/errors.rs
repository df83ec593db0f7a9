//! Requests that are not served, and what is said about them.

use plimsoll_server::http::{ApiKey, FrontOptions};
use serde_json::{Value, json};

use crate::{
    client::{Open, Server},
    script::Script,
};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn values_out_of_range_are_named() {
    let server = Server::start();
    let hi = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        (TEXT, json!({}), "prompt", "`prompt` is missing"),
        (TEXT, json!({"prompt": ""}), "prompt", "`prompt` is empty; allowed: at least one token"),
        (
            TEXT,
            json!({"prompt": []}),
            "prompt",
            "`prompt` is a list of 0; allowed: 1 to 2048 prompts",
        ),
        (
            TEXT,
            json!({"prompt": [1, 258]}),
            "prompt",
            "`prompt` is a list with 258; allowed: token ids from 0 to 257",
        ),
        (TEXT, json!({"prompt": "a", "n": 0}), "n", "`n` is 0; allowed: 1 to 128"),
        (
            TEXT,
            json!({"prompt": "a", "max_tokens": -1}),
            "max_tokens",
            "`max_tokens` is -1; allowed: 0 and above",
        ),
        (
            TEXT,
            json!({"prompt": "a", "temperature": 2.5}),
            "temperature",
            "`temperature` is 2.5; allowed: 0 to 2",
        ),
        (
            TEXT,
            json!({"prompt": "a", "top_p": 0}),
            "top_p",
            "`top_p` is 0; allowed: above 0, up to 1",
        ),
        (TEXT, json!({"prompt": "a", "top_k": -2}), "top_k", "`top_k` is -2; allowed: 0 and above"),
        (
            TEXT,
            json!({"prompt": "a", "logprobs": 21}),
            "logprobs",
            "`logprobs` is 21; allowed: 0 to 20",
        ),
        (
            TEXT,
            json!({"prompt": "a", "stop": ["x", ""]}),
            "stop",
            "`stop` is a text of 0 bytes; allowed: up to 32 texts of 1 to 1024 bytes",
        ),
        (
            TEXT,
            json!({"prompt": "a", "max_tokens": "3"}),
            "max_tokens",
            "`max_tokens`: invalid type: string \"3\", expected i64 at line 1 column 30",
        ),
        (
            TEXT,
            json!({"prompt": "a", "best_of": 2}),
            "best_of",
            "`best_of` is not served: every answer that is made is given out: use `n`",
        ),
        (
            TEXT,
            json!({"prompt": "a", "suffix": "b"}),
            "suffix",
            "`suffix` is not served: text is continued, not filled in",
        ),
        (
            TEXT,
            json!({"prompt": "a", "stream_options": {"include_usage": true}}),
            "stream_options",
            "`stream_options` goes with `stream`: true alone",
        ),
        (CHAT, json!({}), "messages", "`messages` must have at least one message"),
        (
            CHAT,
            json!({"messages": [{"content": "a"}]}),
            "messages[0].role",
            "`messages[0].role` must be a text",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0]",
            "`messages[0].content[0]` is not served: only parts of type `text` are",
        ),
        (
            CHAT,
            json!({"messages": hi, "top_logprobs": 2}),
            "top_logprobs",
            "`top_logprobs` needs `logprobs`: true",
        ),
        (
            CHAT,
            json!({"messages": hi, "response_format": {"type": "json_object"}}),
            "response_format",
            "`response_format` is not served: answers are not held to a form: only `text`",
        ),
        (
            CHAT,
            json!({"messages": hi, "tool_choice": "required"}),
            "tool_choice",
            "`tool_choice` is not served: the model decides whether it calls a function: `none` or `auto`",
        ),
    ];
    for (path, body, param, message) in cases {
        let (status, error) = server.post(path, &body).error();
        assert_eq!(status, 400, "{body}");
        assert_eq!(error["message"], message, "{body}");
        assert_eq!(error["param"], param, "{body}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert!(server.seen.lock().unwrap().submissions.is_empty(), "nothing reaches the engine");
}

#[test]
fn paths_methods_and_models() {
    let server = Server::start();
    let error = |reply: crate::client::Reply| {
        let (status, error) = reply.error();
        (status, error["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(error(server.get("/v1/embeddings")), (404, "not_found".to_owned()));
    assert_eq!(error(server.get(TEXT)), (405, "method_not_allowed".to_owned()));
    let other = json!({"model": "gpt", "prompt": "a"});
    assert_eq!(error(server.post(TEXT, &other)), (404, "model_not_found".to_owned()));
    // CORS is off.
    let reply = server.call("OPTIONS", TEXT, "Origin: http://x\r\n", b"");
    assert_eq!(reply.status, 405);
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

#[test]
fn a_key_opens_all_but_what_monitors_read() {
    let key = Some(ApiKey("geheim".to_owned()));
    assert_eq!(format!("{key:?}"), "Some(ApiKey(..))");
    let options = FrontOptions { api_key: key, ..FrontOptions::default() };
    let server = Server::with(Script::default(), options);
    for path in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let body = json!({"prompt": "a"}).to_string();
    let ask = |header: &str| server.call("POST", TEXT, header, body.as_bytes());
    for wrong in [
        "",
        "Authorization: Bearer geheim2\r\n",
        "Authorization: Bearer gehei\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Basic geheim\r\n",
        "Authorization: geheim\r\n",
    ] {
        let (status, error) = ask(wrong).error();
        assert_eq!((status, &error["code"]), (401, &json!("invalid_api_key")), "{wrong}");
        assert!(!error.to_string().contains("geheim"));
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/health_generate").status, 401);
    assert_eq!(ask("Authorization: Bearer geheim\r\n").status, 200);
    assert_eq!(ask("authorization: bearer geheim\r\n").status, 200);
}

#[test]
fn prompts_that_no_context_holds() {
    let server = Server::start();
    let ask = |text: &str| server.post(TEXT, &json!({"prompt": text})).error();
    let (status, error) = ask(&"a".repeat(256));
    assert_eq!((status, &error["code"]), (413, &json!("context_length_exceeded")));
    assert_eq!(
        error["message"],
        "the prompt has 256 tokens; the context is 256 tokens, of which the answer needs at least one"
    );
    assert_eq!(server.post(TEXT, &json!({"prompt": "a".repeat(255)})).status, 200);
    // So long that it is not tokenized.
    let (status, error) = ask(&"a".repeat(65_537));
    assert_eq!(status, 413);
    assert_eq!(
        error["message"],
        "the prompt has 65537 bytes of text; for a context of 256 tokens at most 65536 bytes are taken"
    );
    let long = json!({"messages": [{"role": "user", "content": "b".repeat(70_000)}]});
    assert_eq!(server.post(CHAT, &long).error().0, 413);
}

#[test]
fn a_full_queue_is_429_on_both_ways() {
    let script = Script { room: 0, ..Script::default() };
    let server = Server::with(script, FrontOptions::default());
    for stream in [false, true] {
        let reply = server.post(TEXT, &json!({"prompt": "a", "stream": stream}));
        assert_eq!(reply.header("retry-after"), Some("1"));
        let (status, error) = reply.error();
        assert_eq!((status, &error["type"]), (429, &json!("rate_limit_error")));
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!("queue_full"), &json!("0 requests wait"))
        );
    }
}

#[test]
fn of_several_answers_one_that_has_no_room_refuses_all() {
    let slow = Script {
        room: 2,
        answer: "a",
        pace: std::time::Duration::from_millis(20),
        ..Script::default()
    };
    let server = Server::with(slow, FrontOptions::default());
    let body = json!({"prompt": "a", "n": 3, "ignore_eos": true, "max_tokens": 1000});
    assert_eq!(server.post(TEXT, &body).status, 429);
    server.until("the others are given up", |seen| seen.aborted.len() == 2);
}

#[test]
fn an_engine_that_dies_is_503() {
    let dying = || {
        let script = Script { dies: true, ..Script::default() };
        Server::with(script, FrontOptions::default())
    };
    for stream in [false, true] {
        let body = json!({"prompt": "a", "stream": stream});
        let server = dying();
        let (status, error) = server.post(TEXT, &body).error();
        assert_eq!((status, &error["code"]), (503, &json!("engine_gone")));
        // And from then on.
        assert_eq!(server.post(TEXT, &body).error().0, 503);
    }
}

#[test]
fn bodies_above_the_limit_are_answered_at_once() {
    let server = Server::start();
    let text = "a".repeat(10_000_000);
    let (status, error) = server.post(TEXT, &json!({"prompt": text})).error();
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
    assert_eq!(error["message"], "the body has 10000013 bytes; the limit is 8388608 bytes");
    // In chunks, without a length: the limit holds too.
    let mut body = String::new();
    for _ in 0..90 {
        body.push_str(&format!("{:x}\r\n{}\r\n", 100_000, "b".repeat(100_000)));
    }
    body.push_str("0\r\n\r\n");
    let reply = chunked(&server, &body);
    let error: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!(error["error"]["message"], "the body has more; the limit is 8388608 bytes");
}

fn chunked(server: &Server, body: &str) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut open = Open::read(stream);
    assert_eq!(open.status, 413);
    open.rest()
}

#[test]
fn a_body_that_does_not_come_is_408() {
    use std::io::Write;
    let options = FrontOptions {
        body_timeout: std::time::Duration::from_millis(50),
        ..FrontOptions::default()
    };
    let server = Server::with(Script::default(), options);
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = format!("POST {TEXT} HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n{{");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Open::read(stream).status, 408);
}
