//! The workload of a scenario: who sends what, and when.

use super::{lengths::Lengths, time::Rate, traces::TraceSource};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule, units::Nanos};

/// Most groups of requests.
pub const MAX_GROUPS: usize = 64;

/// The requests that reach the server: at least one part, names unique.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// In the order of the file; of two requests at one time the earlier part's comes first.
    pub parts: Vec<Part>,
}

impl Workload {
    /// The groups among its parts.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.parts.iter().filter_map(|part| match part {
            Part::Group(group) => Some(group.as_ref()),
            Part::Trace(_) => None,
        })
    }

    /// The traces among its parts.
    pub fn traces(&self) -> impl Iterator<Item = &TraceSource> {
        self.parts.iter().filter_map(|part| match part {
            Part::Trace(trace) => Some(trace.as_ref()),
            Part::Group(_) => None,
        })
    }
}

/// A part of a workload.
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// Requests that are drawn.
    Group(Box<Group>),
    /// Requests that were recorded.
    Trace(Box<TraceSource>),
}

impl Part {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Group(group) => &group.name,
            Self::Trace(trace) => &trace.name,
        }
    }
}

/// Requests of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Name; its random numbers depend on it and on the seed alone.
    pub name: String,
    /// How many; with turns, how many conversations.
    pub requests: u64,
    /// When they are due; with turns, the first one of each.
    pub schedule: Schedule,
    /// Most that are under way together, as a client with so many connections sends them; `None`: no
    /// limit. A conversation keeps its connection to its end.
    pub concurrency: Option<u64>,
    /// From the end of a request, or of a conversation, to the next one on its connection.
    pub think_time: Nanos,
    /// What each is like.
    pub shape: Shape,
    /// Prefixes that stand before the prompts.
    pub shared_prefix: Option<SharedPrefix>,
    /// Conversations, where the requests are such.
    pub turns: Option<Turns>,
}

/// Conversations: a turn's prompt is the one before, its answer, and new tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Turns {
    /// Turns of a conversation, the first included.
    pub count: Lengths,
    /// From an answer to the next turn.
    pub think_time: Nanos,
    /// New tokens of each turn but the first.
    pub prompt_tokens: Lengths,
}

/// Most turns of a conversation.
pub const MAX_TURNS: u64 = 1000;

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
        /// How the rate goes on.
        pacing: Pacing,
    },
}

/// How a rate goes on over time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pacing {
    /// It stays.
    Steady,
    /// It holds for `on`, then there is another one, or none, for `off`, and so on.
    Bursts {
        /// How long it holds, more than 0.
        on: Nanos,
        /// How long it does not.
        off: Nanos,
        /// Rate between the bursts.
        quiet: Option<Rate>,
    },
    /// It goes from one value to another, by the number of the request; the first waits a gap too.
    /// Source: vLLM `_get_current_request_rate`.
    Ramp {
        /// Requests a second at the first request.
        from: f64,
        /// And at the last.
        to: f64,
        /// How it goes.
        law: RampLaw,
    },
    /// The gaps are stretched so that the last request is due when the mean rate says; the first waits a gap
    /// too. Source: vLLM `get_request`.
    Stretched,
}

/// How a ramp goes from one rate to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RampLaw {
    /// By the same amount for each request.
    Linear,
    /// By the same factor for each request.
    Exponential,
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
#[derive(Clone, PartialEq, Debug)]
pub struct SharedPrefix {
    /// Lengths, tokens; a prefix keeps its own.
    pub tokens: Lengths,
    /// How many different ones.
    pub groups: u64,
    /// Which one a request has.
    pub choice: PrefixChoice,
}

/// Which prefix a request has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PrefixChoice {
    /// Any, all as likely.
    Random,
    /// Each as often as the others, in mixed order.
    Even,
    /// Each as often as the others, one after the other.
    InOrder,
    /// The n-th with a likelihood of n to the power of minus alpha.
    Zipf {
        /// Exponent.
        alpha: f64,
    },
}
