//! The plan on one screen: verdict, ledger, window, what to pass; then evidence on demand.

mod help;
mod machine;
mod remarks;
mod summary;

pub use machine::{csv, machine};

use super::{figures, ledger, run, text::wrap};
use crate::{
    args::PlanArgs,
    commands::plan::{MoreRanks, OwnFraction, advised},
    output::{Output, Tone},
};
use plimsoll_core::{estimate::Figure, memory::ledger::Account};
use plimsoll_ingest::{launch::Launch, log::Seen};
use plimsoll_replay::{
    engine_log::start_lines,
    plan::{AtFraction, Level, Plan},
    start::Case,
};
use std::fmt::Write as _;

/// What is shown.
pub struct View<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its case.
    pub case: &'a Case,
    /// The launch as read.
    pub launch: &'a Launch,
    /// The command with the flags given beside it; empty when there is none.
    pub command: &'a [String],
    /// What was asked.
    pub args: &'a PlanArgs,
    /// How the device was chosen, when no flag says it.
    pub device_note: Option<String>,
    /// Tokens of the pool that the log of `--from-log` prints.
    pub log_tokens: Option<Seen<u64>>,
    /// More ranks that would hold.
    pub more_ranks: Option<MoreRanks>,
    /// A fraction set by hand, where all programs share one memory.
    pub own_fraction: Option<OwnFraction>,
}

impl View<'_> {
    /// The fraction to pass, when there is another one that helps.
    pub fn advised(&self) -> Option<&AtFraction> {
        advised(self.plan)
    }

    /// The heaviest known step and what it needs beside what stands.
    pub const fn need(&self) -> Option<&(String, Figure)> {
        self.plan.ran.basis.need.as_ref()
    }

    /// Left after graphs minus what the heaviest known step needs, bytes; without a known step all
    /// that is left.
    pub fn margin(&self) -> Option<i64> {
        let left = i64::try_from(self.plan.left?.mid.0).ok()?;
        let need = self.need().map_or(0, |(_, figure)| figure.value.mid.0);
        Some(left - i64::try_from(need).ok()?)
    }

    /// Whether `--min-margin` holds; `None` when it is not given. Without a start there is no margin.
    pub fn margin_holds(&self) -> Option<bool> {
        let least = i64::try_from(self.args.min_margin?.0).unwrap_or(i64::MAX);
        Some(self.margin().is_some_and(|margin| margin >= least))
    }
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
    let width = output.width();
    let mut out = wrap(&format!("{word}: {}", plan.headline), width, 2);
    let _ = writeln!(out, "\n\n  {}", subject(view));
    if let Some(refused) = plan.refusal() {
        out.push_str(&run::ways_out(refused, output));
    }
    out.push('\n');
    out.push_str(&ledger::table(&plan.ran.ledger, &beside(plan)).human());
    out.push('\n');
    for line in summary::lines(view) {
        let _ = writeln!(out, "  {}", wrap(&line, width - 2, 10));
    }
    out.push_str(&help::text(view, output));
    for (kind, line) in remarks::all(view) {
        let word = output.paint(kind.tone(), kind.word());
        let _ = writeln!(out, "{}", wrap(&format!("{word} {line}"), width, 6));
    }
    if view.args.engine_lines || view.args.why {
        out.push_str("\nthe engine's log, as far as it is known (… is not)\n");
        for line in start_lines(view.case, &view.plan.ran) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if view.args.why {
        out.push_str("\nwhy\n");
        out.push_str(&derivations(view));
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

/// Every figure with its rule, inputs and source.
fn derivations(view: &View<'_>) -> String {
    let basis = &view.plan.ran.basis;
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
    if let Some((name, figure)) = view.need() {
        out.push_str(&figures::why(name, &figures::estimate(figure.value), &figure.why));
    }
    out.push_str(&figures::derivations(view.plan.ran.start.figures()));
    out
}

/// For a report.
pub fn markdown(view: &View<'_>) -> String {
    let plan = view.plan;
    let mut out = format!("**{}**: {}\n\n{}\n\n", plan.level.word(), plan.headline, subject(view));
    out.push_str(&ledger::table(&plan.ran.ledger, &beside(plan)).markdown());
    out.push('\n');
    for line in summary::lines(view) {
        let _ = writeln!(out, "- {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    for line in help::lines(view) {
        let _ = writeln!(out, "- help: {line}");
    }
    if let Some(command) = help::command(view) {
        let _ = writeln!(out, "\n```\n{command}\n```\n");
    }
    for (kind, line) in remarks::all(view) {
        let _ = writeln!(out, "- {} {line}", kind.word());
    }
    out
}
