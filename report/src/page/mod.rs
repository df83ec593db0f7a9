//! The page: head, charts, accounts, all in one file that asks nobody for anything.

mod ledgers;
mod parts;
mod still;

use crate::{
    collect::Collected,
    column::base64,
    data::{LoadLine, data},
    html::{escape, script_json},
};
use plimsoll_replay::{plan, run::ScenarioRun};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

const SCRIPT: &str = concat!(
    include_str!("../../assets/data.js"),
    include_str!("../../assets/chart.js"),
    include_str!("../../assets/page.js")
);
const STYLE: &str = include_str!("../../assets/page.css");

/// What `run` says of a run on the screen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// `holds`, `ok` or `FAILS`.
    pub word: String,
    /// How it ended, in a sentence.
    pub ending: String,
    /// What it started with.
    pub start: String,
    /// What must be known about the page itself: a recording that was cut off, a second run that differs.
    pub notes: Vec<String>,
}

/// The page of a run.
#[must_use]
pub fn page(run: &ScenarioRun, seen: &Collected, told: &Told) -> String {
    let line = load_line(run);
    let data = data(seen, line.as_ref());
    let mut out = String::with_capacity(256 << 10);
    head(&mut out, &run.scenario.name);
    out.push_str("<main>\n");
    parts::verdict(&mut out, run, told);
    if !data.is_null() {
        charts(&mut out, seen, line.as_ref());
    }
    parts::facts(&mut out, run, seen);
    ledgers::crash(&mut out, seen);
    ledgers::start(&mut out, seen);
    parts::claims(&mut out, run);
    parts::origin(&mut out, run, seen);
    out.push_str("</main>\n");
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        script_json(&data)
    );
    out
}

/// What the heaviest pass needs: the closed form, or what the allocator needs where that is more.
fn load_line(run: &ScenarioRun) -> Option<LoadLine> {
    let plan = plan::plan(&run.assembled.case).ok()?;
    let closed = plan.need.as_ref().map(|(name, need)| (name.clone(), need.value.mid.0));
    match (closed, plan.allocator_need) {
        (Some((pass, need)), allocator) if allocator.is_none_or(|bytes| bytes.0 <= need) => {
            Some(LoadLine { need, pass })
        }
        (_, Some(bytes)) => {
            Some(LoadLine { need: bytes.0, pass: "the heaviest pass of plain requests".to_owned() })
        }
        _ => None,
    }
}

/// The beginning, with a policy that lets nothing in but the two texts that stand in the page.
fn head(out: &mut String, name: &str) {
    let hash = |text: &str| base64(&Sha256::digest(text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; \
         form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<!-- {mark} -->\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{name} - plimsoll</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        mark = crate::REPORT_MARK,
        name = escape(name),
    );
}

/// The place of the charts, with a still picture until the script has drawn them.
fn charts(out: &mut String, seen: &Collected, line: Option<&LoadLine>) {
    out.push_str(
        "<section id=\"over-time\" aria-labelledby=\"h-time\">\n<h2 id=\"h-time\">Over time</h2>\n",
    );
    let _ = writeln!(out, "<p class=\"lead\">{}</p>", escape(&parts::line_words(seen, line)));
    out.push_str("<div id=\"view\">\n<div id=\"charts\">");
    if let Some((picture, words)) = still::picture(seen) {
        let _ = write!(
            out,
            "<img id=\"still\" alt=\"{}\" src=\"data:image/svg+xml;base64,{picture}\">",
            escape(&words)
        );
    }
    out.push_str(
        "</div>\n<aside id=\"panel\" aria-label=\"The decision at the cursor\"></aside>\n</div>\n",
    );
    out.push_str("<noscript><p>The charts above stand still without JavaScript; the tables below have the main figures.</p></noscript>\n");
    if seen.stretch_ns > 0 {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(&parts::reduced(seen)));
    }
    out.push_str("</section>\n");
}
