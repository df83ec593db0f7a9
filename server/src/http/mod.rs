//! The HTTP front end: the interfaces of `OpenAI`, SGLang and vLLM over one engine.
//!
//! It runs on one small runtime. Requests are parsed and tokenized on threads of their own, a few at a time;
//! everything else waits for the engine. `docs/serve.md` says what is served.

mod answer;
mod body;
mod error;
mod info;
mod listen;
mod metrics;
mod options;
mod request;
mod serve;
mod state;

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Response, header},
    middleware::{Next, from_fn_with_state},
    response::IntoResponse,
    routing::{get, post},
};
use sha2::{Digest, Sha256};

pub use options::{ApiKey, Front, FrontOptions};
pub use serve::{Drained, serve};

use error::ApiError;
use request::{Job, chat, completion, native, tokens};
use state::Shared;
pub use state::today;

/// Paths that need no key: they tell whether it lives, and what a monitor reads.
const OPEN: [&str; 3] = ["/health", "/ready", "/metrics"];

/// All endpoints of a front, without a listener.
pub fn router(front: Front) -> Router {
    routes(&Arc::new(Shared::new(front)))
}

/// What a body must hold to be read without a panic: for fuzzing. The endpoint is one of the paths that take
/// a body; nothing of others.
#[doc(hidden)]
#[must_use]
pub fn try_body(front: &Front, path: &str, body: &[u8]) -> Option<Result<usize, String>> {
    let shared = Shared::new(front.clone());
    let job = |job: Result<Job, ApiError>| {
        Some(job.map(|job| job.submissions.len()).map_err(|error| error.json()))
    };
    let text = |page: Result<String, ApiError>| {
        Some(page.map(|page| page.len()).map_err(|error| error.json()))
    };
    match path {
        "/v1/completions" => job(completion::prepare(&shared, body, 0)),
        "/v1/chat/completions" => job(chat::prepare(&shared, body, 0)),
        "/generate" => job(native::prepare(&shared, body, 0)),
        "/tokenize" => text(tokens::tokenize(&shared, body)),
        "/detokenize" => text(tokens::detokenize(&shared, body)),
        _ => None,
    }
}

fn routes(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*name}", get(info::one_model))
        .route("/generate", post(generate).put(generate))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(info::health))
        .route("/health_generate", get(info::health_generate))
        .route("/ready", get(info::ready))
        .route("/get_server_info", get(info::server_info))
        .route("/server_info", get(info::server_info))
        .route("/get_model_info", get(info::model_info))
        .route("/model_info", get(info::model_info))
        .route("/get_load", get(info::load))
        .route("/version", get(info::version))
        .route("/metrics", get(info::metrics))
        .route("/flush_cache", get(info::flush_cache).post(info::flush_cache))
        .fallback(nowhere)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(shared), guard))
        .with_state(Arc::clone(shared))
}

type Prepare = fn(&Shared, &[u8], u64) -> Result<Job, ApiError>;
type Answer = Result<Response<Body>, ApiError>;

async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Answer {
    generation(shared, request, completion::prepare).await
}

async fn chat_completions(State(shared): State<Arc<Shared>>, request: Request) -> Answer {
    generation(shared, request, chat::prepare).await
}

async fn generate(State(shared): State<Arc<Shared>>, request: Request) -> Answer {
    generation(shared, request, native::prepare).await
}

async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Answer {
    conversion(shared, request, tokens::tokenize).await
}

async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Answer {
    conversion(shared, request, tokens::detokenize).await
}

/// A request for the engine, from its body to its answer.
async fn generation(shared: Arc<Shared>, request: Request, prepare: Prepare) -> Answer {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let admission = match shared.admit() {
        Ok(admission) => admission,
        Err(error) => {
            body::discard(&parts.headers, body).await;
            return Err(error);
        }
    };
    let number = admission.number;
    let job =
        prepared(&shared, &parts.headers, body, move |shared, body| prepare(shared, body, number));
    answer::answer(&shared, job.await?, admission, arrived).await
}

/// A request that the tokenizer answers.
async fn conversion(
    shared: Arc<Shared>,
    request: Request,
    convert: fn(&Shared, &[u8]) -> Result<String, ApiError>,
) -> Answer {
    let (parts, body) = request.into_parts();
    prepared(&shared, &parts.headers, body, convert).await.map(answer::json)
}

/// Reads a body and works on it.
async fn prepared<T: Send + 'static>(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    body: Body,
    work: impl FnOnce(&Shared, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let held = body::read(shared, headers, body).await?;
    let (bytes, _budget) = held.split();
    shared.compute(move |shared| work(shared, &bytes)).await
}

async fn nowhere(request: Request) -> ApiError {
    ApiError::not_found(request.uri().path())
}

async fn no_method(request: Request) -> ApiError {
    ApiError::method(request.method().as_str(), request.uri().path())
}

/// Checks the key, and counts what is answered.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response<Body> {
    let open = OPEN.contains(&request.uri().path());
    let response = match &shared.front.options.api_key {
        Some(key) if !open && !authorized(request.headers(), key) => {
            let (parts, body) = request.into_parts();
            body::discard(&parts.headers, body).await;
            ApiError::unauthorized().into_response()
        }
        _ => next.run(request).await,
    };
    shared.metrics.response(response.status().as_u16());
    response
}

/// Compares digests, so that the time tells nothing of the key.
fn authorized(headers: &HeaderMap, key: &ApiKey) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, given)) = given.and_then(|value| value.split_once(' ')) else {
        return false;
    };
    let (given, key) = (Sha256::digest(given.trim()), Sha256::digest(&key.0));
    let differ = given.iter().zip(key.iter()).fold(0, |sum, (a, b)| sum | (a ^ b));
    scheme.eq_ignore_ascii_case("bearer") && std::hint::black_box(differ) == 0
}
