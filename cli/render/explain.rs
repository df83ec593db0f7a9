//! Pages of `explain`: on a terminal, as Markdown, for machines.

use super::{
    table::{Align, Table},
    text::wrap,
};
use crate::output::{Output, Tone};
use plimsoll_diagnosis::{
    codes,
    pages::{PAGES, Page, PageKind},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Every code and topic with a line each.
pub fn list(output: &Output) -> String {
    let mut out = String::new();
    let widest = PAGES.iter().map(|page| page.key.len()).max().unwrap_or(0);
    for kind in PageKind::ALL {
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{}", output.paint(Tone::Good, kind.heading()));
        for page in PAGES.iter().filter(|page| page.kind == kind) {
            let line = format!("  {:<widest$}  {}", page.key, page.title());
            let _ = writeln!(out, "{}", wrap(&line, output.width(), widest + 4));
        }
    }
    out
}

/// The same as tables.
pub fn list_markdown() -> String {
    let mut out = String::new();
    for kind in PageKind::ALL {
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = write!(out, "{gap}## {}\n\n", kind.heading());
        let mut table = Table::new(&[("page", Align::Left), ("what it says", Align::Left)]);
        for page in PAGES.iter().filter(|page| page.kind == kind) {
            table.row(vec![format!("[{}](#{})", page.key, page.key), page.title().to_owned()]);
        }
        out.push_str(&table.markdown());
    }
    out
}

/// A page for people.
pub fn human(page: &Page, output: &Output) -> String {
    let mut out = format!("{}: {}\n", output.paint(Tone::Change, page.key), page.title());
    for section in page.sections() {
        if section.heading.is_empty() {
            out.push('\n');
        } else {
            let _ = writeln!(out, "\n{}", output.paint(Tone::Good, section.heading));
        }
        out.push_str(&blocks(section.text, output.width()));
    }
    out
}

/// Markdown as lines for people: paragraphs and items wrapped, fenced text as it stands.
fn blocks(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut words = String::new();
    let mut fenced = false;
    let flush = |words: &mut String, out: &mut String| {
        if !words.is_empty() {
            let hang = if words.starts_with("- ") { 4 } else { 2 };
            let _ = writeln!(out, "{}", wrap(&format!("  {words}"), width, hang));
            words.clear();
        }
    };
    for line in text.lines() {
        if let Some(info) = line.strip_prefix("```") {
            flush(&mut words, &mut out);
            fenced = !fenced;
            if let Some(scenario) = info.strip_prefix("scenario ") {
                let _ = writeln!(out, "    scenarios/{scenario}.yaml");
            }
        } else if fenced {
            let _ = writeln!(out, "{}", format!("    {line}").trim_end());
        } else {
            if line.is_empty() || line.starts_with("- ") {
                flush(&mut words, &mut out);
            }
            if line.is_empty() && !out.is_empty() {
                out.push('\n');
            }
            let gap = if words.is_empty() { "" } else { " " };
            let _ = write!(words, "{gap}{}", line.trim().replace('`', ""));
        }
    }
    flush(&mut words, &mut out);
    out
}

/// Pages as one Markdown text.
pub fn markdown(pages: &[&Page]) -> String {
    let page =
        |page: &&Page| format!("## {}\n\n**{}.**\n\n{}", page.key, page.title(), deeper(page));
    pages.iter().map(page).collect::<Vec<_>>().join("\n")
}

/// The text of a page with its headings one level down.
fn deeper(page: &Page) -> String {
    let text = page.text.trim_end();
    let lines = text.lines().map(|line| match line.strip_prefix("## ") {
        Some(heading) => format!("### {heading}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Pages for machines.
pub fn json(pages: &[&Page]) -> Value {
    let pages: Vec<Value> = pages.iter().map(|page| body(page)).collect();
    json!({ "schema": "plimsoll.explain/1", "pages": pages })
}

/// One page as a document of its own.
pub fn page_json(page: &Page) -> Value {
    json(&[page])
}

fn body(page: &Page) -> Value {
    let sections = page.sections().into_iter();
    let sections: Vec<Value> =
        sections.map(|s| json!({ "heading": s.heading, "markdown": s.text })).collect();
    json!({
        "key": page.key,
        "kind": page.kind.name(),
        "title": page.title(),
        "cause": codes::find(page.key).map(|code| code.cause.name()),
        "sections": sections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_lines() {
        let text = "One `two`\nthree.\n\n- first item that is long\n- second\n\n```scenario a/b\nx: 1\n```\nEnd.";
        let want = "  One two three.\n\n  - first item\n    that is long\n  - second\n\n    scenarios/a/b.yaml\n    x: 1\n  End.\n";
        assert_eq!(blocks(text, 17), want);
    }
}
