//! What to set, with what it gives; the command with it; what will not help.

use super::View;
use crate::{
    output::{Output, Tone},
    render::text::wrap,
};
use plimsoll_diagnosis::{Lever, Move, NoHelp};
use plimsoll_ingest::launch::is_switch;
use std::fmt::Write as _;

/// For people: wrapped, and the command on a line of its own so that it can be copied.
pub(super) fn human(view: &View<'_>, output: &Output) -> String {
    let Some(first) = view.first() else { return String::new() };
    let width = output.width();
    let mut out = String::new();
    let word = output.paint(Tone::Change, "help:");
    for (at, lever) in view.shown(&first.help, 4).iter().enumerate() {
        let or = if at == 0 { "" } else { "or " };
        let change = output.paint(Tone::Change, &change(lever));
        let line = format!("{word} {or}{change}{}", gives(lever));
        let _ = writeln!(out, "{}", wrap(&line, width, 6));
    }
    if let Some(command) = command(view) {
        let lines = command.lines().map(|line| format!("  {line}\n"));
        let _ = write!(out, "\n{}\n", lines.collect::<String>());
    }
    let word = output.paint(Tone::Close, "no help:");
    for no in view.shown(&first.no_help, 3) {
        let _ = writeln!(out, "{}", wrap(&format!("{word} {}", no_help(no)), width, 6));
    }
    out
}

/// What to do, in words: `pass --mem-fraction-static 0.88`.
pub(super) fn change(lever: &Lever) -> String {
    let flag = &lever.flag;
    // Variables are assigned, flags passed; what begins otherwise is a thing to do.
    let variable = |value: &str| format!("set {flag}={value}");
    match (lever.change, lever.value.as_deref()) {
        (Move::Unset, _) => format!("drop {flag}"),
        (Move::Set | Move::Raise | Move::Lower, Some(value)) if is_variable(flag) => {
            variable(value)
        }
        (Move::Set | Move::Raise | Move::Lower, Some(value)) => format!("pass {flag} {value}"),
        (Move::Set, None) if flag.starts_with('-') => format!("set {flag}"),
        (Move::Set, None) => flag.clone(),
        (Move::Raise, None) => format!("raise {flag}"),
        (Move::Lower, None) => format!("lower {flag}"),
    }
}

fn is_variable(flag: &str) -> bool {
    flag.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

pub(super) fn gives(lever: &Lever) -> String {
    lever.gives.as_ref().map_or_else(String::new, |gives| format!(": {gives}"))
}

pub(super) fn no_help(no: &NoHelp) -> String {
    let flag = &no.flag;
    let what = match no.change {
        Some(Move::Raise) => format!("raising {flag}"),
        Some(Move::Lower) => format!("lowering {flag}"),
        Some(Move::Set) => format!("setting {flag}"),
        Some(Move::Unset) => format!("dropping {flag}"),
        None => flag.clone(),
    };
    format!("{what}: {}", no.why)
}

/// The command with the first lever that it can take.
pub(super) fn command(view: &View<'_>) -> Option<String> {
    let typed = view.typed?;
    let engine = view.case.launch.as_ref()?.engine.engine();
    let flags = view.first()?.help.iter().filter(|lever| lever.flag.starts_with("--"));
    let set = flags.filter(|lever| {
        let alone = lever.change == Move::Set && is_switch(engine, &lever.flag);
        lever.change != Move::Unset && (lever.value.is_some() || alone)
    });
    let mut changed = set.filter_map(|lever| typed.changed(&lever.flag, lever.value.as_deref()));
    changed.next().map(|typed| typed.text())
}
