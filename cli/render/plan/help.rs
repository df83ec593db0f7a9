//! What to pass instead, with what it would give.

use super::summary::USUAL;
use super::{View, wrap};
use crate::{
    commands::plan::changed,
    output::{Output, Tone},
};
use plimsoll_core::{plan::Advice, pyfloat, units::group_thousands};
use plimsoll_ingest::launch::{Engine, render};
use plimsoll_replay::plan::{AtFraction, Level};
use std::fmt::Write as _;

/// Flag and value to pass, as a text between these marks; painted for people, dropped elsewhere.
const MARK: char = '\u{1}';

/// For people: wrapped, and the command on a line of its own so that it can be copied.
pub(super) fn text(view: &View<'_>, output: &Output) -> String {
    let mut out = String::new();
    let help = output.paint(Tone::Change, "help:");
    for line in marked(view) {
        let painted: String = line
            .split(MARK)
            .enumerate()
            .map(
                |(at, part)| {
                    if at % 2 == 1 { output.paint(Tone::Change, part) } else { part.into() }
                },
            )
            .collect();
        let _ = writeln!(out, "{}", wrap(&format!("{help} {painted}"), output.width(), 6));
    }
    if let Some(command) = command(view) {
        let _ = writeln!(out, "\n  {command}\n");
    }
    out
}

/// The same lines without colour.
pub(super) fn lines(view: &View<'_>) -> Vec<String> {
    marked(view).iter().map(|line| line.replace(MARK, "")).collect()
}

/// The command with the advised fraction, or with more ranks.
pub(super) fn command(view: &View<'_>) -> Option<String> {
    if view.command.is_empty() {
        return None;
    }
    let own = view.own_fraction.map(|own| own.fraction);
    let fraction = view.advised().map(|at| at.fraction).or(own);
    let (flag, value) = match (fraction, view.more_ranks) {
        (Some(fraction), _) => (view.plan.flag, pyfloat::repr(fraction)),
        (None, Some(more)) => (ranks_flag(view), more.tp.to_string()),
        (None, None) => return None,
    };
    let changed = changed(view.command, flag, Some(&value))?;
    // One quoted text was given: it is shown as it was, not quoted once more.
    Some(match &changed[..] {
        [text] => text.clone(),
        words => render(words),
    })
}

fn ranks_flag(view: &View<'_>) -> &'static str {
    match view.launch.engine.engine() {
        Engine::Sglang => "--tp-size",
        Engine::Vllm => "--tensor-parallel-size",
    }
}

fn marked(view: &View<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(reserve(view));
    lines.extend(view.advised().map(|at| {
        let change = format!("{} {}", view.plan.flag, pyfloat::repr(at.fraction));
        format!("pass {MARK}{change}{MARK}: {}{}", at_text(at), margin_there(view, at))
    }));
    lines.extend(own_fraction(view));
    lines.extend(keep(view));
    lines.extend(no_fraction(view));
    lines.extend(automatic(view));
    lines.extend(view.plan.smaller_chunk.map(|chunk| {
        let limit = chunk.prompt_limit.map_or_else(String::new, |tokens| {
            format!(", for prompts of up to {} tokens", group_thousands(tokens))
        });
        format!(
            "or {MARK}--chunked-prefill-size {}{MARK}: it needs {} and fits at the same fraction{limit}",
            chunk.tokens, chunk.need
        )
    }));
    lines
}

fn at_text(at: &AtFraction) -> String {
    let tokens = at.tokens.map_or_else(
        || "no pool".to_owned(),
        |t| format!("{t} tokens ({} requests of {})", t.0 / USUAL, group_thousands(USUAL)),
    );
    format!("{tokens}, {:.2} GiB left after graphs", at.left_gib)
}

/// What would be left there once the heaviest step has its memory.
fn margin_there(view: &View<'_>, at: &AtFraction) -> String {
    let need = view.need().map(|(_, need)| need.value.mid.as_gib_f64());
    need.map_or_else(String::new, |need| format!(", margin {:.2} GiB", at.left_gib - need))
}

/// Why the automatic value is advised.
fn reserve(view: &View<'_>) -> Option<String> {
    let (automatic, advised) = (view.plan.automatic.as_ref()?, view.advised()?);
    let lower = matches!(view.plan.advice, Some(Advice::Lower { .. }));
    let same = (automatic.fraction - advised.fraction).abs() < 0.001;
    (lower && same).then(|| {
        let used = view.plan.fraction.map_or_else(String::new, pyfloat::repr);
        format!(
            "{used} spends what the engine's reserve keeps for prefill, graphs and what nobody \
             planned; start with the automatic value and raise by 0.02 on a full pool and \
             retractions"
        )
    })
}

/// Where all programs share one memory.
fn own_fraction(view: &View<'_>) -> Option<String> {
    view.own_fraction.map(|own| {
        format!(
            "all programs share this memory: set the fraction yourself, for example {MARK}{} {}{MARK}: \
             {} tokens, {:.2} GiB left beside the pool",
            view.plan.flag,
            pyfloat::repr(own.fraction),
            own.tokens,
            own.left.as_gib_f64()
        )
    })
}

/// What the engine does when its pool is full.
fn when_full(view: &View<'_>) -> &'static str {
    match view.launch.engine.engine() {
        Engine::Sglang => "retractions",
        Engine::Vllm => "preemptions",
    }
}

fn keep(view: &View<'_>) -> Option<String> {
    let next = view.plan.next_step.as_ref()?;
    let ok = view.plan.level == Level::Ok && view.plan.advice == Some(Advice::Keep);
    ok.then(|| {
        format!(
            "keep it. Raise only on a full pool and {}, by 0.02: {} would give {}",
            when_full(view),
            pyfloat::repr(next.fraction),
            at_text(next)
        )
    })
}

fn no_fraction(view: &View<'_>) -> Option<String> {
    if let Some(more) = view.more_ranks {
        let tokens = more.tokens.map_or_else(String::new, |t| format!(": {t} tokens"));
        let left = more.left.map_or_else(String::new, |left| {
            format!(", {:.2} GiB left after graphs", left.as_gib_f64())
        });
        let flag = ranks_flag(view);
        return Some(format!("pass {MARK}{flag} {}{MARK}{tokens}{left}", more.tp));
    }
    (view.plan.advice == Some(Advice::NoFraction) && view.plan.refusal().is_none()).then(|| {
        "no fraction alone helps: more ranks, a smaller or more quantised model, fewer graph batch \
         sizes, a smaller chunk or fewer requests"
            .to_owned()
    })
}

fn automatic(view: &View<'_>) -> Option<String> {
    let plan = view.plan;
    let at = plan.automatic.as_ref()?;
    let near = |advised: &AtFraction| (advised.fraction - at.fraction).abs() < 0.001;
    let refused = plan.refusal().is_some() && view.advised().is_none();
    let said = view.advised().is_some_and(near) || at.tokens.is_none() || refused;
    (plan.level != Level::Ok && !said).then(|| {
        let value = pyfloat::repr(at.fraction);
        format!("the engine's own value is {value}: {}", at_text(at))
    })
}
