//! A sweep for people: the answer, the table, the plot, what nothing else beats.

use super::{Answer, align, answers, bars, table_of, value_text};
use crate::{
    commands::sweep::options::AnswerArgs,
    output::{Output, Tone},
    render::{
        table::{Align, Table},
        text::wrap,
    },
};
use plimsoll_core::units::{GIB, group_thousands};
use plimsoll_sweep::{
    answer::{Better, Chance, Group, Objective, pareto::CRASH},
    question::{
        Axis, Question,
        header::{Header, Shard},
    },
    row::Fate,
};
use std::fmt::Write as _;

/// The whole screen.
pub fn human(header: &Header, answer: &Answer<'_>, args: &AnswerArgs, output: &Output) -> String {
    let question = &header.question;
    let mut out = headline(header, answer, output);
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name} {text}"), output.width(), 11));
    };
    let sentences = answers::lines(header, answer, args, output);
    for (name, text) in sentences.into_iter().chain(not_started(question, answer)) {
        line(&name, &text);
    }
    out.push_str(&table(header, answer, output, MOST_ROWS).human());
    let more = answer.groups.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        let more = group_thousands(more as u64);
        let _ = writeln!(out, "  {more} more; --format md, csv and json have all");
    }
    out.push_str(&bars::plot(question, answer, args.ascii || !output.has_blocks()));
    out.push_str(&front(question, answer, output));
    let legend = "chance of a crash: Clopper and Pearson's exact interval; margin, GiB: least free at the worst \
                  seed, below zero what was short; left, GiB: free when ready; pool, tokens; output \
                  tokens/s and p99 TTFT: medians of the seeds that lived";
    let legend = wrap(&format!("  {legend}"), output.width(), 2);
    let _ = writeln!(out, "{}", output.paint(Tone::Dim, &legend));
    out
}

/// What was swept, and how much died.
fn headline(header: &Header, answer: &Answer<'_>, output: &Output) -> String {
    let question = &header.question;
    let sum = |of: fn(&Group<'_>) -> u64| answer.groups.iter().map(of).sum::<u64>();
    let (runs, died, not) = (sum(|g| g.runs()), sum(|g| g.died), sum(|g| g.not_started));
    let names: Vec<&str> = question.scenarios.iter().map(|one| one.name.as_str()).collect();
    let word = match (died, not == runs) {
        (_, true) => output.paint(Tone::Bad, "no start"),
        (0, _) => output.paint(Tone::Good, "survives"),
        _ => output.paint(Tone::Bad, "crashes"),
    };
    let mut out = format!("{word}  {}  ", names.join(", "));
    let values: Vec<String> = question.axes.iter().map(axis_words).collect();
    let seeds = match question.seeds_each() {
        1 => "1 seed".to_owned(),
        n => format!("{} seeds", group_thousands(n)),
    };
    let _ = write!(out, "{}", values.into_iter().chain([seeds]).collect::<Vec<_>>().join(" x "));
    let _ = write!(out, ": {} of {} runs die", group_thousands(died), group_thousands(runs));
    if not > 0 {
        let _ = write!(out, ", {} do not start", group_thousands(not));
    }
    let how = question.set.iter().rev().find_map(|text| text.strip_prefix("neighbours="));
    if let Some(how) = how.filter(|how| *how != "drawn") {
        let _ = write!(out, "; neighbours at {how}");
    }
    if header.shard != Shard::WHOLE {
        let _ = write!(out, " (shard {})", header.shard);
    }
    wrap(&out, output.width(), 2) + "\n"
}

/// `16 values of fraction`.
fn axis_words(axis: &Axis) -> String {
    match axis.values() {
        [one] => format!("{} {one}", axis.name),
        all => format!("{} values of {}", group_thousands(all.len() as u64), axis.name),
    }
}

/// Why values do not start, each reason once.
fn not_started(question: &Question, answer: &Answer<'_>) -> Vec<answers::Line> {
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for group in answer.groups.iter().filter(|group| !group.starts()) {
        let reason = group.reason().unwrap_or("no reason is given").to_owned();
        let kind = reason.split(':').next().unwrap_or_default().to_owned();
        let words = group.words(question, None);
        match told.iter_mut().find(|(there, _)| there.split(':').next() == Some(kind.as_str())) {
            Some((_, values)) => values.push(words),
            None => told.push((reason, vec![words])),
        }
    }
    let one = |(reason, values): (String, Vec<String>)| {
        let shown = match values.as_slice() {
            [one] => one.clone(),
            [first, .., last] => format!("{first} to {last} ({} values)", values.len()),
            [] => String::new(),
        };
        ("no start".to_owned(), format!("{shown}: {reason}"))
    };
    told.into_iter().map(one).collect()
}

/// Most rows of a table for people.
const MOST_ROWS: usize = 64;

/// One row for each combination of values, as many as are asked for.
pub fn table(header: &Header, answer: &Answer<'_>, output: &Output, most: usize) -> Table {
    let question = &header.question;
    let several = question.scenarios.len() > 1;
    let mut columns: Vec<(String, Align)> = Vec::new();
    if several {
        columns.push(("scenario".to_owned(), Align::Left));
    }
    for axis in &question.axes {
        columns.push((axis.name.clone(), align(axis.kind().column_kind())));
    }
    // With many swept columns there is no room for what one of them decides.
    let all = !several && question.axes.len() == 1;
    let fixed = FIGURES.iter().filter(|(_, always)| all || *always);
    columns.extend(fixed.map(|(name, _)| ((*name).to_owned(), Align::Right)));
    columns.push((String::new(), Align::Left));
    let mut table = table_of(&columns);
    for (at, group) in answer.groups.iter().enumerate().take(most) {
        let mut cells = Vec::new();
        if several {
            cells.extend(question.scenarios.get(group.scenario).map(|one| one.name.clone()));
        }
        let values = question.axes.iter().zip(&group.at);
        cells.extend(values.map(|(axis, at)| value_text(axis, *at).to_owned()));
        let shown = figures(group).into_iter().zip(FIGURES);
        cells.extend(shown.filter(|(_, (_, always))| all || *always).map(|(cell, _)| cell));
        cells.push(mark(answer, at, group, output));
        table.row(cells);
    }
    table
}

/// Figures of a table, and whether they are always shown.
const FIGURES: [(&str, bool); 8] = [
    ("died", true),
    ("chance, 95 %", true),
    ("margin", true),
    ("left", false),
    ("pool", false),
    ("answered", true),
    ("tokens/s", true),
    ("TTFT ms", true),
];

/// What stands behind a row.
fn mark(answer: &Answer<'_>, at: usize, group: &Group<'_>, output: &Output) -> String {
    let mut marks = Vec::new();
    if group.starts() && group.died == group.runs() {
        marks.push(output.paint(Tone::Bad, "dies"));
    } else if group.starts() && group.died > 0 {
        marks.push(output.paint(Tone::Close, "some die"));
    }
    if answer.front.get(at) == Some(&true) {
        marks.push("*".to_owned());
    }
    marks.join(" ")
}

/// The figures of a group, in the order of [`FIGURES`].
fn figures(group: &Group<'_>) -> [String; 8] {
    if !group.starts() {
        let mut none: [String; 8] = Default::default();
        "no start".clone_into(&mut none[0]);
        return none;
    }
    let gib = |value: Option<i64>| {
        value.map_or_else(String::new, |n| format!("{:.2}", n as f64 / GIB as f64))
    };
    let count = |value: Option<i64>| {
        value.and_then(|n| u64::try_from(n).ok()).map_or_else(String::new, group_thousands)
    };
    let least = |name: &str| group.least(name).map(|(value, _)| value);
    let Chance { low, high, .. } = group.chance();
    let low = percent(low);
    let rate = group.median("throughput_output_milli_per_s").map(|milli| (milli + 500) / 1000);
    let ttft = group.median("ttft_p99_ns").map(|ns| (ns + 500_000) / 1_000_000);
    [
        format!("{} of {}", group_thousands(group.died), group_thousands(group.runs())),
        format!("{} to {}", low.trim_end_matches(" %"), percent(high)),
        gib(least("margin_bytes")),
        gib(least("free_after_graphs_bytes")),
        count(least("pool_tokens")),
        answered(group),
        count(rate),
        count(ttft),
    ]
}

/// The part of the requests that the runs that lived answered.
fn answered(group: &Group<'_>) -> String {
    let lived = || group.rows.iter().filter(|row| row.fate() == Fate::Lived);
    let sum = |name: &str| lived().filter_map(|row| row.int(name)).sum::<i64>();
    match sum("arrived_requests") {
        0 => String::new(),
        arrived => percent(sum("finished_requests") as f64 / arrived as f64),
    }
}

/// `13.9 %`; small ones with more digits.
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    match value {
        0.0 => "0 %".to_owned(),
        value if value >= 99.95 && share < 1.0 => format!("{value:.2} %"),
        100.0 => "100 %".to_owned(),
        value if value < 0.01 => format!("{value:.4} %"),
        value if value < 0.1 => format!("{value:.3} %"),
        value if value < 1.0 => format!("{value:.2} %"),
        value => format!("{value:.1} %"),
    }
}

/// The values that nothing beats, each with what it weighs.
fn front(question: &Question, answer: &Answer<'_>, output: &Output) -> String {
    if answer.front.is_empty() {
        return String::new();
    }
    let names: Vec<String> = answer.objectives.iter().map(objective_words).collect();
    let names = names.join(", ");
    let text = format!(
        "  * pareto: nothing that was swept is as good in all of {names}, and better in one"
    );
    let mut out = wrap(&text, output.width(), 4) + "\n";
    let mut columns: Vec<(String, Align)> = vec![("  values".to_owned(), Align::Left)];
    let name = |one: &Objective| {
        let (name, unit, _) = unit_of(&one.name);
        if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
    };
    columns.extend(answer.objectives.iter().map(|one| (name(one), Align::Right)));
    let mut table = table_of(&columns);
    for (group, _) in answer.groups.iter().zip(&answer.front).filter(|(_, is_in)| **is_in) {
        let mut words = group.words(question, None);
        if question.scenarios.len() > 1 {
            let name = question.scenarios.get(group.scenario).map_or("", |one| one.name.as_str());
            words = format!("{name}: {words}");
        }
        let mut cells = vec![format!("  {words}")];
        cells.extend(answer.objectives.iter().map(|one| objective_value(one, group)));
        table.row(cells);
    }
    out.push_str(&table.human());
    out
}

/// The name of a column without its unit, the unit for people, and what a value is divided by.
fn unit_of(column: &str) -> (&str, &'static str, f64) {
    let units = [
        ("_milli_per_s", "/s", 1e3),
        ("_ns", "ms", 1e6),
        ("_bytes", "GiB", GIB as f64),
        ("_ppm", "%", 1e4),
    ];
    let found = units
        .into_iter()
        .find_map(|(end, unit, scale)| Some((column.strip_suffix(end)?, unit, scale)));
    found.unwrap_or((column, "", 1.0))
}

fn objective_words(objective: &Objective) -> String {
    let way = match objective.better {
        Better::Higher => "more",
        Better::Lower => "less",
    };
    format!("{} ({way})", unit_of(&objective.name).0)
}

fn objective_value(objective: &Objective, group: &Group<'_>) -> String {
    let Some(value) = objective.value(group) else { return "-".to_owned() };
    if objective.name == CRASH {
        return percent(value);
    }
    let (_, unit, scale) = unit_of(&objective.name);
    match unit {
        "GiB" | "%" => format!("{:.2}", value / scale),
        "/s" => format!("{:.1}", value / scale),
        _ => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", group_thousands((value.abs() / scale).round() as u64))
        }
    }
}
