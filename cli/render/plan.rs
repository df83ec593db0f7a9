//! The plan on one screen: verdict, ledger, window, what to pass; then evidence on demand.

use super::{figures, json, ledger, run, table};
use crate::{
    args::PlanArgs,
    output::{Output, Tone},
};
use plimsoll_core::{
    memory::ledger::Account,
    plan::Advice,
    pyfloat,
    units::{Bytes, GIB},
};
use plimsoll_ingest::launch::{Effect, Launch, render, with_flag};
use plimsoll_replay::{
    plan::{AtFraction, Level, Plan, TokenRange},
    start::Case,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What is shown.
pub struct View<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its case.
    pub case: &'a Case,
    /// The launch as read.
    pub launch: &'a Launch,
    /// What was asked.
    pub args: &'a PlanArgs,
}

const fn tone(level: Level) -> Tone {
    match level {
        Level::Ok => Tone::Good,
        Level::Low => Tone::Close,
        Level::Oom | Level::Refused => Tone::Bad,
    }
}

/// For people.
pub fn human(view: &View<'_>, output: &Output) -> String {
    let plan = view.plan;
    let word = output.paint(tone(plan.level), plan.level.word());
    let mut out = format!("{word}: {}\n\n", plan.headline);
    let _ = writeln!(out, "  {}", subject(view));
    if let Some(refused) = plan.refusal() {
        out.push_str(&run::ways_out(refused, output));
    }
    out.push('\n');
    out.push_str(&ledger::table(&plan.ran.ledger, &beside(plan)).human());
    out.push('\n');
    for line in summary(plan) {
        let _ = writeln!(out, "  {line}");
    }
    for line in help(view, output) {
        let _ = writeln!(out, "{} {line}", output.paint(Tone::Change, "help:"));
    }
    for line in remarks(view) {
        let _ = writeln!(out, "{} {line}", output.paint(Tone::Dim, "note:"));
    }
    if view.args.why {
        out.push_str("\nwhy\n");
        out.push_str(&derivations(plan));
    }
    out
}

/// Engine, release, model, devices.
fn subject(view: &View<'_>) -> String {
    let engine = &view.launch.engine;
    format!(
        "{} {}, {}, {} x {}",
        engine.engine(),
        engine.version(),
        view.case.model.name,
        view.case.ranks,
        view.case.device.name
    )
}

fn beside(plan: &Plan) -> Vec<ledger::Beside> {
    let tokens = plan.pool.map(|pool| pool.mid);
    tokens.map(|tokens| ledger::Beside { account: Account::KvPool, tokens }).into_iter().collect()
}

fn tokens_text(pool: TokenRange) -> String {
    if pool.low == pool.high {
        format!("{} tokens", pool.mid)
    } else {
        format!("{} tokens ({} to {})", pool.mid, pool.low, pool.high)
    }
}

fn gib(bytes: i64) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB as f64)
}

/// Pool, margin, window.
fn summary(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(pool) = plan.pool {
        let holds = plan.full_context_requests.zip(plan.context_len).map_or_else(
            String::new,
            |(requests, context)| {
                let context = plimsoll_core::units::group_thousands(context);
                format!(": {requests:.2} requests of the full {context} tokens")
            },
        );
        lines.push(format!("pool    {}{holds}", tokens_text(pool)));
    }
    if let (Some((name, need)), Some(margin)) = (&plan.need, plan.margin()) {
        let need = figures::estimate(need.value);
        lines.push(format!("margin  {} once {name} has its {need}", gib(margin)));
    }
    if let Some(window) = plan.window {
        let used =
            plan.fraction.map_or_else(String::new, |f| format!(", used {}", pyfloat::repr(f)));
        let text = if window.is_empty() {
            format!(
                "empty: a pool starts above {:.3}, the heaviest step fits below {:.3}",
                window.floor, window.ceiling
            )
        } else {
            let top = if plan.need.is_some() { "the heaviest step" } else { "nothing is left" };
            format!("{:.3} (no pool below) to {:.3} ({top})", window.floor, window.ceiling)
        };
        lines.push(format!("window  {} {text}{used}", plan.flag));
    }
    lines
}

fn at_text(at: &AtFraction) -> String {
    let tokens = at.tokens.map_or_else(|| "no pool".to_owned(), |t| format!("{t} tokens"));
    format!("{tokens}, {:.2} GiB left after graphs", at.left_gib)
}

/// What to pass instead.
fn help(view: &View<'_>, output: &Output) -> Vec<String> {
    let plan = view.plan;
    let mut lines = Vec::new();
    let reserve = plan.automatic.as_ref().zip(plan.advised.as_ref());
    if let Some((automatic, advised)) = reserve
        && automatic.fraction == advised.fraction
    {
        let used = plan.fraction.map_or_else(String::new, pyfloat::repr);
        lines.push(format!(
            "{used} spends what the engine's reserve keeps for prefill, graphs and what nobody planned; \
             start with the automatic value and raise by 0.02 on a full pool and retractions"
        ));
    }
    if let Some(at) = &plan.advised {
        let change = format!("{} {}", plan.flag, pyfloat::repr(at.fraction));
        lines.push(format!("pass {}: {}", output.paint(Tone::Change, &change), at_text(at)));
        if !view.args.command.is_empty() {
            let value = pyfloat::repr(at.fraction);
            let command = with_flag(&view.args.command, plan.flag, Some(&value));
            lines.extend(command.map(|words| render(&words)));
        }
    }
    match plan.advice {
        Some(Advice::NoFraction) => lines.push(
            "no fraction alone helps: more ranks (--tp), a smaller or more quantised model, fewer \
             graph batch sizes, a smaller chunk or fewer requests"
                .to_owned(),
        ),
        Some(Advice::Keep) if plan.level == Level::Ok => {
            if let Some(next) = &plan.next_step {
                lines.push(format!(
                    "keep it. Raise only on a full pool and retractions, by 0.02: {} would give {}",
                    pyfloat::repr(next.fraction),
                    at_text(next)
                ));
            }
        }
        _ => {}
    }
    if let Some(at) = &plan.automatic
        && plan.level != Level::Ok
        && plan.advised.as_ref().is_none_or(|advised| advised.fraction != at.fraction)
    {
        let value = pyfloat::repr(at.fraction);
        lines.push(format!("the engine's automatic value is {value}: {}", at_text(at)));
    }
    if let Some(chunk) = plan.smaller_chunk {
        let change = format!("--chunked-prefill-size {}", chunk.tokens);
        lines.push(format!(
            "or {}: its peak is {}, it fits at the same fraction",
            output.paint(Tone::Change, &change),
            chunk.need
        ));
    }
    lines
}

/// What is not modelled, not known, or weaker than a verified rule.
fn remarks(view: &View<'_>) -> Vec<String> {
    let plan = view.plan;
    let mut lines: Vec<String> = plan.notes.clone();
    lines.extend(version_note(view.launch));
    let names = |effect: Effect| {
        let flags = view.launch.not_modelled.iter().filter(|flag| flag.effect == effect);
        flags.map(|flag| flag.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let memory = names(Effect::MemoryNotModelled);
    if !memory.is_empty() {
        lines.push(format!("may move memory and is not modelled: {memory}"));
    }
    let variables = view.launch.env.iter();
    let variables: Vec<&str> = variables
        .filter(|v| v.effect == Some(Effect::MemoryNotModelled))
        .map(|v| v.name.as_str())
        .collect();
    if !variables.is_empty() {
        lines.push(format!(
            "variables that may move memory and are not modelled: {}",
            variables.join(", ")
        ));
    }
    for flag in &view.launch.unknown {
        let near = flag.near.first().map_or_else(String::new, |n| format!(" (near: {n})"));
        lines.push(format!("unknown flag {}{near}", flag.name));
    }
    lines.extend(view.launch.warnings.iter().map(|warning| warning.message.clone()));
    lines.push(format!("not in the ceiling: {}", plan.ran.basis.unknown.join("; ")));
    lines
}

fn version_note(launch: &Launch) -> Option<String> {
    match &launch.version {
        plimsoll_ingest::launch::VersionSource::Default { note } => {
            Some(format!("{note}; say another with --engine-version"))
        }
        _ => None,
    }
}

fn derivations(plan: &Plan) -> String {
    let basis = &plan.ran.basis;
    let mut out = String::new();
    let named = [
        ("free_before_load", &basis.free_before_load),
        ("load", &basis.load),
        ("draft_weights", &basis.draft),
        ("workspaces", &basis.workspaces),
        ("graphs", &basis.graphs),
    ];
    for (name, figure) in named {
        out.push_str(&figures::why(name, &figures::estimate(figure.value), &figure.why));
    }
    if let Some((name, figure)) = &plan.need {
        out.push_str(&figures::why(name, &figures::estimate(figure.value), &figure.why));
    }
    out.push_str(&figures::derivations(plan.ran.start.figures()));
    out
}

/// For machines.
pub fn machine(view: &View<'_>) -> Value {
    let plan = view.plan;
    let at = |at: &Option<AtFraction>| {
        at.as_ref().map(|at| {
            json!({
                "fraction": at.fraction,
                "tokens": at.tokens.map(|t| t.0),
                "left_bytes": (at.left_gib * GIB as f64).round() as i64,
            })
        })
    };
    let advice = match plan.advice {
        Some(Advice::Keep) => "keep",
        Some(Advice::Lower { .. }) => "lower",
        Some(Advice::Raise { .. }) => "raise",
        Some(Advice::NoFraction) => "no_fraction",
        None => "none",
    };
    let basis = &plan.ran.basis;
    let estimate = |figure: &plimsoll_core::estimate::Figure| json!({ "interval": json::estimate(figure.value), "why": json::why(&figure.why) });
    json!({
        "schema": "plimsoll.plan/1",
        "verdict": plan.level.word().to_lowercase(),
        "headline": plan.headline,
        "engine": {
            "name": view.launch.engine.engine().to_string(),
            "version": view.launch.engine.version().to_string(),
            "program": view.launch.program,
        },
        "model": { "name": view.case.model.name, "origin": view.case.model.origin },
        "device": { "name": view.case.device.name, "ranks": view.case.ranks },
        "refusal": plan.refusal().map(|r| json!({
            "code": r.code,
            "message": r.message,
            "engine_message": r.engine_message,
        })),
        "pool": {
            "tokens": plan.pool.map(|p| p.mid.0),
            "tokens_low": plan.pool.map(|p| p.low.0),
            "tokens_high": plan.pool.map(|p| p.high.0),
            "full_context_requests": plan.full_context_requests,
            "context_len_tokens": plan.context_len,
        },
        "left_after_graphs": plan.left.map(json::estimate),
        "need": plan.need.as_ref().map(|(name, figure)| json!({
            "step": name,
            "interval": json::estimate(figure.value),
            "why": json::why(&figure.why),
        })),
        "margin_bytes": plan.margin(),
        "window": {
            "flag": plan.flag,
            "used": plan.fraction,
            "floor": plan.window.map(|w| w.floor),
            "ceiling": plan.window.map(|w| w.ceiling),
            "floor_sure": plan.window.map(|w| w.floor_sure),
            "ceiling_sure": plan.window.map(|w| w.ceiling_sure),
        },
        "advice": {
            "action": advice,
            "pass": at(&plan.advised),
            "automatic": at(&plan.automatic),
            "next_step": at(&plan.next_step),
            "smaller_chunk": plan.smaller_chunk.map(|c| {
                json!({ "chunked_prefill_size_tokens": c.tokens, "need_bytes": c.need.0 })
            }),
        },
        "basis": {
            "free_before_load": estimate(&basis.free_before_load),
            "load": estimate(&basis.load),
            "workspaces": estimate(&basis.workspaces),
            "graphs": estimate(&basis.graphs),
        },
        "notes": remarks(view),
        "unknown": basis.unknown,
        "figures": json::figures(plan.ran.start.figures()),
        "ledger": json::ledger(&plan.ran.ledger),
    })
}

/// One row an account.
pub fn csv(view: &View<'_>) -> String {
    let mut out = String::from("account,held_bytes,low_bytes,high_bytes,tag\n");
    for row in view.plan.ran.ledger.rows() {
        let (name, tag) = (row.account.name(), row.why.tag.name());
        let (mid, low, high) = (row.bytes.mid.0, row.bytes.low.0, row.bytes.high.0);
        let _ = writeln!(out, "{},{mid},{low},{high},{}", table::csv_cell(name), tag);
    }
    let capacity: Bytes = view.plan.ran.ledger.capacity;
    let _ = writeln!(out, "capacity,{0},{0},{0},measured", capacity.0);
    out
}

/// For a report.
pub fn markdown(view: &View<'_>) -> String {
    let plan = view.plan;
    let mut out = format!("**{}**: {}\n\n{}\n\n", plan.level.word(), plan.headline, subject(view));
    out.push_str(&ledger::table(&plan.ran.ledger, &beside(plan)).markdown());
    out.push('\n');
    for line in summary(plan) {
        let _ = writeln!(out, "- {line}");
    }
    for line in remarks(view) {
        let _ = writeln!(out, "- note: {line}");
    }
    out
}
