//! `/v1/chat/completions`.

use serde_json::{Value, json};

use crate::client::Server;

const PATH: &str = "/v1/chat/completions";

fn prompt(server: &Server) -> String {
    let ids = server.seen.lock().unwrap().submissions.pop().unwrap().prompt;
    let bytes = ids.into_iter().map(|id| u8::try_from(id).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_conversation_is_answered() {
    let server = Server::start();
    let body = json!({"model": "org/tiny", "max_completion_tokens": 3,
                      "messages": [{"role": "user", "content": "hi"}]});
    let reply = server.post(PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut page = reply.json();
    assert!(page["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    page["created"] = Value::Null;
    insta::assert_snapshot!(page, @r#"{"id":null,"object":"chat.completion","created":null,"model":"org/tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hé"},"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":19,"completion_tokens":3,"total_tokens":22,"prompt_tokens_details":{"cached_tokens":9}}}"#);
    assert_eq!(prompt(&server), "<user>hi<assistant>");
}

#[test]
fn messages_are_made_for_the_template() {
    let server = Server::start();
    let ask = |body: Value| {
        let reply = server.post(PATH, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        prompt(&server)
    };
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]);
    let messages = json!([{"role": "developer", "content": "s"}, {"role": "user", "content": parts},
                          {"role": "assistant", "content": null, "tool_calls": []}]);
    assert_eq!(ask(json!({"messages": messages})), "<system>s<user>a\né<assistant><assistant>");
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let user = json!([{"role": "user", "content": "u"}]);
    let with = |choice: &str| json!({"messages": user, "tools": tools, "tool_choice": choice});
    assert_eq!(ask(with("auto")), "<user>uT1<assistant>");
    assert_eq!(ask(with("none")), "<user>u<assistant>");
    let open = json!({"messages": user, "add_generation_prompt": false});
    assert_eq!(ask(open), "<user>u");
}

#[test]
fn an_answer_is_as_long_as_it_will_be() {
    let server = Server::start();
    let messages = json!([{"role": "user", "content": "u"}]);
    let most = |body: Value| {
        let mut body = body;
        body["messages"] = messages.clone();
        assert_eq!(server.post(PATH, &body).status, 200);
        server.seen.lock().unwrap().submissions.pop().unwrap().max_new_tokens
    };
    assert_eq!(most(json!({})), None);
    assert_eq!(most(json!({"max_tokens": 5})), Some(5));
    assert_eq!(most(json!({"max_tokens": 5, "max_completion_tokens": 7})), Some(7));
}

#[test]
fn logprobs_have_bytes() {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "u"}], "max_tokens": 2,
                      "logprobs": true, "top_logprobs": 2});
    let page = server.post(PATH, &body).json();
    insta::assert_snapshot!(page["choices"][0]["logprobs"], @r#"{"content":[{"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[{"token":"H","logprob":-0.5,"bytes":[72]},{"token":"I","logprob":-1.5,"bytes":[73]}]},{"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195],"top_logprobs":[{"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195]},{"token":"bytes:\\xc4","logprob":-1.5,"bytes":[196]}]}]}"#);
}

#[test]
fn a_stream_begins_with_the_role() {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "u"}], "stream": true, "n": 2,
                      "stream_options": {"include_usage": true}});
    let mut events = server.post(PATH, &body).events();
    let last = events.pop().unwrap();
    assert_eq!(last["usage"]["completion_tokens"], 22);
    let mut texts = [String::new(), String::new()];
    let mut first = [true, true];
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        let choice = &event["choices"][0];
        let (at, delta) = (choice["index"].as_u64().unwrap() as usize, &choice["delta"]);
        assert_eq!(delta.get("role").is_some(), first[at], "{event}");
        first[at] = false;
        texts[at].push_str(delta["content"].as_str().unwrap_or_default());
    }
    assert_eq!(texts, ["Hé 🦀 ok", "Hé 🦀 ok"]);
    let end = &events.last().unwrap()["choices"][0];
    assert_eq!((&end["finish_reason"], &end["delta"]), (&json!("stop"), &json!({})));
    // No event has half a character.
    assert!(events.iter().all(|event| !event.to_string().contains('\u{fffd}')));
}
