//! Held against used, and what other fractions would give.

use plimsoll_ingest::log::Amount;

use super::{Capacity, Raising};
use crate::{
    reconstruct::Stage,
    rules::alive::{activities, largest_prefill},
    study::Study,
};

/// The usage from which a pool counts as full: the engines retract when the last tokens are gone, and print
/// two decimals.
const FULL: f64 = 0.95;

/// The view of one rank; `None` when the log says nothing of the pool or the load.
pub(super) fn capacity(study: &Study<'_>) -> Option<Capacity> {
    let (case, rank) = (study.case, study.rank()?);
    let peak = |of: fn(&plimsoll_ingest::log::Activity) -> plimsoll_ingest::log::Spread| {
        let spreads = activities(case).map(of).filter(|spread| spread.count > 0);
        spreads.map(|spread| spread.most).reduce(f64::max)
    };
    let retractions = activities(case).map(|activity| activity.retractions).sum();
    let peak_usage = peak(|activity| activity.usage);
    let pool = rank.pool;
    if pool.is_none() && peak_usage.is_none() {
        return None;
    }
    let what_if = rank.what_if;
    let need = need(study);
    let ready = |stage: Stage| stage >= Stage::AfterGraphs && stage < Stage::Death;
    Some(Capacity {
        pool_tokens: pool.and_then(|pool| pool.tokens),
        pool: pool.and_then(|pool| pool.bytes),
        peak_usage,
        peak_tokens: peak(|activity| activity.held_tokens).map(|tokens| tokens as u64),
        peak_running: peak(|activity| activity.running).map(|running| running as u64),
        largest_prefill: largest_prefill(case),
        retractions,
        left: rank.left.filter(|left| ready(left.stage)).map(|left| left.bytes),
        need,
        flag: what_if.map(|what_if| what_if.flag),
        fraction: rank.fraction.map(|fraction| fraction.value),
        floor: what_if.and_then(|what_if| what_if.floor()).map(|(_, high)| high),
        ceiling: what_if.zip(need).and_then(|(w, need)| w.ceiling(need.bytes)).map(|(low, _)| low),
        next: what_if.and_then(|what_if| what_if.next_step()),
        raising: raising(peak_usage, retractions),
    })
}

/// What the heaviest pass of plain requests needs, by the plan of this start.
fn need(study: &Study<'_>) -> Option<Amount> {
    let plan = &study.plans.first()?.plan;
    let (_, figure) = plan.need.as_ref()?;
    let mid = plan.allocator_need.unwrap_or_default().max(figure.value.mid);
    let end = |bytes: plimsoll_core::units::Bytes| i64::try_from(bytes.0).ok();
    Some(Amount { bytes: end(mid)?, half: end(figure.value.high.max(mid).saturating_sub(mid))? })
}

fn raising(usage: Option<f64>, retractions: u64) -> Raising {
    match usage {
        _ if retractions > 0 && usage.is_none_or(|usage| usage >= FULL) => Raising::Allowed,
        None => Raising::Unknown,
        Some(usage) if usage >= FULL => Raising::FullOnly,
        Some(_) => Raising::NoReason,
    }
}
