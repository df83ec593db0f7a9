//! The load under which a server died: what its last lines show, else the smallest mix that would kill it.

use super::{
    death::Shortage,
    draft::{Draft, Entry},
    solve,
    trial::Trial,
};
use crate::logged::Logged;
use crate::{Case, Phase};
use plimsoll_ingest::log::{Activity, Amount};
use plimsoll_replay::{
    plan::{self, KilledBy, MixKind},
    scenario::Ending,
};
use std::path::Path;

/// A load, with where it is from.
#[derive(Clone, PartialEq, Debug)]
struct Mix {
    groups: Vec<Vec<Entry>>,
}

/// Loads that are tried at most, and steps along the buffers of a pass.
const STEPS: usize = 24;

/// Tokens of an answer that the log does not show.
const ANSWER: i64 = 16;

/// Puts in the load that makes the server die in the phase of the log, and for a log without the figures of
/// the start what must have been left outside the pool. Without one the draft stays without a load.
pub(super) fn put(
    draft: &mut Draft,
    case: &Case,
    logged: &Logged,
    death: (Phase, Shortage),
    base: &Path,
) -> Result<(), String> {
    let (phase, shortage) = death;
    let open = logged.after_graphs.is_empty();
    let mut nearest: Option<Draft> = None;
    let longest = longest_prompt(draft, base)?;
    for mut mix in mixes(draft, case, logged, phase, base)? {
        mix.shorten(longest);
        let mut tried = Draft { workload: mix.groups, ..draft.clone() };
        if open && !leave_what_died(&mut tried, shortage, base)? {
            continue;
        }
        let trial = Trial::of(&tried, base)?;
        if !dies_in(&trial, phase) {
            continue;
        }
        if asked(&trial, shortage.requested) {
            *draft = tried;
            return Ok(());
        }
        nearest.get_or_insert(tried);
    }
    if let Some(nearest) = nearest {
        *draft = nearest;
    }
    Ok(())
}

/// Whether the server dies in a pass of this phase; of an unknown one, in any pass.
fn dies_in(trial: &Trial, phase: Phase) -> bool {
    let died = trial.word("died_in");
    let passes = [Phase::Prefill.name(), Phase::Decode.name()];
    trial.ending() == Ending::OutOfMemory
        && died.is_some_and(|died| match phase {
            Phase::Unknown => passes.contains(&died.as_str()),
            phase => died == phase.name(),
        })
}

/// The longest prompt that the server takes with its answer.
fn longest_prompt(draft: &Draft, base: &Path) -> Result<i64, String> {
    let ran = Trial::start(draft, base)?;
    let context = super::trial::count(&ran, "context_len");
    let context = context.or_else(|| super::trial::count(&ran, "max_model_len"));
    let room = context.map_or(i64::MAX, |context| i64::try_from(context).unwrap_or(i64::MAX));
    Ok(room.saturating_sub(ANSWER + 8).max(1))
}

impl Mix {
    /// Prompts over the context are refused and prove nothing.
    fn shorten(&mut self, longest: i64) {
        for entry in self.groups.iter_mut().flatten().filter(|entry| entry.key == "prompt_tokens") {
            if entry.value.parse::<i64>().is_ok_and(|tokens| tokens > longest) {
                entry.value = longest.to_string();
                entry.note = "as long as the context allows".to_owned();
            }
        }
    }
}

/// Whether the refused block is the one of the log, to its digits.
pub(super) fn asked(trial: &Trial, requested: Option<Amount>) -> bool {
    let blocks = [trial.bytes("died_segment"), trial.bytes("died_requested")];
    let same = |wanted: Amount| {
        blocks.iter().flatten().any(|b| (wanted.least()..=wanted.most()).contains(b))
    };
    requested.is_none_or(same)
}

/// Without a reading at the end of the start: what was left then, so that the block of the log is refused
/// with just the memory free that the log prints. Walks along the buffers of the pass: as much is left as
/// the refused one needs, until it is the one.
fn leave_what_died(draft: &mut Draft, shortage: Shortage, base: &Path) -> Result<bool, String> {
    let (Some(requested), Some(free)) = (shortage.requested, shortage.free) else {
        return Ok(true);
    };
    let note = format!(
        "solved: {} are refused with {} free, as the log prints",
        solve::shown(requested),
        solve::shown(free)
    );
    let mut left = free.bytes;
    for _ in 0..STEPS {
        let Some(most) = solve::leave(draft, left, &note, base)? else { return Ok(false) };
        let trial = Trial::of(draft, base)?;
        let (Some(block), Some(there)) = (trial.bytes("died_segment"), trial.bytes("died_free"))
        else {
            return Ok(false);
        };
        let more = match asked(&trial, Some(requested)) {
            true if (there - free.bytes).abs() <= free.half.max(1024) => return Ok(true),
            true => free.bytes - there,
            false => (block - there).max(0) + 1024,
        };
        left = left.saturating_add(more);
        if left > most {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Loads to try, those that the log shows first.
fn mixes(
    draft: &Draft,
    case: &Case,
    logged: &Logged,
    phase: Phase,
    base: &Path,
) -> Result<Vec<Mix>, String> {
    let activity = busiest(case);
    let mut mixes = Vec::new();
    if let Some(activity) = activity {
        let around = running(activity);
        match phase {
            Phase::Decode => mixes.extend(decode(activity)),
            _ => {
                let seen = [
                    (activity.prefill_tokens.last, activity.prefill_requests.last, "last"),
                    (activity.prefill_tokens.most, 1.0, "largest"),
                ];
                for (tokens, requests, which) in seen {
                    mixes.extend(prefill(tokens, requests, which, around.as_ref()));
                }
                if phase == Phase::Unknown {
                    mixes.extend(decode(activity));
                }
            }
        }
    }
    if let (Some(chunk), true) = (logged.chunk.filter(|c| c.value > 0), phase != Phase::Decode) {
        let note = format!("one full chunk; its size is at {}", chunk.place());
        mixes.push(Mix { groups: vec![group("chunk", 1, chunk.value, &note)] });
    }
    let scenario = Trial::of(&Draft { workload: Vec::new(), ..draft.clone() }, base)?;
    let plan = plan::plan(&scenario.0.assembled.case).map_err(|e| e.to_string())?;
    if phase != Phase::Decode
        && let Some(tokens) = super::trial::count(&plan.ran, "chunked_prefill_size")
        && let Ok(tokens) = i64::try_from(tokens)
    {
        let note = "one full chunk of this launch; the log does not show the load";
        mixes.push(Mix { groups: vec![group("chunk", 1, tokens, note)] });
    }
    let kills = plan.kills.plain.iter().chain(&plan.kills.on_demand);
    mixes.extend(kills.map(smallest));
    Ok(mixes)
}

/// The lines of the last start that say most.
fn busiest(case: &Case) -> Option<&Activity> {
    let last = case.log.activity.keys().map(|(start, _)| *start).max()?;
    let of_last = case.log.activity.iter().filter(|((start, _), _)| *start == last);
    of_last.map(|(_, activity)| activity).max_by_key(|a| (a.prefill_tokens.count, a.running.count))
}

fn group(name: &str, requests: i64, prompt: i64, note: &str) -> Vec<Entry> {
    vec![
        Entry::new("name", name, note),
        Entry::new("requests", requests.max(1), ""),
        Entry::new("at", "0 s", ""),
        Entry::new("prompt_tokens", prompt.max(1), ""),
        Entry::new("output_tokens", ANSWER, "not in the log; chosen"),
    ]
}

/// The requests that ran, where their number and the slots that they held are known.
fn running(activity: &Activity) -> Option<Vec<Entry>> {
    let (running, held) = (activity.running, activity.held_tokens);
    if running.count == 0 || held.count == 0 || running.last < 1.0 {
        return None;
    }
    let each = (held.last / running.last).floor() as i64;
    let note = format!("ran last: {} requests holding {} tokens", running.last, held.last);
    let mut group = group("running", running.last as i64, each, &note);
    group.pop();
    group.push(Entry::new("output_tokens", 512, "not in the log; chosen, so that they still run"));
    Some(group)
}

fn prefill(tokens: f64, requests: f64, which: &str, around: Option<&Vec<Entry>>) -> Option<Mix> {
    if tokens < 1.0 {
        return None;
    }
    let requests = requests.max(1.0);
    let each = (tokens / requests).ceil() as i64;
    let note = format!("the {which} prefill batch of the log: {tokens} new tokens");
    let mut new = group("prefill", requests as i64, each, &note);
    if around.is_some()
        && let Some(at) = new.iter_mut().find(|entry| entry.key == "at")
    {
        *at = Entry::new("at", "1 s", "");
    }
    Some(Mix { groups: around.cloned().into_iter().chain([new]).collect() })
}

fn decode(activity: &Activity) -> Option<Mix> {
    let (running, held) = (activity.running, activity.held_tokens);
    if running.most < 1.0 {
        return None;
    }
    let each = if held.count > 0 { (held.most / running.most) as i64 } else { 128 };
    let note = format!("as many as ran, {}", running.most);
    let mut group = group("decode", running.most as i64, each, &note);
    group.push(Entry::new("sampling", "{ temperature: 1.0 }", "not in the log; chosen"));
    Some(Mix { groups: vec![group] })
}

/// The mix that the plan names.
fn smallest(killed: &KilledBy) -> Mix {
    let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let note = format!("the smallest load that kills this start: {}", killed.words());
    let (requests, tokens) = (whole(killed.requests), whole(killed.tokens));
    let groups = match killed.kind {
        MixKind::OnePrompt => {
            vec![group(
                "prompt",
                1,
                whole(killed.tokens.saturating_add(killed.prefix_tokens)),
                &note,
            )]
        }
        MixKind::ShortPrompts => vec![group("short", requests, tokens / requests.max(1), &note)],
        MixKind::CachedPrefix => {
            let mut group = group("turn", 2, tokens, &note);
            let prefix = format!("{{ tokens: {} }}", killed.prefix_tokens);
            group.retain(|entry| entry.key != "at");
            group.push(Entry::new("concurrency", 1, ""));
            group.push(Entry::new("shared_prefix", prefix, ""));
            vec![group]
        }
        MixKind::Sampling => {
            let mut group = group("sampling", requests, 16, &note);
            group.push(Entry::new("sampling", "{ temperature: 1.0 }", ""));
            vec![group]
        }
        MixKind::InputLogprobs => {
            let mut group = group("logprobs", 1, tokens, &note);
            group.push(Entry::new("sampling", "{ input_logprobs: 0 }", ""));
            vec![group]
        }
    };
    Mix { groups }
}
