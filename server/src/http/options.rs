//! What the front end is made of.

use std::{fmt, sync::Arc, time::Duration};

use plimsoll_backend_host::model::Sampling;
use plimsoll_checkpoint::{ChatTemplate, Today, Tokenizer};

use crate::engine::Engine;

/// Everything that requests need.
#[derive(Clone, Debug)]
pub struct Front {
    /// The engine.
    pub engine: Engine,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template; without one there are no chat completions.
    pub template: Option<Arc<ChatTemplate>>,
    /// Limits and defaults.
    pub options: FrontOptions,
}

/// The key that clients send; it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(pub String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Limits and defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct FrontOptions {
    /// Needed as `Authorization: Bearer …`, where there is one.
    pub api_key: Option<ApiKey>,
    /// Largest body of a request, in bytes.
    pub max_body_bytes: u64,
    /// Bytes of bodies that may be held at once; at least one body fits. What is above waits.
    pub body_budget_bytes: u64,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Requests that may be answered at once, those that wait in the engine among them.
    pub max_streams: u32,
    /// Connections that may be open at once; further ones wait in the system's queue.
    pub max_connections: u32,
    /// Requests whose text is parsed and tokenized at the same time.
    pub preparations: u32,
    /// What a request that says nothing samples with.
    pub defaults: Sampling,
    /// From it and the request's number comes the seed of a request that gives none.
    pub random_seed: u64,
    /// The date for chat templates; `None`: today's, in UTC.
    pub today: Option<Today>,
    /// How long running requests may take once a stop is asked for.
    pub drain_timeout: Duration,
    /// Silence on a stream after which a comment is sent.
    pub keep_alive: Duration,
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self {
            api_key: None,
            max_body_bytes: 8 << 20,
            body_budget_bytes: 64 << 20,
            body_timeout: Duration::from_secs(30),
            max_streams: 4096,
            max_connections: 4096,
            preparations: 2,
            defaults: Sampling { temperature: 1.0, ..Sampling::default() },
            random_seed: 0,
            today: None,
            drain_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
        }
    }
}
