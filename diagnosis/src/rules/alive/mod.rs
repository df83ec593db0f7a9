//! A server that has not crashed, as far as the log goes: what it has left, what it needs, what was proven.

mod context;
mod falling;
mod healthy;
mod idle;
mod margin;
mod proven;

use super::Rule;
use crate::{
    Case,
    reconstruct::{RankLedger, ledgers},
};
use plimsoll_ingest::log::{Activity, Server};

/// The rules of this family.
pub(super) const RULES: &[Rule] =
    &[margin::rule, falling::rule, context::rule, healthy::rule, proven::rule, idle::rule];

/// Whether there is something to say about a living server: one whose rules are known, and no line says
/// that it died.
fn lives(case: &Case) -> bool {
    matches!(case.server(), Some(Server::Sglang | Server::Vllm)) && !case.died()
}

/// The rank that decides.
fn deciding(case: &Case) -> Option<RankLedger> {
    ledgers(case).into_iter().next()
}

/// Activity of the last start, of all ranks.
pub(crate) fn activities(case: &Case) -> impl Iterator<Item = &Activity> {
    let last = case.log.activity.keys().map(|(start, _)| *start).max();
    let activities = case.log.activity.iter();
    activities.filter(move |((start, _), _)| Some(*start) == last).map(|(_, activity)| activity)
}

/// The largest prefill pass that was served, new tokens.
pub(crate) fn largest_prefill(case: &Case) -> Option<u64> {
    let most = activities(case).map(|activity| activity.prefill_tokens);
    most.filter(|spread| spread.count > 0).map(|spread| spread.most as u64).max()
}
