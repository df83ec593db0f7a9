//! The workload of a scenario: who sends what, and when.

use super::{lengths::Lengths, time::Rate};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule, units::Nanos};

/// Most groups of requests.
pub const MAX_GROUPS: usize = 64;

/// The requests that reach the server: at least one group, names unique.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// In the order of the file; of two requests at one time the earlier group's comes first.
    pub groups: Vec<Group>,
}

/// Requests of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Name; its random numbers depend on it and on the seed alone.
    pub name: String,
    /// How many.
    pub requests: u64,
    /// When they are due.
    pub schedule: Schedule,
    /// Most that are under way together, as a client with so many connections sends them; `None`: no
    /// limit.
    pub concurrency: Option<u64>,
    /// From the end of a request to the next one on its connection.
    pub think_time: Nanos,
    /// What each is like.
    pub shape: Shape,
    /// Prefixes that stand before the prompts.
    pub shared_prefix: Option<SharedPrefix>,
}

/// When requests are due; they are sent as soon as the concurrency lets them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Schedule {
    /// All at one time.
    Together {
        /// Since the server is ready.
        at: Nanos,
    },
    /// At a rate; the first at `start`, as SGLang's `bench_serving` sends before it waits.
    Rate {
        /// Mean rate.
        rate: Rate,
        /// Law of the gaps.
        gaps: Gaps,
        /// Time of the first, since the server is ready.
        start: Nanos,
    },
}

/// Law of the gaps between arrivals.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Gaps {
    /// All the same.
    Constant,
    /// Exponential.
    Poisson,
    /// Gamma with this shape, as vLLM's `--burstiness`: 1 is Poisson, below 1 is burstier.
    Gamma {
        /// Shape.
        burstiness: f64,
    },
}

/// What a request is like.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    /// The prompt's own tokens, besides a shared prefix.
    pub prompt_tokens: Lengths,
    /// Tokens after which the model ends by itself.
    pub output_tokens: Lengths,
    /// Limit that the client asks for.
    pub max_tokens: MaxTokens,
    /// Whether the model's end counts.
    pub eos: EosRule,
    /// What its sampling allocates.
    pub sampling: Sampling,
    /// First prompt token whose logprob is asked for.
    pub logprob_start: Option<u64>,
    /// Priority.
    pub priority: Option<i64>,
}

/// The limit of new tokens that a client asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum MaxTokens {
    /// The length of the answer.
    Output,
    /// None: as much as the engine allows.
    Engine,
    /// These.
    Lengths(Lengths),
}

/// Prefixes with the same tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedPrefix {
    /// Length, tokens.
    pub tokens: u64,
    /// How many different ones; each request takes one at random.
    pub groups: u64,
}
