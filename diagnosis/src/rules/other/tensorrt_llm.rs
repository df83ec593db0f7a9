//! TensorRT-LLM: the pool is a fraction of what is free after engine, contexts and runtime buffers.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Amount, Event, Kind, TensorRtLlm};

use super::not_modelled;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

const SERVER: &str = "TensorRT-LLM";
const FRACTION: &str = "kv_cache_free_gpu_memory_fraction";

fn lines(case: &Case) -> impl DoubleEndedIterator<Item = (&Event, &TensorRtLlm)> {
    case.events().filter_map(|event| match &event.kind {
        Kind::TensorRtLlm(line) => Some((event, line)),
        _ => None,
    })
}

/// The runtime refused a buffer: before the pool is made it is activation and decoder buffers, which are
/// built for the largest batch.
pub(super) fn out_of_memory(case: &Case) -> Vec<Finding> {
    let refusal = lines(case).find_map(|(event, line)| match line {
        TensorRtLlm::OutOfMemory { place, requested } => {
            Some((event, place.as_deref(), *requested))
        }
        _ => None,
    });
    let Some((event, place, requested)) = refusal else { return Vec::new() };
    let pooled = lines(case).any(|(_, line)| matches!(line, TensorRtLlm::KvAllocated { .. }));
    let what = requested.map_or("a buffer".to_owned(), |asked| format!("{asked}"));
    let place = place.map_or(String::new(), |place| format!(" ({place})"));
    let mut finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Sizing,
        format!("the runtime was refused {what}{place}"),
    )
    .also(&[Cause::SamplerBuffers, Cause::ModelTooBig, Cause::ActivationsOutsidePool])
    .sure(Confidence::Likely, 85)
    .because(
        "Runtime and decoder buffers are made for max_batch_size requests of the full length when the engine starts, \
         before the pool.",
    )
    .seen(event)
    .fraction(if pooled { Direction::Lower } else { Direction::NoEffect })
    .set(Lever::new("max_batch_size", Move::Lower).gives("runtime and decoder buffers in proportion"))
    .set(Lever::new("max_num_tokens", Move::Lower).gives("activations in proportion"));
    if !pooled {
        finding = finding.useless(FRACTION, None, "the pool comes after these buffers");
    }
    vec![not_modelled(sizes(case, finding), SERVER)]
}

/// What the pool got of what was free: nearly nothing, or nearly all.
pub(super) fn pool(case: &Case) -> Vec<Finding> {
    if lines(case).any(|(_, line)| matches!(line, TensorRtLlm::OutOfMemory { .. })) {
        return Vec::new();
    }
    if let Some((event, _)) =
        lines(case).find(|(_, line)| matches!(line, TensorRtLlm::PoolTooSmall))
    {
        let finding = Finding::new(
            "pool-too-small",
            Cause::PoolTooSmall,
            Phase::Sizing,
            "one sequence does not fit the pool",
        )
        .sure(Confidence::Certain, 88)
        .seen(event)
        .fraction(Direction::Raise)
        .set(Lever::new("max_seq_len", Move::Lower))
        .set(Lever::new(FRACTION, Move::Raise));
        return vec![not_modelled(sizes(case, finding), SERVER)];
    }
    let budget = lines(case).find_map(|(event, line)| match line {
        TensorRtLlm::KvBudget { total: Some(total), available: Some(available), .. } => {
            Some((event, *total, *available))
        }
        _ => None,
    });
    if let Some((event, total, available)) = budget
        && available.bytes < total.bytes / 50
    {
        return vec![starved(case, event, total, available)];
    }
    greedy(case).into_iter().collect()
}

/// Engine and buffers ate the device before the pool.
fn starved(case: &Case, event: &Event, total: Amount, available: Amount) -> Finding {
    let finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Sizing,
        format!("{available} of {total} were left for the pool"),
    )
    .also(&[Cause::PoolTooSmall, Cause::ModelTooBig])
    .sure(Confidence::Likely, 85)
    .because(
        "Engine, contexts and runtime buffers, made for the largest batch and beam, took the rest.",
    )
    .sum(format!("{total} − {available} = {} before the pool", total - available))
    .seen(event)
    .set(Lever::new("max_batch_size", Move::Lower).gives("runtime buffers in proportion"))
    .set(Lever::new("max_beam_width", Move::Lower).gives("decoder buffers in proportion"))
    .useless(FRACTION, None, "there is nothing left to take a fraction of");
    not_modelled(sizes(case, finding), SERVER)
}

/// By design the pool takes the fraction of all that is free; a second program finds nothing.
fn greedy(case: &Case) -> Option<Finding> {
    let (event, bytes) = lines(case).find_map(|(event, line)| match line {
        TensorRtLlm::KvAllocated { bytes, .. } => Some((event, *bytes)),
        _ => None,
    })?;
    let engine = lines(case).rev().find_map(|(event, line)| match line {
        TensorRtLlm::EngineMemory { gpu: Some(gpu) } => Some((event, *gpu)),
        _ => None,
    });
    // Only a pool that dwarfs the engine is worth a word.
    let (line, engine) = engine
        .filter(|(_, engine)| bytes.bytes > 4 * engine.bytes && bytes.bytes > 4 * GIB as i64)?;
    let tokens = lines(case).find_map(|(event, line)| match line {
        TensorRtLlm::KvTokens { tokens } => Some((event, *tokens)),
        _ => None,
    });
    let mut finding = Finding::new(
        "pool-oversized",
        Cause::PoolOversized,
        Phase::None,
        format!("the pool took {bytes}, the engine holds {engine}"),
    )
    .level(Level::Note)
    .sure(Confidence::Likely, 55)
    .because("By design: the pool is a fraction of what is free once the engine is loaded. Other programs find the device full.")
    .seen(line)
    .seen(event)
    .fraction(Direction::Lower)
    .set(Lever::new(FRACTION, Move::Lower).gives("the pool in proportion"))
    .set(Lever::new("max_tokens", Move::Set).gives("a pool of that many tokens; the smaller of the two holds"));
    if let Some((line, tokens)) = tokens.filter(|(_, tokens)| *tokens > 0) {
        let each = bytes.bytes / i64::try_from(tokens).unwrap_or(i64::MAX);
        finding = finding.seen(line).sum(format!("{bytes} ÷ {tokens} tokens = {each} B a token"));
    }
    Some(not_modelled(finding, SERVER))
}

/// The sizes that the log names.
fn sizes(case: &Case, mut finding: Finding) -> Finding {
    for (event, line) in lines(case).take(32) {
        let sum = match line {
            TensorRtLlm::Buffers { what, bytes } => format!("{what}: {bytes}"),
            TensorRtLlm::EngineMemory { gpu: Some(gpu) } => format!("engine and contexts: {gpu}"),
            TensorRtLlm::KvAllocated { bytes, tokens } => match tokens {
                Some(tokens) => format!("pool: {bytes} for {tokens} tokens"),
                None => format!("pool: {bytes}"),
            },
            _ => continue,
        };
        finding = finding.sum(sum).seen(event);
    }
    finding
}
