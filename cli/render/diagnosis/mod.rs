//! A diagnosis on one screen: the verdict, the account of every byte, the number that was too small, what to
//! set; then the lines that it rests on.

mod evidence;
mod extra;
mod help;
mod ledger;
mod machine;
mod markdown;
mod sarif;
mod words;

pub use machine::machine;
pub use markdown::markdown;
pub use sarif::sarif;

use super::text::wrap;
use crate::{
    commands::diagnose::{Emission, Typed},
    output::{Output, Tone},
};
use plimsoll_diagnosis::{Case, Finding, Level, Report, against::Comparison};
use std::fmt::Write as _;

/// What is shown.
pub struct View<'a> {
    /// The diagnosis.
    pub report: &'a Report,
    /// What it was made from.
    pub case: &'a Case,
    /// Names of the files, by index.
    pub names: &'a [String],
    /// The command, as typed.
    pub typed: Option<&'a Typed>,
    /// A plan laid beside the log, when one was asked for.
    pub comparison: Option<&'a Comparison>,
    /// Scenario files that were written, when they were asked for.
    pub emission: Option<&'a Emission>,
    /// Everything, however long.
    pub detail: Detail,
}

/// How much is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// One screen.
    Screen,
    /// Every finding and every line.
    All,
}

impl View<'_> {
    /// The finding that is the answer.
    pub fn first(&self) -> Option<&Finding> {
        self.report.findings.first()
    }

    /// At most `few` of a list on one screen, or all of it.
    fn shown<'b, T>(&self, list: &'b [T], few: usize) -> &'b [T] {
        match self.detail {
            Detail::All => list,
            Detail::Screen => list.get(..few).unwrap_or(list),
        }
    }

    /// `server.log:12`; the launch command has line 0.
    fn place(&self, file: u16, line: u64) -> String {
        if line == 0 { "command".to_owned() } else { format!("{}:{line}", self.name(file)) }
    }

    /// The name of a file without its folder, where no other file has the same.
    fn name(&self, file: u16) -> &str {
        let Some(name) = self.names.get(usize::from(file)) else { return "log" };
        let last = |name: &str| name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        let short = last(name);
        let same = self.names.iter().filter(|other| last(other) == short).count();
        if same == 1 { name.get(name.len() - short.len()..).unwrap_or(name) } else { name }
    }
}

/// The word of a verdict, and its colour.
fn word(first: Option<&Finding>) -> (&'static str, Tone) {
    match first {
        Some(finding) if finding.code == "healthy" => ("ok", Tone::Good),
        Some(finding) => (finding.level.name(), tone(finding.level)),
        None => ("unclear", Tone::Close),
    }
}

const fn tone(level: Level) -> Tone {
    match level {
        Level::Error => Tone::Bad,
        Level::Warning => Tone::Close,
        Level::Note => Tone::Dim,
    }
}

/// For people.
pub fn human(view: &View<'_>, output: &Output) -> String {
    let (word, tone) = word(view.first());
    let width = output.width();
    let code = view.first().map_or_else(String::new, |first| format!(" ({})", first.code));
    let verdict =
        format!("{}: {}{code}", output.paint(tone, word), evidence::plain(&view.report.verdict));
    let mut out = format!("{}\n", wrap(&verdict, width, 2));
    if let Some(subject) = words::subject(view) {
        let _ = writeln!(out, "\n{}", wrap(&format!("  {subject}"), width, 2));
    }
    out.push_str(&ledger::human(view, width));
    out.push('\n');
    for line in words::lines(view) {
        let _ = writeln!(out, "{}", wrap(&format!("  {line}"), width, 10));
    }
    out.push_str(&help::human(view, output));
    out.push_str(&evidence::human(view, output));
    out.push_str(&extra::human(view, output));
    for (word, line) in words::remarks(view) {
        let word = output.paint(Tone::Dim, &format!("{word}:"));
        let _ = writeln!(out, "{}", wrap(&format!("{word} {line}"), width, 6));
    }
    out
}
