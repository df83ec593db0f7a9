//! `/generate` and what benchmarks of SGLang ask for beside it.

use serde_json::{Value, json};

use crate::client::Server;

#[test]
fn a_request_in_sglangs_form() {
    let server = Server::start();
    let body = json!({"text": "abcd", "return_logprob": true, "top_logprobs_num": 1,
                      "sampling_params": {"max_new_tokens": 2, "temperature": 0}});
    let reply = server.post("/generate", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut page = reply.json();
    let info = &mut page["meta_info"];
    assert_eq!(info["id"].take().as_str().unwrap().len(), 16);
    assert!(info["e2e_latency"].take().as_f64().unwrap() > 0.0);
    insta::assert_snapshot!(page, @r#"{"text":"H�","output_ids":[72,195],"meta_info":{"id":null,"finish_reason":{"type":"length","length":2},"prompt_tokens":4,"completion_tokens":2,"cached_tokens":2,"e2e_latency":null,"output_token_logprobs":[[-0.5,72,"H"],[-0.5,195,"bytes:\\xc3"]],"output_top_logprobs":[[[-0.5,72,"H"]],[[-0.5,195,"bytes:\\xc3"]]]}}"#);
    assert_eq!(server.seen.lock().unwrap().submissions[0].sampling.temperature, 0.0);
}

#[test]
fn ids_and_batches() {
    let server = Server::start();
    let one = json!({"input_ids": [97], "sampling_params": {"max_new_tokens": 1}});
    assert_eq!(server.post("/generate", &one).json()["text"], "H");
    let batch = json!({"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1, "n": 2}});
    let page = server.post("/generate", &batch).json();
    assert_eq!(page.as_array().map(Vec::len), Some(4));
    let nothing = json!({"input_ids": [97], "sampling_params": {"max_new_tokens": 0}});
    let page = server.post("/generate", &nothing).json();
    assert_eq!((&page["text"], &page["output_ids"]), (&json!(""), &json!([])));
    assert_eq!(page["meta_info"]["completion_tokens"], 0);
    let neither = json!({"sampling_params": {}});
    assert_eq!(server.post("/generate", &neither).error().1["code"], "missing_parameter");
    let both = json!({"text": "a", "input_ids": [1]});
    assert_eq!(server.post("/generate", &both).status, 400);
}

#[test]
fn a_stream_repeats_the_text_so_far() {
    let server = Server::start();
    let body = json!({"text": "a", "stream": true, "rid": "mine",
                      "sampling_params": {"max_new_tokens": 64, "top_k": 1 << 30, "stop": "ok"}});
    let events = server.post("/generate", &body).events();
    let texts: Vec<&str> = events.iter().map(|e| e["text"].as_str().unwrap()).collect();
    assert!(texts.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{texts:?}");
    let last = events.last().unwrap();
    assert_eq!(last["text"], "Hé 🦀 ");
    let end = json!({"type": "stop", "matched": "ok"});
    assert_eq!(last["meta_info"]["finish_reason"], end);
    let counts: Vec<_> =
        events.iter().map(|e| e["meta_info"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11]);
    assert!(events.iter().all(|e| e.get("index").is_none()));
    let several = json!({"text": ["a", "b"], "stream": true});
    let events = server.post("/generate", &several).events();
    let of = |at: u64| events.iter().filter(|e| e["index"] == at).count();
    assert_eq!((of(0), of(1)), (12, 12));
}

#[test]
fn what_would_change_an_answer_is_refused() {
    let server = Server::start();
    for (param, value) in [
        ("json_schema", json!("{}")),
        ("regex", json!("a+")),
        ("min_new_tokens", json!(1)),
        ("skip_special_tokens", json!(false)),
        ("logit_bias", json!({"1": 2})),
    ] {
        let mut params = json!({});
        params[param] = value;
        let (status, error) =
            server.post("/generate", &json!({"text": "a", "sampling_params": params})).error();
        assert_eq!((status, &error["param"]), (400, &Value::from(param)));
        assert_eq!(error["code"], "unsupported_parameter");
    }
}
