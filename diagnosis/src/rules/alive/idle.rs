//! A pool that the load never fills, on a machine that others share.

use plimsoll_core::device::MemoryKind;
use plimsoll_core::units::group_thousands;

use super::activities;
use crate::{
    Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase,
    reconstruct::RankLedger, study::Study,
};

/// Lines of the scheduler from which its peak says something about the load.
const LINES: u64 = 100;

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let case = study.case;
    let rank = study.rank().filter(|rank| shared(case, rank))?;
    let usage = activities(case).map(|activity| activity.usage);
    let usage: Vec<_> = usage.filter(|usage| usage.count >= LINES).collect();
    let peak = usage.iter().map(|usage| usage.most).reduce(f64::max)?;
    let tokens = rank.pool.and_then(|pool| pool.tokens)?;
    // Twice the peak is room enough; a pool of less than that is not idle.
    if !(0.0..0.25).contains(&peak) {
        return None;
    }
    let enough = (tokens as f64 * peak * 2.0).ceil() as u64;
    let headline = format!(
        "the pool was never more than {:.0} % full, and others share this memory: {} tokens would be twice \
         the peak",
        peak * 100.0,
        group_thousands(enough)
    );
    let finding = Finding::new("pool-oversized", Cause::PoolOversized, Phase::None, headline)
        .level(Level::Note)
        .sure(Confidence::Likely, 30)
        .fraction(Direction::Lower)
        .int("pool_tokens", i64::try_from(tokens).unwrap_or(i64::MAX));
    let lever = rank.what_if.and_then(|what_if| {
        let fraction = what_if.fraction_for_tokens(enough)?;
        let gives = what_if.at_fraction(fraction).words();
        (fraction < what_if.fraction)
            .then(|| Lever::new(what_if.flag, Move::Lower).to(fraction).gives(gives))
    });
    Some(match lever {
        Some(lever) => finding.set(lever),
        None => finding,
    })
}

/// One memory for host and device, or a device of which others held a tenth before loading.
fn shared(case: &Case, rank: &RankLedger) -> bool {
    let unified = case.device().is_some_and(|device| device.memory == MemoryKind::Integrated);
    let held = case
        .capacity()
        .zip(rank.before)
        .is_some_and(|(capacity, before)| (capacity - before).least() > capacity.bytes / 10);
    unified || held
}
