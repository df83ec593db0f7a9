//! Pages about the server.

use plimsoll_ingest::watch::{ServerKind, read_page, server_info, server_load};
use plimsoll_server::{engine::Phase, http::FrontOptions};
use serde_json::json;

use crate::{client::Server, script::Script};

#[test]
fn the_model_is_listed() {
    let server = Server::start();
    let page = server.get("/v1/models").json();
    insta::assert_snapshot!(page, @r#"{"object":"list","data":[{"id":"org/tiny","object":"model","created":1700000000,"owned_by":"plimsoll","root":"org/tiny","parent":null,"max_model_len":256}]}"#);
    assert_eq!(server.get("/v1/models/org/tiny").json(), page["data"][0]);
    let (status, error) = server.get("/v1/models/org/other").error();
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
}

#[test]
fn alive_is_not_ready() {
    for (phase, name, health, ready) in [
        (Phase::Loading, "loading", 200, 503),
        (Phase::Proving, "proving", 200, 503),
        (Phase::Ready, "ready", 200, 200),
        (Phase::Draining, "draining", 200, 503),
        (Phase::Failed("no memory".to_owned()), "failed", 503, 503),
    ] {
        let server = Server::with(Script { phase, ..Script::default() }, FrontOptions::default());
        let found = server.get("/ready");
        assert_eq!((server.get("/health").status, found.status), (health, ready), "{name}");
        assert_eq!(found.json()["phase"], name);
        let asked = server.post("/v1/completions", &json!({"prompt": "a"}));
        assert_eq!(asked.status, ready, "{name}");
        assert_eq!(server.get("/health_generate").status, ready, "{name}");
        if ready == 503 {
            assert!(asked.header("retry-after").is_some());
            let code = if name == "proving" { "loading" } else { name };
            assert!(asked.error().1["code"].as_str().unwrap().ends_with(code));
        }
    }
}

#[test]
fn text_to_ids_and_back() {
    let server = Server::start();
    let page = server.post("/tokenize", &json!({"prompt": "<s>é", "return_token_strs": true}));
    assert_eq!(
        page.json(),
        json!({"count": 3, "max_model_len": 256, "tokens": [256, 195, 169],
               "token_strs": ["<s>", "Ã", "©"]})
    );
    let messages = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(server.post("/tokenize", &messages).json()["count"], 18);
    let back = server.post("/detokenize", &json!({"tokens": [256, 195, 169]})).json();
    assert_eq!(back, json!({"prompt": "<s>é"}));
    let (status, error) = server.post("/detokenize", &json!({"tokens": [1, 258]})).error();
    assert_eq!((status, &error["param"]), (400, &json!("tokens")));
    assert_eq!(error["message"], "`prompt` is a list with 258; allowed: token ids from 0 to 257");
}

#[test]
fn watch_reads_what_this_server_says() {
    let server = Server::start();
    let prompt = json!({"prompt": "abcdefgh", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &prompt).status, 200);
    let text = server.get("/metrics").body;
    let page = read_page(&text);
    assert_eq!(page.bad, None);
    assert_eq!(page.kind, Some(ServerKind::Sglang));
    let (_, figures) = page.ranks.first_key_value().unwrap();
    assert_eq!((figures.prompt_tokens_total, figures.output_tokens_total), (Some(8), Some(3)));
    assert_eq!((figures.pool_capacity_tokens, figures.pool_held_tokens), (Some(4096), Some(0)));
    assert_eq!(figures.prefill_tokens_total, Some(4));
    assert_eq!((figures.running_requests, figures.queued_requests), (Some(0), Some(0)));
    assert_eq!((figures.retractions_total, figures.cache_hit_rate), (Some(0), Some(0.5)));
    for line in [
        "plimsoll:memory_bytes{model_name=\"org/tiny\",account=\"weights\"} 1073741824",
        "sglang:time_to_first_token_seconds_count{model_name=\"org/tiny\"} 1",
        "sglang:inter_token_latency_seconds_bucket{model_name=\"org/tiny\",le=\"+Inf\"} 2",
        "sglang:e2e_request_latency_seconds_count{model_name=\"org/tiny\"} 1",
        "plimsoll:http_responses_total{model_name=\"org/tiny\",status=\"200\"} 1",
        "plimsoll:phase{model_name=\"org/tiny\",phase=\"ready\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for path in ["/get_server_info", "/server_info"] {
        let facts = server_info(&server.get(path).body).unwrap();
        assert_eq!(facts.model.as_deref(), Some("org/tiny"));
        assert_eq!(facts.capacity_tokens, Some(4096));
        assert_eq!(facts.held["weights"].0, 1 << 30);
    }
    assert_eq!(server_load(&server.get("/get_load").body).len(), 1);
    assert_eq!(server.get("/get_model_info").json()["model_path"], "/models/tiny");
    assert_eq!(server.call("POST", "/flush_cache", "", b"").error().0, 501);
}
