//! Pages about the server itself.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    answer,
    error::ApiError,
    metrics::{page, phase_name},
    state::Shared,
};
use crate::engine::{Event, MemoryRow, Phase, Submission};

/// How long `/health_generate` waits for a token.
const TRIAL: Duration = Duration::from_secs(20);

type Front = State<Arc<Shared>>;

fn status(code: StatusCode, page: &Value) -> Response<Body> {
    let mut response = answer::json(page.to_string());
    *response.status_mut() = code;
    response
}

fn model(shared: &Shared) -> Value {
    let info = shared.front.engine.info();
    json!({
        "id": info.model,
        "object": "model",
        "created": info.created,
        "owned_by": "plimsoll",
        "root": info.model,
        "parent": null,
        "max_model_len": info.context_length,
    })
}

/// `/v1/models`.
pub(super) async fn models(State(shared): Front) -> Response<Body> {
    answer::json(json!({"object": "list", "data": [model(&shared)]}).to_string())
}

/// `/v1/models/NAME`; a name may have slashes.
pub(super) async fn one_model(
    State(shared): Front,
    Path(name): Path<String>,
) -> Result<Response<Body>, ApiError> {
    let served = &shared.front.engine.info().model;
    if name == *served {
        return Ok(answer::json(model(&shared).to_string()));
    }
    Err(ApiError::no_model(&name, served))
}

/// `/health`: whether it lives.
pub(super) async fn health(State(shared): Front) -> Response<Body> {
    let phase = shared.front.engine.status().phase;
    let dead = matches!(phase, Phase::Stopped | Phase::Failed(_));
    let code = if dead { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    status(code, &described(&phase, !dead))
}

/// `/ready`: whether it serves, proven by its largest passes.
pub(super) async fn ready(State(shared): Front) -> Response<Body> {
    let mut phase = shared.front.engine.status().phase;
    if phase == Phase::Ready && shared.is_draining() {
        phase = Phase::Draining;
    }
    let ready = phase == Phase::Ready;
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = status(code, &described(&phase, ready));
    if !ready {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

fn described(phase: &Phase, good: bool) -> Value {
    let mut page = json!({"status": if good { "ok" } else { "unavailable" }});
    page["phase"] = Value::from(phase_name(phase));
    if let Phase::Failed(why) = phase {
        page["reason"] = Value::from(why.as_str());
    }
    page
}

/// `/health_generate`: whether a token comes.
pub(super) async fn health_generate(State(shared): Front) -> Result<Response<Body>, ApiError> {
    let _admission = shared.admit()?;
    let mut ticket = shared.front.engine.submit(Submission::greedy(vec![0], 1));
    let slow = || ApiError::unavailable("no_token", format!("no token in {TRIAL:?}"), 5);
    loop {
        match timeout(TRIAL, ticket.next()).await.map_err(|_| slow())? {
            Some(Event::Refused(refusal)) => return Err(refusal.into()),
            Some(Event::Prompt(_)) => {}
            Some(Event::Token(_) | Event::Finished(_)) => {
                return Ok(answer::json(json!({"status": "ok"}).to_string()));
            }
            None => return Err(ApiError::engine_gone()),
        }
    }
}

/// `/get_server_info`, by SGLang's names.
pub(super) async fn server_info(State(shared): Front) -> Response<Body> {
    let (info, now) = (shared.front.engine.info(), shared.front.engine.status());
    let gib = |part: &str| {
        let row = info.memory.iter().find(|row| row.name.contains(part));
        row.map(|row| (row.bytes.0 as f64 / f64::from(1 << 30) * 1e4).round() / 1e4)
    };
    let rows = info.memory.iter().map(|row| {
        let same = |held: &&MemoryRow| held.name == row.name && held.device == row.device;
        let held = now.held.iter().find(same).map(|held| held.bytes.0);
        let device = row.device.as_deref().unwrap_or("host");
        json!({
            "account": row.name, "device": device, "planned_bytes": row.bytes.0, "held_bytes": held,
        })
    });
    let page = json!({
        "server": "plimsoll",
        "plimsoll_version": env!("CARGO_PKG_VERSION"),
        "model_path": info.path,
        "served_model_name": info.model,
        "status": phase_name(&now.phase),
        "device": info.device,
        "precision": info.precision,
        "context_length": info.context_length,
        "max_total_num_tokens": info.max_total_num_tokens,
        "max_running_requests": info.max_running_requests,
        "max_queued_requests": info.max_queued_requests,
        "chunked_prefill_size": info.chunked_prefill_size,
        "page_size": info.page_size,
        "max_req_input_len": info.context_length.saturating_sub(1),
        "memory": rows.collect::<Vec<_>>(),
        "internal_states": [{
            "last_gen_throughput": now.gen_throughput,
            "memory_usage": {
                "weight": gib("weight"),
                "kvcache": gib("kv"),
                "token_capacity": info.max_total_num_tokens,
            },
        }],
    });
    answer::json(page.to_string())
}

/// `/get_model_info`, by SGLang's names.
pub(super) async fn model_info(State(shared): Front) -> Response<Body> {
    let info = shared.front.engine.info();
    let page = json!({
        "model_path": info.path,
        "tokenizer_path": info.path,
        "is_generation": true,
        "served_model_name": info.model,
        "context_length": info.context_length,
    });
    answer::json(page.to_string())
}

/// `/get_load`, by SGLang's names.
pub(super) async fn load(State(shared): Front) -> Response<Body> {
    let usage = shared.front.engine.status().usage;
    let requests = usage.running.saturating_add(usage.waiting);
    let row = json!({
        "dp_rank": 0,
        "num_reqs": requests,
        "num_waiting_reqs": usage.waiting,
        "num_tokens": usage.used(),
    });
    answer::json(json!([row]).to_string())
}

/// `/version`.
pub(super) async fn version() -> Response<Body> {
    answer::json(json!({"version": env!("CARGO_PKG_VERSION"), "server": "plimsoll"}).to_string())
}

/// `/metrics`.
pub(super) async fn metrics(State(shared): Front) -> Response<Body> {
    let mut response = page(&shared).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// `/flush_cache`: the prefix cache is the engine's.
pub(super) async fn flush_cache() -> ApiError {
    ApiError::not_implemented("the prefix cache is not emptied on request; restart the server")
}
