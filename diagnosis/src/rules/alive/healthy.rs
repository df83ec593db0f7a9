//! Nothing wrong was found: what is left, what the pool holds, what the log does not say.

use plimsoll_core::units::group_thousands;

use super::activities;
use crate::{
    Case, Cause, Confidence, Finding, Level, Phase,
    reconstruct::{RankLedger, Stage},
    report::missing,
    study::Study,
};

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let (case, rank) = (study.case, study.rank());
    let missing = missing(case, rank);
    let complete = missing.is_empty();
    let headline = match rank {
        Some(rank) => headline(case, rank, &missing),
        None if case.log.server.is_none() => return None,
        None => stops(&missing),
    };
    let (confidence, weight) = match rank {
        Some(rank) if complete && rank.left.is_some() => (Confidence::Likely, 40),
        Some(rank) if rank.left.is_some_and(|left| left.stage >= Stage::AfterLoad) => {
            (Confidence::Possible, 40)
        }
        _ => (Confidence::Possible, 20),
    };
    let mut finding = Finding::new("healthy", Cause::Healthy, Phase::None, headline)
        .level(Level::Note)
        .sure(confidence, weight);
    if !complete {
        finding = finding.because(format!("The log has no {}.", missing.join(", no ")));
    }
    let place = rank.and_then(|rank| rank.left).and_then(|left| left.place);
    let line = place.and_then(|place| case.at(place)).or_else(|| case.events().next_back());
    if let Some(event) = line {
        finding = finding.seen(event);
    }
    Some(numbers(finding, rank))
}

fn numbers(finding: Finding, rank: Option<&RankLedger>) -> Finding {
    let Some(rank) = rank else { return finding };
    let mut finding = finding;
    if let Some(left) = rank.left {
        finding = finding.int("free_bytes", left.bytes.bytes);
    }
    if let Some(tokens) = rank.pool.and_then(|pool| pool.tokens) {
        finding = finding.int("pool_tokens", i64::try_from(tokens).unwrap_or(i64::MAX));
    }
    match rank.fraction {
        Some(fraction) => finding.float("fraction", fraction.value),
        None => finding,
    }
}

fn headline(case: &Case, rank: &RankLedger, missing: &[String]) -> String {
    let tokens = rank.pool.and_then(|pool| pool.tokens);
    let pool = tokens.map(|tokens| format!("a pool of {} tokens", group_thousands(tokens)));
    let left = rank.left.map(|left| format!("{} left {}", left.bytes, left.stage.words()));
    let used = used(case).map(|used| format!("at most {used:.0} % of it used"));
    let parts: Vec<String> = [left, pool, used].into_iter().flatten().collect();
    if parts.is_empty() {
        return stops(missing);
    }
    let facts = parts.join(", ");
    if missing.is_empty() {
        format!("nothing wrong: {facts}")
    } else {
        format!("nothing wrong found as far as the log goes: {facts}")
    }
}

fn stops(missing: &[String]) -> String {
    match missing.first() {
        Some(first) => format!("nothing wrong found, but the log has no {first}"),
        None => "nothing wrong found".to_owned(),
    }
}

/// Largest share of the pool in use, percent.
fn used(case: &Case) -> Option<f64> {
    let usage = activities(case).map(|activity| activity.usage);
    usage.filter(|usage| usage.count > 0).map(|usage| usage.most * 100.0).reduce(f64::max)
}
