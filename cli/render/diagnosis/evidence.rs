//! The lines that a finding rests on, and the other findings in short.

use super::{View, tone};
use crate::{
    output::{Output, Tone},
    render::text::wrap,
};
use plimsoll_diagnosis::Evidence;
use std::fmt::Write as _;

/// For people.
pub(super) fn human(view: &View<'_>, output: &Output) -> String {
    let mut out = String::new();
    let Some((first, others)) = view.report.findings.split_first() else { return out };
    let word = output.paint(Tone::Dim, "seen:");
    for line in view.shown(&first.evidence, 4) {
        let text = shorten(&plain(&line.text), room(view, line, output.width()));
        let _ = writeln!(out, "{word} {}  {text}", view.place(line.file, line.line));
    }
    for finding in view.shown(others, 3) {
        let level = output.paint(tone(finding.level), finding.level.name());
        let line = format!("also: {level}: {} ({})", plain(&finding.headline), finding.code);
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 6));
    }
    let shown = view.shown(others, 3).len();
    if shown < others.len() {
        let _ = writeln!(out, "also: {} more with --all", others.len() - shown);
    }
    out
}

/// A line of a log as one line of a terminal: control characters are blanks.
pub(super) fn plain(text: &str) -> String {
    let blank = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(blank).collect::<String>().trim().to_owned()
}

/// Columns that are left for the text of a line.
fn room(view: &View<'_>, line: &Evidence, width: usize) -> usize {
    let place = view.place(line.file, line.line).chars().count();
    match view.detail {
        super::Detail::All => usize::MAX,
        super::Detail::Screen => width.saturating_sub(place + 8).max(20),
    }
}

/// The text, shortened at its end.
pub(super) fn shorten(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let head: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}…", head.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_log_reaches_the_terminal_as_a_command() {
        assert_eq!(plain("\u{1b}[31mred\u{7} \ttab\n"), "[31mred   tab");
    }

    #[test]
    fn a_line_keeps_its_beginning() {
        assert_eq!(shorten("short", 10), "short");
        assert_eq!(shorten("a line that is long", 8), "a line…");
        assert_eq!(shorten("äöü äöü", 4), "äöü…");
    }
}
