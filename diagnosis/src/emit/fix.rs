//! The same server with the one change that keeps it alive under the same load.

use super::{
    draft::{Draft, Entry, LaunchText, quoted},
    trial::Trial,
};
use crate::{Finding, Move};
use plimsoll_core::{
    plan::Advice,
    pyfloat,
    units::{Bytes, group_thousands},
};
use plimsoll_ingest::launch::text_with_flag;
use plimsoll_replay::{outcome::Figure, plan, run::ScenarioRun, scenario::Ending, start::Policy};
use std::{collections::VecDeque, path::Path};

/// One setting to try.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Change {
    /// The flag with its dashes, or the name of a variable.
    pub flag: String,
    /// The value; `None` for a switch.
    pub value: Option<String>,
    /// Who says so.
    pub from: &'static str,
}

impl Change {
    fn words(&self) -> String {
        match &self.value {
            Some(value) => format!("{} {value}", self.flag),
            None => self.flag.clone(),
        }
    }

    /// The draft with this change; `None` where it has no place in the launch.
    fn applied(&self, draft: &Draft) -> Option<Draft> {
        let mut changed = draft.clone();
        let value = self.value.as_deref();
        let Some(name) = self.flag.strip_prefix("--") else {
            let variable = (self.flag.clone(), value?.to_owned());
            changed.environment.retain(|(name, _)| *name != variable.0);
            changed.environment.push(variable);
            return Some(changed);
        };
        if let Some(entry) = changed.flags.iter_mut().find(|entry| entry.key == name) {
            *entry = Entry::new(name, value?, "");
            return Some(changed);
        }
        match &mut changed.launch {
            LaunchText::Command(text) => *text = text_with_flag(text, &self.flag, value)?,
            LaunchText::Flags(_, flags) => {
                let text = match value {
                    None => "true".to_owned(),
                    Some(value) if value.parse::<f64>().is_ok() => value.to_owned(),
                    Some(value) => quoted(value),
                };
                flags.retain(|(flag, _)| flag != name);
                flags.push((name.to_owned(), text));
            }
        }
        Some(changed)
    }
}

/// Changes in the order of trying: the first finding's levers, what the plan of this start advises, what the
/// engine's refusal itself names.
fn changes(finding: Option<&Finding>, crash: &ScenarioRun) -> Vec<Change> {
    let levers = finding.into_iter().flat_map(|finding| &finding.help);
    let levers = levers.filter_map(|lever| match (&lever.value, lever.change) {
        (Some(value), Move::Raise | Move::Lower | Move::Set) => {
            Some(change(&lever.flag, Some(value), "the first finding"))
        }
        (None, Move::Set) => Some(change(&lever.flag, None, "the first finding")),
        _ => None,
    });
    let mut changes: Vec<Change> = levers.collect();
    if let Ok(plan) = plan::plan(&crash.assembled.case) {
        if let Some(Advice::Lower { to } | Advice::Raise { to }) = plan.advice {
            changes.push(change(plan.flag, Some(&pyfloat::repr(to)), "the plan of this start"));
        }
        if let Some(smaller) = &plan.smaller_chunk {
            let tokens = smaller.tokens.to_string();
            changes.push(change("--chunked-prefill-size", Some(&tokens), "the plan of this start"));
        }
    }
    changes.extend(smaller_pool(crash));
    if let Some(refused) = super::trial::refused(&crash.ran) {
        for remedy in &refused.remedies {
            let last = remedy.value.as_deref().and_then(|value| value.split(' ').next_back());
            if let Some(value) = last.filter(|value| value.parse::<f64>().is_ok()) {
                changes.push(change(&remedy.flag, Some(value), "the engine's refusal"));
            }
        }
    }
    changes
}

/// On one memory for all no window of the fraction is known: what others take decides. A pool of twice what
/// the load held leaves them the rest.
fn smaller_pool(crash: &ScenarioRun) -> Option<Change> {
    let (Policy::Mlx(_), Some(Figure::Count(peak))) =
        (&crash.ran.policy, crash.outcome.get("peak_used_tokens"))
    else {
        return None;
    };
    let tokens = u64::try_from(peak).ok()?.saturating_mul(2).next_multiple_of(1024);
    let from = "twice what the load held";
    Some(change("--max-total-tokens", Some(&tokens.to_string()), from))
}

fn change(flag: &str, value: Option<&str>, from: &'static str) -> Change {
    Change { flag: flag.to_owned(), value: value.map(str::to_owned), from }
}

/// A fix that was found, run, and what it gives.
pub(super) struct Fixed {
    pub draft: Draft,
    /// One sentence.
    pub gives: String,
}

/// Runs that are spent on the search.
const RUNS: usize = 16;
/// Changes that are made together at most.
const TOGETHER: usize = 3;

/// The fewest changes under which the server lives with the same load: each alone, then, where one only leads
/// to the next refusal, with what that one asks for.
///
/// # Errors
///
/// What was tried, where none does.
pub(super) fn find(
    crash: &Draft,
    finding: Option<&Finding>,
    run: &ScenarioRun,
    base: &Path,
) -> Result<Fixed, String> {
    let mut tried: Vec<String> = Vec::new();
    let mut open: VecDeque<(Draft, Vec<Change>)> = VecDeque::new();
    let start = Draft { expect: Vec::new(), ..crash.clone() };
    for change in changes(finding, run) {
        open.push_back((start.clone(), vec![change]));
    }
    while let Some((from, made)) = open.pop_front() {
        let words = words(&made);
        if tried.len() >= RUNS || tried.contains(&words) {
            continue;
        }
        let Some(draft) = made.last().and_then(|change| change.applied(&from)) else { continue };
        tried.push(words);
        let Ok(trial) = Trial::of(&draft, base) else { continue };
        if trial.lived() {
            return Ok(finish(draft, &made, &trial));
        }
        if made.len() < TOGETHER {
            let next = changes(None, &trial.0).into_iter();
            let next = next.filter(|change| !made.contains(change));
            let next = next.map(|change| (draft.clone(), [made.clone(), vec![change]].concat()));
            open.extend(next);
        }
    }
    Err(match tried.is_empty() {
        true => {
            "neither the first finding nor the plan of this start names a value to set".to_owned()
        }
        false => format!("the server still ends with {}", tried.join(", or with ")),
    })
}

fn words(changes: &[Change]) -> String {
    let words: Vec<String> = changes.iter().map(Change::words).collect();
    words.join(" and ")
}

fn gives(made: &[Change], trial: &Trial) -> String {
    let pool = pool(trial).map(|(_, n)| format!("a pool of {} tokens", group_thousands(n)));
    let left = trial.bytes("free_after_graphs");
    let left = left.map(|left| format!("{} left", Bytes(left.unsigned_abs())));
    let parts: Vec<String> = pool.into_iter().chain(left).collect();
    let end = match trial.ending() {
        Ending::Finished => "every request is served",
        _ => "the server starts",
    };
    let with =
        if parts.is_empty() { String::new() } else { format!(", with {}", parts.join(" and ")) };
    let from = made.first().map_or("", |change| change.from);
    format!("{} (from {from}): {end}{with}", words(made))
}

fn finish(mut draft: Draft, made: &[Change], trial: &Trial) -> Fixed {
    let gives = gives(made, trial);
    let (what, change) = (
        if draft.workload.is_empty() { "start" } else { "server and load" },
        if made.len() == 1 { "one change" } else { "these changes" },
    );
    draft.name = "from-log/fixed".to_owned();
    draft.why = format!("The same {what} with {change}, a prediction: {gives}.");
    draft.expect = vec![Entry::new("outcome", trial.ending().as_str(), words(made))];
    if let Some((name, tokens)) = pool(trial) {
        draft.expect.push(Entry::new(name, tokens, "computed"));
    }
    Fixed { draft, gives }
}

fn pool(trial: &Trial) -> Option<(&'static str, u64)> {
    let names = ["max_total_num_tokens", "kv_cache_tokens"];
    names.into_iter().find_map(|name| Some((name, u64::try_from(trial.count(name)?).ok()?)))
}
