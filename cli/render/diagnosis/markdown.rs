//! A diagnosis as Markdown, to be pasted into an issue.

use super::{View, evidence::plain, extra, help, ledger, word, words};
use std::fmt::Write as _;

/// Verdict, ledger, reasons, what to set, evidence, other findings.
pub fn markdown(view: &View<'_>) -> String {
    let (word, _) = word(view.first());
    let mut out = format!("**{word}**: {}\n", view.report.verdict);
    if let Some(subject) = words::subject(view) {
        let _ = writeln!(out, "\n{subject}");
    }
    for (rank, stage) in ledger::shown(view) {
        let _ = write!(out, "\n{}", ledger::table(view, rank, stage).markdown());
    }
    out.push('\n');
    for line in words::lines(view) {
        let _ = writeln!(out, "- {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(first) = view.first() {
        for (at, lever) in first.help.iter().enumerate() {
            let or = if at == 0 { "" } else { "or " };
            let _ = writeln!(out, "- help: {or}{}{}", help::change(lever), help::gives(lever));
        }
        for no in &first.no_help {
            let _ = writeln!(out, "- no help: {}", help::no_help(no));
        }
    }
    if let Some(command) = help::command(view) {
        let _ = write!(out, "\n```sh\n{command}\n```\n");
    }
    out.push_str(&evidence(view));
    out.push_str(&extra::markdown(view));
    for (word, line) in words::remarks(view) {
        let _ = writeln!(out, "- {word}: {line}");
    }
    out
}

/// The lines of the answer, fenced so that nothing in them is read as Markdown; then the other findings.
fn evidence(view: &View<'_>) -> String {
    let mut out = String::new();
    let Some((first, others)) = view.report.findings.split_first() else { return out };
    if !first.evidence.is_empty() {
        let lines = first.evidence.iter();
        let lines: String = lines
            .map(|line| format!("{}  {}\n", view.place(line.file, line.line), plain(&line.text)))
            .collect();
        let fence = fence(&lines);
        let _ = write!(out, "\n{fence}\n{lines}{fence}\n\n");
    }
    for finding in others {
        let (level, headline) = (finding.level, &finding.headline);
        let _ = writeln!(out, "- also: {level}: {headline} (`{}`)", finding.code);
    }
    out
}

/// A fence longer than any in the text.
fn fence(text: &str) -> String {
    let mut longest = 2;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat(longest + 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fence_outgrows_its_text() {
        assert_eq!(super::fence("plain"), "```");
        assert_eq!(super::fence("a ```` b"), "`````");
    }
}
