//! A server that has not crashed, as far as the log goes: what it has left, what it needs, what was proven.

mod falling;
mod healthy;
mod idle;
mod margin;
mod one_request;
mod proven;

use plimsoll_ingest::log::{Activity, Server};

use crate::{Case, Finding, study::Study};

/// What is said of a living server besides that nothing is wrong.
pub(super) fn findings(study: &Study<'_>) -> Vec<Finding> {
    if !lives(study.case) {
        return Vec::new();
    }
    let rules = [margin::find, one_request::find, falling::find, proven::find, idle::find];
    rules.iter().filter_map(|find| find(study)).collect()
}

/// Nothing is wrong; asked for when no rule of any family says otherwise.
pub(super) fn healthy(study: &Study<'_>) -> Option<Finding> {
    lives(study.case).then(|| healthy::find(study)).flatten()
}

/// A server whose rules are known, and of which no line says that it died.
fn lives(case: &Case) -> bool {
    matches!(case.server(), Some(Server::Sglang | Server::Vllm)) && !case.died()
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
