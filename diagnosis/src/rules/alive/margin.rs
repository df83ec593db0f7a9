//! A start that ends with less free than the largest prefill needs: nothing has crashed yet.

use plimsoll_core::units::{Bytes, KIB, group_thousands};
use plimsoll_ingest::log::Amount;
use plimsoll_replay::plan::{Plan, PrefillTrial};

use super::largest_prefill;
use crate::{
    Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase,
    planned::{DeviceKnown, Planned},
    reconstruct::{RankLedger, Stage, WhatIf},
    study::Study,
};

/// Bytes that a prefill pass takes for each new token of a chunk, at the least: the smallest figure that public
/// reports of large models show for one buffer alone (6.86 GiB for 131,072 tokens).
const LEAST_PER_TOKEN: u64 = 56 * KIB;

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let rank = study.rank()?;
    let last = rank.left.filter(|left| left.stage >= Stage::AfterGraphs)?;
    let left = last.bytes;
    if served_a_chunk(study.case, rank) {
        // What was served outranks what is estimated.
        return None;
    }
    let finding = match study.plans.first() {
        Some(first) => judged(rank, left, &study.plans, first),
        None => unknown_model(rank, left),
    }?;
    Some(match last.place.and_then(|place| study.case.at(place)) {
        Some(event) => finding.seen(event),
        None => finding,
    })
}

/// Whether a prefill pass of a whole chunk has passed.
fn served_a_chunk(case: &Case, rank: &RankLedger) -> bool {
    let chunk = rank.limits.chunk.filter(|chunk| *chunk > 0);
    chunk.zip(largest_prefill(case)).is_some_and(|(chunk, largest)| largest >= chunk)
}

/// Whether prompts alone kill this start, in the plan's own play of the allocator.
fn dies(plan: &Plan, left: Amount) -> bool {
    let plays = matches!(plan.prefill, Some(PrefillTrial::Dies { .. }))
        || plan.kills.plain.as_ref().is_some_and(|kill| kill.is_prompts());
    plays || plan.need.as_ref().is_some_and(|(_, need)| need.value.low.0 as i64 > left.most())
}

fn judged(rank: &RankLedger, left: Amount, plans: &[Planned], first: &Planned) -> Option<Finding> {
    if !dies(&first.plan, left) {
        return None;
    }
    // An error only when every device that it may be says so.
    let sure = plans.iter().all(|planned| dies(&planned.plan, left));
    let level = if sure { Level::Error } else { Level::Warning };
    let (what, need) = need(&first.plan)?;
    let kill = first.plan.kills.plain.as_ref().filter(|kill| kill.is_prompts());
    let enough =
        kill.map_or_else(String::new, |kill| format!("; {} {}", kill.words(), kill.verb()));
    let headline = format!("started with {left} left, and {what} needs {need}{enough}");
    let confidence = match first.known {
        DeviceKnown::Named => Confidence::Certain,
        DeviceKnown::Fits => Confidence::Likely,
    };
    let mut finding = finding(headline, level, confidence, left)
        .int("need_bytes", i64::try_from(need.0).unwrap_or(i64::MAX))
        .because(
            "Free memory after graph capture is all that a prefill has; the pool does not give any of \
             it back.",
        );
    if first.known == DeviceKnown::Fits {
        let names: Vec<&str> = plans.iter().map(|planned| &*planned.device.name).collect();
        let names = names.join(", or ");
        finding = finding.sum(format!(
            "no line names the device; this much memory have: {names}; figures of the first"
        ));
    }
    finding = finding.sum(format!("{left} left − {need} for {what} < 0"));
    Some(levers(finding, rank, &first.plan, need))
}

/// The heaviest known pass and what it needs: by the allocator's play where there is one.
fn need(plan: &Plan) -> Option<(String, Bytes)> {
    let (what, figure) = plan.need.as_ref()?;
    Some((what.clone(), plan.allocator_need.unwrap_or_default().max(figure.value.mid)))
}

fn levers(finding: Finding, rank: &RankLedger, plan: &Plan, need: Bytes) -> Finding {
    let wanted = i64::try_from(need.0).unwrap_or(i64::MAX);
    let mut finding = finding;
    if let Some(lever) = rank.what_if.as_ref().and_then(|what_if| lower(what_if, wanted, plan)) {
        finding = finding.set(lever);
    }
    if let Some(smaller) = &plan.smaller_chunk {
        let limit = smaller.prompt_limit.map_or_else(String::new, |tokens| {
            format!(", for prompts of up to {} tokens", group_thousands(tokens))
        });
        let needs = format!("one chunk then needs {}, at the same fraction{limit}", smaller.need);
        let chunk = Lever::new("--chunked-prefill-size", Move::Lower);
        let chunk = chunk.to(smaller.tokens).gives(needs);
        finding = finding.set(chunk);
    }
    let Some(what_if) = &rank.what_if else { return finding };
    if let (Some((floor, _)), Some((_, ceiling))) = (what_if.floor(), what_if.ceiling(wanted)) {
        finding = finding.window(floor, ceiling);
    }
    finding.useless(
        what_if.flag,
        Some(Move::Raise),
        "a larger pool takes from what a prefill needs",
    )
}

/// One or two steps below the limit: what the plan advises, else one step below the value that holds the need.
fn lower(what_if: &WhatIf, wanted: i64, plan: &Plan) -> Option<Lever> {
    let advised = plan.advised.map(|at| at.fraction).filter(|f| *f < what_if.fraction);
    let limit = || what_if.fraction_for_free(wanted.saturating_add(what_if.step_bytes().most()));
    let fraction = advised.or_else(limit)?;
    let gives = what_if.at_fraction(fraction).words();
    Some(Lever::new(what_if.flag, Move::Lower).to(fraction).gives(gives))
}

/// Without the model only a bound is known: at most a warning.
fn unknown_model(rank: &RankLedger, left: Amount) -> Option<Finding> {
    let chunk = rank.limits.chunk.filter(|chunk| *chunk > 0)?;
    let least = Bytes(chunk.saturating_mul(LEAST_PER_TOKEN));
    if left.most() >= i64::try_from(least.0).ok()? {
        return None;
    }
    let chunk = group_thousands(chunk);
    let headline = format!(
        "started with {left} left; a prefill chunk of {chunk} tokens needs {least} even in a small model"
    );
    let per_token = "56 KiB a token, the smallest that public reports show";
    let finding = finding(headline, Level::Warning, Confidence::Possible, left)
        .sum(format!("{chunk} tokens × {per_token} = {least}"))
        .because("The model is not in the catalog, so its own need is not known.");
    let lever = rank.what_if.as_ref().and_then(|what_if| {
        let wanted = i64::try_from(least.0).ok()?.saturating_add(what_if.step_bytes().most());
        let fraction = what_if.fraction_for_free(wanted)?;
        let gives = what_if.at_fraction(fraction).words();
        Some(Lever::new(what_if.flag, Move::Lower).to(fraction).gives(gives))
    });
    Some(match lever {
        Some(lever) => finding.set(lever),
        None => finding,
    })
}

fn finding(headline: String, level: Level, confidence: Confidence, left: Amount) -> Finding {
    Finding::new("margin-too-small", Cause::ActivationsOutsidePool, Phase::Prefill, headline)
        .level(level)
        .sure(confidence, 60)
        .fraction(Direction::Lower)
        .int("free_after_graphs_bytes", left.bytes)
}
