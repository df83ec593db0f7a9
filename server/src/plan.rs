//! The memory plan of a server on this host: the machine's readings and the model's sizes, put to
//! [`plimsoll_core::policy::plimsoll`].

use std::{convert::Infallible, thread::available_parallelism};

use plimsoll_backend_host::{
    HostError,
    model::{LoadError, ModelMemory, ModelOptions, kept_bytes},
    pressure::plan_readings,
};
use plimsoll_checkpoint::Checkpoint;
use plimsoll_core::{
    policy::plimsoll::{
        Budgets, CellError, Engine, KvCell, Plan, PlanArgs, Refusal, Settings, plan,
    },
    units::Bytes,
};

use crate::start::{Ask, DEFAULT_CONTEXT};

/// Threads beside the model's: the engine's, that of HTTP, those that tokenize.
const OTHER_THREADS: u64 = 4;
/// What a tokenizer's caches may grow by, for each token of its vocabulary.
const CACHE_OF_TOKEN: u64 = 512;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The machine cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It does not fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No such page.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// What loading would refuse.
    #[error(transparent)]
    Load(#[from] LoadError<Infallible>),
    /// A mistake of the checkpoint.
    #[error("the size of the weights cannot be told")]
    Weights,
}

/// A plan, and the options that load a model by it.
#[derive(Clone, Debug)]
pub struct PlannedMemory {
    /// The plan.
    pub plan: Plan,
    /// For the model.
    pub options: ModelOptions,
}

/// Plans. Nothing is taken.
pub(crate) fn memory(ask: &Ask, checkpoint: &Checkpoint) -> Result<PlannedMemory, PlanError> {
    let (readings, shape) = (plan_readings()?, &checkpoint.shape);
    let context = ask.context_length.unwrap_or(DEFAULT_CONTEXT.min(shape.context));
    let args = PlanArgs {
        memory_limit: ask.memory_limit,
        mem_margin: ask.margin,
        max_running_requests: Some(ask.max_running_requests),
        chunked_prefill_size: Some(ask.chunked_prefill_size),
        context_length: Some(context),
        max_total_tokens: Some(ask.max_total_tokens.unwrap_or_else(|| useful(ask, context))),
        prompt_logprobs: false,
    };
    let settings = Settings::new(&args, shape)?;
    let threads = ask.threads.unwrap_or_else(cores);
    let mut options = ModelOptions {
        threads,
        limits: settings.limits,
        pages: 1,
        page_tokens: ask.page_size as usize,
        context,
        keep: ask.keep,
        kv: ask.kv,
    };
    let scratch = Bytes(ModelMemory::planned(shape, &options)?.scratch);
    let stored = |id| checkpoint.weights.encoding(id);
    let weights = kept_bytes(shape, ask.keep, stored).map(Bytes).ok_or(PlanError::Weights)?;
    let engine = Engine {
        shape,
        cell: KvCell::new(shape, ask.kv, ask.page_size)?,
        weights,
        workspace: ask.keep.workspace(),
        scratch,
        threads: threads as u64 + OTHER_THREADS,
        budgets: budgets(checkpoint),
    };
    let plan = plan(&readings, &args, &engine)?;
    options.pages = plan.pages as usize;
    Ok(PlannedMemory { plan, options })
}

/// Tokens of a pool in which every running request fits whole, and as many again for prefixes. More is of no
/// use, and is left to the machine.
fn useful(ask: &Ask, context: u64) -> u64 {
    let page = ask.page_size.max(1);
    let request = context.next_multiple_of(page).saturating_add(page);
    request.saturating_mul(ask.max_running_requests).saturating_mul(2)
}

fn cores() -> usize {
    available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The tokenizer is there already: what it takes is part of what the process holds, and only its caches grow.
fn budgets(checkpoint: &Checkpoint) -> Budgets {
    let tokens = checkpoint.tokenizer.size() as u64;
    Budgets { tokenizer: Bytes(tokens * CACHE_OF_TOKEN), ..Budgets::default() }
}
