//! The texts of the page: verdict, facts, claims, where it comes from.

use crate::{
    collect::Collected,
    data::{LoadLine, fixed},
    html::{element, escape},
    page::Told,
};
use plimsoll_core::units::{Bytes, group_thousands};
use plimsoll_replay::{outcome::Claim, run::ScenarioRun, timeline::time, verdict};
use std::fmt::Write as _;

fn tone(word: &str) -> &'static str {
    if word == "FAILS" { "bad" } else { "good" }
}

/// The name, the verdict in words, the number that was too small, the ways out.
fn verdict_list(run: &ScenarioRun, told: &Told) -> Vec<(&'static str, String)> {
    let mut list = Vec::new();
    let verdict = verdict::verdict(run).unwrap_or_default();
    list.extend(verdict.short.map(|text| ("short", text)));
    list.extend(verdict.chunk.map(|text| ("chunk", text)));
    let start = told.start.strip_prefix("started ").unwrap_or(&told.start);
    list.push(("start", start.to_owned()));
    list.extend(verdict.state.map(|text| ("pool", text)));
    list.extend(
        verdict.blind.map(|text| ("blind", format!("without the calibrated readings: {text}"))),
    );
    list.extend(verdict.ways.into_iter().map(|way| ("help", way)));
    list
}

fn verdict_head(out: &mut String, run: &ScenarioRun, told: &Told) {
    let _ = write!(
        out,
        "<header>\n<p class=\"brand\">plimsoll <span>run report</span></p>\n<button id=\"theme\" type=\"button\" hidden>\
         Dark</button>\n<h1>{}</h1>\n<p class=\"verdict\"><span class=\"word {}\">{}</span> {}</p>\n</header>\n",
        escape(&run.scenario.name),
        tone(&told.word),
        escape(&told.word),
        escape(&told.ending)
    );
}

fn verdict_body(out: &mut String, run: &ScenarioRun, told: &Told) {
    out.push_str("<section aria-label=\"Verdict\">\n<dl class=\"verdict-list\">\n");
    for (name, text) in verdict_list(run, told) {
        let _ = writeln!(out, "<dt class=\"{name}\">{name}</dt><dd>{}</dd>", escape(&text));
    }
    out.push_str("</dl>\n");
    for note in &told.notes {
        let _ = writeln!(out, "{}", element("p", "note warn", note));
    }
    out.push_str("</section>\n");
}

/// Both.
pub(super) fn verdict(out: &mut String, run: &ScenarioRun, told: &Told) {
    verdict_head(out, run, told);
    verdict_body(out, run, told);
}

/// What the load line is, in a sentence.
pub(super) fn line_words(seen: &Collected, line: Option<&LoadLine>) -> String {
    let rank = seen.rank();
    let shown = match seen.served.len() {
        2.. => format!("Memory of rank {rank} of {}, ", seen.served.len()),
        _ => "Memory of the device, ".to_owned(),
    };
    let Some(start) = seen.served.get(rank as usize) else { return String::new() };
    let Some(line) = line else {
        return format!(
            "{shown}with its capacity. No load line: the passes of this model are not known."
        );
    };
    let capacity = start.capacity().unwrap_or(0);
    let at = capacity.saturating_sub(line.need);
    let others = seen.rows.iter().map(|row| row.rank(rank).others.min).min().unwrap_or(0);
    let held = fixed(start).iter().fold(others, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let words = |bytes: u64| Bytes(bytes).to_string();
    let verdict = match held.cmp(&at) {
        std::cmp::Ordering::Greater => {
            format!("What does not move stands {} above it", words(held - at))
        }
        _ => format!("What does not move stands {} below it", words(at - held)),
    };
    format!(
        "{shown}capacity {}. The load line is {} below it: {} needs that much. What is held when such a pass \
         begins, its cache aside, must stay under the line. {verdict}.",
        words(capacity),
        words(line.need),
        line.pass
    )
}

/// What was left out of a long run.
pub(super) fn reduced(seen: &Collected) -> String {
    let merged: u64 = seen.rows.iter().filter(|row| row.merged > 1).map(|row| row.merged).sum();
    let exact = seen.rows.iter().filter(|row| row.merged == 1).count();
    format!(
        "Of this run {} passes and changes are shown exactly: its beginning, its end, and where something changed. \
         The other {} are gathered in stretches of {}, each with the least and the most of every figure.",
        group_thousands(exact as u64),
        group_thousands(merged),
        time(seen.stretch_ns)
    )
}

/// The main figures as a table.
pub(super) fn facts(out: &mut String, run: &ScenarioRun, seen: &Collected) {
    let counts = seen.counts();
    let rank = seen.rank();
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(start) = seen.served.get(rank as usize) {
        rows.push(("capacity of a device", Bytes(start.capacity().unwrap_or(0)).to_string()));
        let least = seen.rows.iter().map(|row| row.rank(rank).free.min).min().unwrap_or(0);
        rows.push(("least free", Bytes(least).to_string()));
        let live = seen.rows.iter().map(|row| row.live.max).max().unwrap_or(0);
        rows.push(("most live in a pass", Bytes(live).to_string()));
        rows.push(("pool", format!("{} tokens", group_thousands(seen.pool_tokens))));
        let used = seen.rows.iter().map(|row| row.used.max).max().unwrap_or(0);
        rows.push(("most slots in use", group_thousands(used)));
        let steps: u64 = seen.rows.iter().map(|row| row.steps).sum();
        rows.push(("time", time(seen.end_ns)));
        rows.push(("passes", group_thousands(steps)));
        for (name, count) in [
            ("requests arrived", counts.arrived),
            ("finished", counts.finished),
            ("aborted", counts.aborted),
            ("refused", counts.refused),
            ("retracted", counts.retracted),
            ("preempted", counts.preempted),
            ("changes of other programs, leaks", counts.changes),
        ] {
            if count > 0 || name == "finished" || name == "requests arrived" {
                rows.push((name, group_thousands(count)));
            }
        }
    }
    let device = &run.assembled.case.device.name;
    let ranks = run.assembled.case.ranks;
    rows.insert(0, ("machine", format!("{ranks} x {device}")));
    out.push_str("<section aria-labelledby=\"h-facts\">\n<h2 id=\"h-facts\">Figures</h2>\n<dl class=\"figures\">\n");
    for (name, value) in rows {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    out.push_str("</dl>\n</section>\n");
}

/// What the scenario claims.
pub(super) fn claims(out: &mut String, run: &ScenarioRun) {
    if run.claims.is_empty() {
        return;
    }
    out.push_str(
        "<section aria-labelledby=\"h-claims\">\n<h2 id=\"h-claims\">Claims</h2>\n<table>\n<tr><th scope=\"col\">\
         holds</th><th scope=\"col\">claim</th><th scope=\"col\">expected</th><th scope=\"col\">got</th></tr>\n",
    );
    for claim in &run.claims {
        out.push_str(&claim_row(claim));
    }
    out.push_str("</table>\n</section>\n");
}

fn claim_row(claim: &Claim) -> String {
    let path = claim.path.to_string();
    let path = path.strip_prefix("expect.").unwrap_or(&path);
    let (word, class) = if claim.holds() { ("ok", "good") } else { ("FAILS", "bad") };
    format!(
        "<tr><td class=\"{class}\">{word}</td>{}{}{}</tr>\n",
        element("td", "", path),
        element("td", "", &claim.expected.to_string()),
        element("td", "", &claim.got.to_string())
    )
}

/// The launch, the scenario's reason and source, the digests.
pub(super) fn origin(out: &mut String, run: &ScenarioRun, seen: &Collected) {
    out.push_str(
        "<section aria-labelledby=\"h-origin\">\n<h2 id=\"h-origin\">Where it comes from</h2>\n",
    );
    let engine = &run.scenario.engine;
    let mut words: Vec<String> =
        engine.command.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
    words.extend(engine.flag_tokens());
    let _ = writeln!(out, "<pre class=\"command\">{}</pre>", escape(&words.join(" ")));
    out.push_str("<table class=\"facts\">\n");
    let name = engine.engine().map_or("", |name| name.as_str());
    let mut rows = vec![
        ("why", run.scenario.why.trim().to_owned()),
        ("engine", format!("{name} {}", engine.version)),
        ("seed", run.scenario.seed.to_string()),
        ("records", group_thousands(seen.records)),
        ("digest of decisions", run.digests.decisions.clone()),
        ("digest of all", run.digests.full.clone()),
        ("made by", format!("plimsoll {}", env!("CARGO_PKG_VERSION"))),
    ];
    if let Some(source) = &run.scenario.source {
        rows.insert(1, ("source", source.trim().to_owned()));
    }
    for (name, value) in rows {
        let _ = writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", escape(&value));
    }
    out.push_str("</table>\n</section>\n");
}
