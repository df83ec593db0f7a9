//! `/v1/completions`.

use plimsoll_core::sched::EosRule;
use serde_json::{Value, json};

use crate::client::Server;

const PATH: &str = "/v1/completions";

#[test]
fn a_text_is_continued() {
    let server = Server::start();
    let reply = server.post(PATH, &json!({"model": "org/tiny", "prompt": "abcd", "max_tokens": 3}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut page = reply.json();
    let id = page["id"].as_str().unwrap();
    assert_eq!(reply.header("x-request-id"), Some(id));
    assert!(id.starts_with("cmpl-") && id.len() == 21, "{id}");
    page["id"] = Value::Null;
    assert!(page["created"].take().as_u64().unwrap() > 1_700_000_000);
    insta::assert_snapshot!(page, @r#"{"id":null,"object":"text_completion","created":null,"model":"org/tiny","choices":[{"index":0,"text":"Hé","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}"#);
}

#[test]
fn four_forms_of_a_prompt() {
    let server = Server::start();
    for (prompt, expected) in [
        (json!("ab"), vec![vec![97, 98]]),
        (json!([97, 98]), vec![vec![97, 98]]),
        (json!(["ab", "c"]), vec![vec![97, 98], vec![99]]),
        (json!([[97], [98, 99]]), vec![vec![97], vec![98, 99]]),
        // Special tokens in a text are themselves.
        (json!("<s>é"), vec![vec![256, 0xc3, 0xa9]]),
    ] {
        server.seen.lock().unwrap().submissions.clear();
        let page = server.post(PATH, &json!({"prompt": prompt, "max_tokens": 1})).json();
        let choices = page["choices"].as_array().unwrap();
        assert_eq!(choices.len(), expected.len());
        for (at, choice) in choices.iter().enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(at), &json!("H")));
        }
        let seen = server.seen.lock().unwrap();
        let prompts: Vec<_> = seen.submissions.iter().map(|s| s.prompt.clone()).collect();
        assert_eq!(prompts, expected);
    }
}

#[test]
fn parameters_reach_the_engine() {
    let server = Server::start();
    let body = json!({
        "prompt": "a", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
        "presence_penalty": 1, "frequency_penalty": -0.5, "repetition_penalty": 1.25, "seed": -1,
        "stop": ["x", "yz"], "stop_token_ids": [7], "ignore_eos": true, "priority": -3,
        "cache_salt": "mine", "logprobs": 2, "user": "someone", "best_of": 2, "n": 2,
        "logit_bias": {}, "suffix": null, "min_tokens": 0, "unheard_of": [1, {}],
    });
    let reply = server.post(PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let seen = server.seen.lock().unwrap();
    let [first, second] = seen.submissions.as_slice() else { panic!("{seen:?}") };
    let sampling = first.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.min_p), (0.5, 0.9, 0.1));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (1.0, -0.5));
    assert_eq!((sampling.top_k, sampling.repetition_penalty), (40, 1.25));
    assert_eq!((sampling.logprobs, first.prompt_logprobs), (Some(2), None));
    // Seeds go on from the first, around the end of their range.
    assert_eq!((sampling.seed, second.sampling.seed), (u64::MAX, 0));
    assert_eq!(
        (first.stop.as_slice(), first.max_new_tokens),
        (&["x", "yz"].map(String::from)[..], Some(5))
    );
    assert_eq!((first.stop_token_ids.as_slice(), first.eos), (&[7][..], EosRule::Ignored));
    assert_eq!(first.priority, Some(-3));
    assert_ne!(first.namespace, 0);
    assert_eq!(first.namespace, second.namespace);
}

#[test]
fn what_is_not_said() {
    let server = Server::start();
    let ask = || {
        let reply = server.post(PATH, &json!({"prompt": "a"}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        server.seen.lock().unwrap().submissions.pop().unwrap()
    };
    let (first, second) = (ask(), ask());
    assert_eq!(first.max_new_tokens, Some(16));
    assert_eq!((first.sampling.temperature, first.sampling.top_p), (1.0, 1.0));
    assert_eq!((first.namespace, first.priority, first.eos), (0, None, EosRule::Ends));
    assert_ne!(first.sampling.seed, second.sampling.seed);
    // The same server seed and number of the request give the same seed.
    let again = Server::start();
    again.post(PATH, &json!({"prompt": "a"}));
    assert_eq!(again.seen.lock().unwrap().submissions[0].sampling.seed, first.sampling.seed);
}

#[test]
fn stops_end_an_answer() {
    let server = Server::start();
    let choice = |more: Value| {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let page = server.post(PATH, &body).json();
        let choice = &page["choices"][0];
        (choice["text"].clone(), choice["finish_reason"].clone(), choice["stop_reason"].clone())
    };
    assert_eq!(choice(json!({})), (json!("Hé 🦀 ok"), json!("stop"), json!(257)));
    let cut = (json!("Hé "), json!("stop"), json!("🦀"));
    assert_eq!(choice(json!({"stop": "🦀"})), cut);
    let cut = (json!("Hé 🦀 o"), json!("stop"), json!(111));
    assert_eq!(choice(json!({"stop_token_ids": [111]})), cut);
    let on = (json!("Hé 🦀 okHé 🦀 "), json!("length"), Value::Null);
    assert_eq!(choice(json!({"ignore_eos": true, "max_tokens": 20})), on);
}

#[test]
fn logprobs_stand_beside_their_tokens() {
    let server = Server::start();
    let body = json!({"prompt": "ab", "max_tokens": 3, "logprobs": 1, "echo": true,
                      "return_token_ids": true});
    let page = server.post(PATH, &body).json();
    insta::assert_snapshot!(page["choices"][0], @r#"{"index":0,"text":"abHé","logprobs":{"text_offset":[0,1,2,3,3],"token_logprobs":[null,-0.5,-0.5,-0.5,-0.5],"tokens":["a","b","H","bytes:\\xc3","bytes:\\xa9"],"top_logprobs":[null,{"b":-0.5},{"H":-0.5},{"bytes:\\xc3":-0.5},{"bytes:\\xa9":-0.5}]},"finish_reason":"length","stop_reason":null,"token_ids":[72,195,169],"prompt_token_ids":[97,98]}"#);
    // The prompt alone, for scores: the engine's one token is left out.
    let body = json!({"prompt": "ab", "max_tokens": 0, "logprobs": 0, "echo": true});
    let page = server.post(PATH, &body).json();
    let choice = &page["choices"][0];
    assert_eq!((&choice["text"], &page["usage"]["completion_tokens"]), (&json!("ab"), &json!(0)));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5]));
    assert_eq!(choice["logprobs"]["top_logprobs"], json!([null, null]));
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn a_stream_has_the_same_text() {
    let server = Server::start();
    let body = json!({"prompt": ["a", "b"], "n": 2, "stream": true, "echo": true,
                      "stream_options": {"include_usage": true}});
    let reply = server.post(PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut events = reply.events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 2);
    assert_eq!(last["usage"]["completion_tokens"], 4 * 11);
    let mut texts = vec![String::new(); 4];
    let mut ends = vec![0; 4];
    for event in &events {
        assert_eq!((&event["object"], &event["id"]), (&json!("text_completion"), &last["id"]));
        assert!(event["usage"].is_null() && event.get("usage").is_some());
        let choice = &event["choices"][0];
        let at = choice["index"].as_u64().unwrap() as usize;
        assert_eq!(ends[at], 0, "nothing comes after the end");
        texts[at].push_str(choice["text"].as_str().unwrap());
        ends[at] += u32::from(choice["finish_reason"] == "stop");
    }
    assert_eq!(texts, ["aHé 🦀 ok", "aHé 🦀 ok", "bHé 🦀 ok", "bHé 🦀 ok"]);
    assert_eq!(ends, [1; 4]);
}

#[test]
fn a_stream_tells_ids_logprobs_and_use_as_it_goes() {
    let server = Server::start();
    let body = json!({"prompt": "a", "max_tokens": 2, "stream": true, "return_token_ids": true,
                      "logprobs": 0,
                      "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = server.post(PATH, &body).events();
    let ids: Vec<_> = events.iter().filter_map(|e| e["choices"][0].get("token_ids")).collect();
    assert_eq!(ids, [&json!([72]), &json!([195])]);
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!([97]));
    let counts: Vec<_> = events.iter().map(|e| e["usage"]["completion_tokens"].as_u64()).collect();
    assert_eq!(counts, [Some(0), Some(1), Some(2), Some(2), Some(2)]);
    let offsets = |event: &Value| event["choices"][0]["logprobs"]["text_offset"].clone();
    assert_eq!((offsets(&events[1]), offsets(&events[2])), (json!([0]), json!([1])));
    // A character that is cut by the end is replaced, once it is certain.
    assert_eq!(events[3]["choices"][0]["text"], "\u{fffd}");
}
