//! Errors as clients of the interface expect them: a status, and a body that says what is wrong.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use plimsoll_backend_host::model::SamplingError;
use plimsoll_checkpoint::CheckpointError;
use serde::Serialize;

use crate::engine::{Phase, Refusal};

/// Longest message in characters: a client's own value may be in it.
const MESSAGE: usize = 400;

/// Why a request is not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<String>,
    message: String,
    /// Seconds after which another try may do better.
    retry: Option<u32>,
}

#[derive(Serialize)]
struct Page<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: String) -> Self {
        let message = shortened(message);
        Self { status, kind, code, param: None, message, retry: None }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, message.into())
    }

    /// A value out of its range.
    pub(crate) fn value(param: &str, found: impl std::fmt::Display, allowed: &str) -> Self {
        let message = format!("`{param}` is {found}; allowed: {allowed}");
        Self::invalid("invalid_value", message).at(param)
    }

    /// A parameter that would change the answer, and is not served.
    pub(crate) fn unsupported(param: &str, why: &str) -> Self {
        Self::invalid("unsupported_parameter", format!("`{param}` is not served: {why}")).at(param)
    }

    /// The same, naming the parameter.
    pub(crate) fn at(self, param: &str) -> Self {
        Self { param: Some(shortened(param.to_owned())), ..self }
    }

    fn retry(self, seconds: u32) -> Self {
        Self { retry: Some(seconds), ..self }
    }

    /// No key, or another one.
    pub(crate) fn unauthorized() -> Self {
        let message = "send the API key as `Authorization: Bearer KEY`".to_owned();
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message)
    }

    /// No such path.
    pub(crate) fn not_found(path: &str) -> Self {
        let message = format!("there is no `{path}` here");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "not_found", message)
    }

    /// Another model than the one served.
    pub(crate) fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("the model `{asked}` is not served; served: `{served}`");
        let kind = "invalid_request_error";
        Self::new(StatusCode::NOT_FOUND, kind, "model_not_found", message).at("model")
    }

    /// A path that is there, with another method.
    pub(crate) fn method(method: &str, path: &str) -> Self {
        let message = format!("`{path}` does not take {method}");
        let kind = "invalid_request_error";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, kind, "method_not_allowed", message)
    }

    /// A body above the limit.
    pub(crate) fn body_too_large(bytes: Option<u64>, limit: u64) -> Self {
        let found = bytes.map_or_else(|| "more".to_owned(), |bytes| format!("{bytes} bytes"));
        let message = format!("the body has {found}; the limit is {limit} bytes");
        Self::too_large("request_too_large", message)
    }

    /// A prompt that no context holds.
    pub(crate) fn prompt_too_long(message: String) -> Self {
        Self::too_large("context_length_exceeded", message).at("prompt")
    }

    fn too_large(code: &'static str, message: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", code, message)
    }

    /// A body that does not come.
    pub(crate) fn body_timeout() -> Self {
        let message = "the body did not arrive in time".to_owned();
        let kind = "invalid_request_error";
        Self::new(StatusCode::REQUEST_TIMEOUT, kind, "request_timeout", message)
    }

    /// As many requests as may be answered at once are.
    pub(crate) fn too_many(limit: u32) -> Self {
        let message = format!("{limit} requests are being answered, as many as are allowed");
        Self::busy("too_many_requests", message)
    }

    fn busy(code: &'static str, message: String) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code, message).retry(1)
    }

    /// It does not serve now.
    pub(crate) fn unavailable(code: &'static str, message: String, retry: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", code, message).retry(retry)
    }

    /// It ends, and takes nothing new.
    pub(crate) fn draining() -> Self {
        Self::unavailable("draining", "the server is shutting down".to_owned(), 10)
    }

    /// The engine is no more.
    pub(crate) fn engine_gone() -> Self {
        Self::unavailable("engine_gone", "the engine has stopped".to_owned(), 30)
    }

    /// Something that this server does not do.
    pub(crate) fn not_implemented(message: &str) -> Self {
        let kind = "invalid_request_error";
        Self::new(StatusCode::NOT_IMPLEMENTED, kind, "not_implemented", message.to_owned())
    }

    /// A mistake of the server's.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let kind = "server_error";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, kind, "internal_error", message.into())
    }

    /// What stands against a request in that phase.
    pub(crate) fn of_phase(phase: &Phase) -> Option<Self> {
        let loading = |what: &str| Self::unavailable("loading", format!("{what}; see /ready"), 5);
        match phase {
            Phase::Ready => None,
            Phase::Loading => Some(loading("the model is being loaded")),
            Phase::Proving => Some(loading("the largest passes are being tried")),
            Phase::Draining => Some(Self::draining()),
            Phase::Stopped => Some(Self::engine_gone()),
            Phase::Failed(why) => {
                Some(Self::unavailable("engine_failed", format!("the engine failed: {why}"), 30))
            }
        }
    }

    /// The body.
    pub(crate) fn json(&self) -> String {
        let param = self.param.as_deref();
        let error = Inner { message: &self.message, r#type: self.kind, param, code: self.code };
        // Texts alone: nothing in it can fail.
        serde_json::to_string(&Page { error }).unwrap_or_default()
    }
}

fn shortened(message: String) -> String {
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message,
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> Self {
        Self::invalid("invalid_value", error.to_string()).at(error.name)
    }
}

impl From<CheckpointError> for ApiError {
    /// Of a text of the client's: what its template or tokenizer says about it.
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Template(_) => {
                Self::invalid("invalid_messages", error.to_string()).at("messages")
            }
            _ => Self::invalid("invalid_prompt", error.to_string()),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.message;
        match refusal.code {
            "queue_full" => Self::busy("queue_full", message),
            "prompt_too_long" => Self::prompt_too_long(message),
            "draining" => Self::unavailable("draining", message, 10),
            "loading" => Self::unavailable("loading", message, 5),
            code @ ("engine_gone" | "engine_failed") => Self::unavailable(code, message, 30),
            code => Self::invalid(code, message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
