//! A model on this machine's processors: its plan, from the machine's readings and the model's sizes, and its loading.

use std::thread::available_parallelism;

use plimsoll_backend_host::{
    audit::Audit,
    model::{HostModel, KvFormat, ModelMemory, ModelOptions, kept_bytes},
    pressure::{Pressure, plan_readings},
};
use plimsoll_checkpoint::WeightFiles;
use plimsoll_core::{
    policy::plimsoll::{Budgets, Engine, KvCell, Plan, PlanArgs, Settings, plan},
    tape::own::DecoderShape,
    units::Bytes,
};

use super::{
    Ask, HostAsk, PlanError,
    thread::{LoadFailure, Opened, Ready},
};
use crate::{engine::MemoryRow, plan::MemoryPlan};

/// Threads beside the model's: the engine's, that of HTTP, those that tokenize.
const OTHER_THREADS: u64 = 4;
/// What a tokenizer's caches may grow by, for each token of its vocabulary.
const CACHE_OF_TOKEN: u64 = 512;

/// A model whose memory is not yet taken.
pub(super) struct Parts {
    pub(super) shape: DecoderShape,
    pub(super) weights: WeightFiles,
    /// Tokens that the tokenizer knows.
    pub(super) vocabulary: u64,
}

/// Plans; nothing is taken before the loading.
pub(super) fn open(ask: &Ask, own: HostAsk, parts: Parts) -> Result<Opened, PlanError> {
    let (plan, options) = memory(ask, own, &parts)?;
    let Parts { shape, mut weights, .. } = parts;
    let kept = plan.clone();
    let load = move || {
        let model = HostModel::load(&shape, &mut weights, &options).map_err(LoadFailure::Host)?;
        let pressure = Pressure::new(own.memory_limit);
        Ok(Ready {
            held: held(&kept, &model),
            model: Box::new(model),
            // A reading that fails says nothing.
            room: Box::new(move || pressure.room().ok()),
        })
    };
    let kv = options.kv.name();
    let precision = format!("{} arithmetic, KV {kv}", own.keep.name());
    Ok(Opened { plan: MemoryPlan::of_host(&plan, precision), load: Box::new(load) })
}

fn memory(ask: &Ask, own: HostAsk, parts: &Parts) -> Result<(Plan, ModelOptions), PlanError> {
    let (readings, shape) = (plan_readings()?, &parts.shape);
    let context = ask.context(shape.context);
    let args = PlanArgs {
        memory_limit: own.memory_limit,
        mem_margin: ask.margin,
        max_running_requests: Some(ask.running()),
        chunked_prefill_size: Some(ask.chunk()),
        context_length: Some(context),
        max_total_tokens: Some(ask.max_total_tokens.unwrap_or_else(|| useful(ask, context))),
        prompt_logprobs: false,
    };
    let settings = Settings::new(&args, shape)?;
    let threads = own.threads.unwrap_or_else(cores);
    let kv = ask.kv.unwrap_or(KvFormat::F32);
    let mut options = ModelOptions {
        threads,
        limits: settings.limits,
        pages: 1,
        page_tokens: ask.page_size as usize,
        context,
        keep: own.keep,
        kv,
    };
    let scratch = Bytes(ModelMemory::planned(shape, &options)?.scratch);
    let stored = |id| parts.weights.encoding(id);
    let weights = kept_bytes(shape, own.keep, stored).map(Bytes).ok_or(PlanError::Weights)?;
    let engine = Engine {
        shape,
        cell: KvCell::new(shape, kv, ask.page_size)?,
        weights,
        workspace: own.keep.workspace(),
        scratch,
        threads: threads as u64 + OTHER_THREADS,
        budgets: budgets(parts.vocabulary),
    };
    let plan = plan(&readings, &args, &engine)?;
    options.pages = plan.pages as usize;
    Ok((plan, options))
}

/// Tokens of a pool in which every running request fits whole, and as many again for prefixes. More is of no
/// use, and is left to the machine.
fn useful(ask: &Ask, context: u64) -> u64 {
    let page = ask.page_size.max(1);
    let request = context.next_multiple_of(page).saturating_add(page);
    request.saturating_mul(ask.running()).saturating_mul(2)
}

fn cores() -> usize {
    available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The tokenizer is there already: what it takes is part of what the process holds, and only its caches grow.
fn budgets(vocabulary: u64) -> Budgets {
    Budgets { tokenizer: Bytes(vocabulary * CACHE_OF_TOKEN), ..Budgets::default() }
}

/// What the parts of a loaded model hold, by the names of the plan, and the process as a whole.
fn held(plan: &Plan, model: &HostModel) -> Vec<MemoryRow> {
    let row = |name: &str, bytes| MemoryRow { device: None, name: name.to_owned(), bytes };
    // A system that does not say what the process holds is a row less.
    let resident = plan_readings().map(|now| now.resident).unwrap_or_default();
    let audit = Audit::new(plan, &model.memory(), resident);
    let parts = audit.rows.iter().filter_map(|part| Some(row(part.part.name(), part.held?)));
    let whole = [("resident", audit.resident), ("beyond_plan", audit.beyond())];
    parts.chain(whole.map(|(name, bytes)| row(name, bytes))).collect()
}
