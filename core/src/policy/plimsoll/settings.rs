//! What is asked for, and what the scheduler may form by it.

use super::refusal::Refusal;
use crate::{
    tape::own::{DecoderShape, StepLimits},
    units::Bytes,
};

/// Requests that run at a time, unless said otherwise.
const MAX_RUNNING: u64 = 16;
/// Tokens of prompts in a step, unless said otherwise: on a few cores a step then takes well under a second,
/// for which every running request waits.
const CHUNK: u64 = 512;
/// Most of either.
const MOST: u64 = 1 << 20;

/// Flags of the memory plan; what is not given gets its default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanArgs {
    /// `--memory-limit`: of this process, in all.
    pub memory_limit: Option<Bytes>,
    /// `--mem-margin`: left free of the limit.
    pub mem_margin: Option<Bytes>,
    /// `--max-running-requests`.
    pub max_running_requests: Option<u64>,
    /// `--chunked-prefill-size`: tokens of prompts in a step.
    pub chunked_prefill_size: Option<u64>,
    /// `--context-length`; the model's own at most.
    pub context_length: Option<u64>,
    /// `--max-total-tokens`: of the pool, at most; whole pages, rounded up.
    pub max_total_tokens: Option<u64>,
    /// Logprobs of prompts may be asked for: a row of logits for each of their tokens.
    pub prompt_logprobs: bool,
}

/// What holds for the engine's whole life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Requests that run at a time.
    pub max_running_requests: u64,
    /// Tokens of prompts in a step.
    pub chunked_prefill_size: u64,
    /// Longest request.
    pub context_length: u64,
    /// The largest step: a chunk and a token of each running request; a row of logits for each of those, and
    /// for each token of the chunk where prompts may ask.
    pub limits: StepLimits,
}

impl Settings {
    /// Pages of so many tokens that a pool has at least: one chunk of a prompt, or the longest request where that is
    /// shorter, and a page more.
    #[must_use]
    pub fn least_pages(&self, page_tokens: u64) -> u64 {
        let one = self.chunked_prefill_size.min(self.context_length);
        one.div_ceil(page_tokens.max(1)) + 1
    }

    /// From the flags, for a model.
    ///
    /// # Errors
    /// [`Refusal::Flag`] for what is out of its range.
    pub fn new(args: &PlanArgs, shape: &DecoderShape) -> Result<Self, Refusal> {
        let within = |flag, value, most| match value {
            1.. if value <= most => Ok(value),
            _ => Err(Refusal::Flag { flag, value, most }),
        };
        let running = args.max_running_requests.unwrap_or(MAX_RUNNING);
        let running = within("--max-running-requests", running, MOST)?;
        let context = args.context_length.unwrap_or(shape.context);
        let context = within("--context-length", context, shape.context)?;
        let chunk = args.chunked_prefill_size.unwrap_or(CHUNK);
        let chunk = within("--chunked-prefill-size", chunk, MOST)?;
        let tokens = chunk + running;
        let outputs = if args.prompt_logprobs { tokens } else { running };
        Ok(Self {
            max_running_requests: running,
            chunked_prefill_size: chunk,
            context_length: context,
            limits: StepLimits { tokens, outputs },
        })
    }
}
