//! LMDeploy: the pool is a share of free memory (`cache_max_entry_count`).

use plimsoll_ingest::log::{Event, Kind, Lmdeploy};

use super::not_modelled;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

const SERVER: &str = "LMDeploy";
const SHARE: &str = "--cache-max-entry-count";

fn lines(case: &Case) -> impl DoubleEndedIterator<Item = (&Event, &Lmdeploy)> {
    case.events().filter_map(|event| match &event.kind {
        Kind::Lmdeploy(line) => Some((event, line)),
        _ => None,
    })
}

/// Too few blocks, or a session length cut to what the pool holds.
pub(super) fn pool(case: &Case) -> Vec<Finding> {
    let short = lines(case)
        .find(|(_, line)| matches!(line, Lmdeploy::NoBlocks | Lmdeploy::SessionTruncated { .. }));
    let Some((event, line)) = short else { return Vec::new() };
    let (level, headline) = match line {
        Lmdeploy::SessionTruncated { tokens: Some(tokens) } => (
            Level::Warning,
            format!("session_len was cut to {tokens} tokens, which is what the pool holds"),
        ),
        Lmdeploy::SessionTruncated { .. } => {
            (Level::Warning, "session_len was cut to what the pool holds".to_owned())
        }
        _ => (Level::Error, "the pool has not enough blocks".to_owned()),
    };
    let finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Sizing, headline)
        .level(level)
        .also(&[Cause::WeightsAboveFraction, Cause::ModelTooBig])
        .sure(Confidence::Likely, 80)
        .because("The pool is a share of what is free after the weights.")
        .seen(event)
        .fraction(Direction::Raise)
        .set(Lever::new(SHARE, Move::Raise).gives("a larger share of free memory for the pool"))
        .set(Lever::new("--session-len", Move::Lower))
        .set(Lever::new("--quant-policy", Move::Set).to(8).gives("half the bytes a token"));
    vec![not_modelled(blocks(case, finding), SERVER)]
}

/// The runtime was refused memory: what stays outside the pool is too little.
pub(super) fn out_of_memory(case: &Case) -> Vec<Finding> {
    let Some((event, _)) = lines(case).find(|(_, line)| matches!(line, Lmdeploy::OutOfMemory))
    else {
        return Vec::new();
    };
    let finding = Finding::new(
        "activations-outside-pool",
        Cause::ActivationsOutsidePool,
        Phase::Unknown,
        "the runtime was refused device memory outside the pool",
    )
    .also(&[Cause::GraphsOrWorkspace, Cause::ModelTooBig])
    .sure(Confidence::Likely, 80)
    .because(
        "The pool takes a share of free memory when the engine starts; the default share is large.",
    )
    .seen(event)
    .fraction(Direction::Lower)
    .set(Lever::new(SHARE, Move::Lower).gives("more memory outside the pool"))
    .set(Lever::new("--max-prefill-token-num", Move::Lower).gives("smaller activations"));
    vec![not_modelled(blocks(case, finding), SERVER)]
}

fn blocks(case: &Case, finding: Finding) -> Finding {
    let counted = lines(case).find_map(|(event, line)| match line {
        Lmdeploy::Blocks { blocks: Some(blocks), block_bytes } => {
            Some((event, *blocks, *block_bytes))
        }
        _ => None,
    });
    match counted {
        Some((event, blocks, Some(bytes))) => {
            finding.seen(event).sum(format!("{blocks} blocks of {bytes}"))
        }
        Some((event, blocks, None)) => finding.seen(event).sum(format!("{blocks} blocks")),
        None => finding,
    }
}
