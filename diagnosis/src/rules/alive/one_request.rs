//! vLLM's pool was sized, and does not hold one request of the full length: the refusal comes next.

use plimsoll_ingest::log::{Server, Vllm};

use crate::{
    Cause, Confidence, Direction, Finding, Lever, Move, Phase, planned::with_pool, study::Study,
};

/// Refusals of a request of the full length, V1 and V0.
const TOO_LONG: [&str; 2] = ["max_model_len_too_long", "pool_below_max_model_len"];

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let case = study.case;
    if case.server() != Some(Server::Vllm) {
        return None;
    }
    let rank = study.rank()?;
    let pool = rank.pool.filter(|pool| pool.tokens.is_none())?;
    let available = pool.bytes.filter(|bytes| bytes.least() > 0)?;
    let plan = with_pool(case, rank, available)?;
    let refusal = plan.refusal().filter(|refusal| TOO_LONG.contains(&refusal.code))?;
    let headline =
        format!("{available} for KV do not hold one request of the full length: vLLM refuses next");
    let length = Lever::new("--max-model-len", Move::Lower);
    let finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Sizing, headline)
        .sure(Confidence::Likely, 40)
        .because(refusal.message.clone())
        .int("available_kv_bytes", available.bytes)
        .fraction(Direction::Raise)
        .set(Lever::new("--gpu-memory-utilization", Move::Raise))
        .set(length);
    let line = case.vllm().rfind(|(_, line)| matches!(line, Vllm::AvailableKv { .. }));
    Some(match line {
        Some((event, _)) => finding.seen(event),
        None => finding,
    })
}
