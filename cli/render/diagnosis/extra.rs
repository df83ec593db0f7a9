//! What was asked for besides: a plan beside the log, and the scenario files that were written.

use super::View;
use crate::{
    commands::diagnose::{Emission, Written},
    output::{Output, Tone},
    render::{
        table::{Align, Table},
        text::wrap,
    },
};
use plimsoll_diagnosis::against::{Agrees, Comparison, FromLog, Quantity, Row, Span};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// For people: the comparison as a table with what it says, then a line a file.
pub(super) fn human(view: &View<'_>, output: &Output) -> String {
    let mut out = String::new();
    let width = output.width();
    if let Some(comparison) = view.comparison {
        let _ = write!(out, "\n{}", table(comparison).human());
        let (tone, word) = match &comparison.departure {
            Some(_) => (Tone::Close, "left the plan"),
            None => (Tone::Good, "as planned"),
        };
        let line = format!("{}: {}", output.paint(tone, word), says(comparison));
        let _ = writeln!(out, "{}", wrap(&line, width, 6));
    }
    for line in written(view.emission) {
        let _ = writeln!(out, "{}", wrap(&line, width, 6));
    }
    out
}

/// As Markdown.
pub(super) fn markdown(view: &View<'_>) -> String {
    let mut out = String::new();
    if let Some(comparison) = view.comparison {
        let _ = writeln!(out, "\n{}\n- {}", table(comparison).markdown(), says(comparison));
    }
    for line in written(view.emission) {
        let _ = writeln!(out, "- {line}");
    }
    out
}

/// What the first figure outside of the plan says.
fn says(comparison: &Comparison) -> String {
    match &comparison.departure {
        Some(departure) => format!("{}: {}", departure.name, departure.says),
        None => format!("what the log prints lies within the {}", comparison.kind),
    }
}

fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        ("figure", Align::Left),
        (comparison.kind, Align::Right),
        ("interval", Align::Left),
        ("log", Align::Right),
        ("difference", Align::Right),
        ("", Align::Left),
        ("from", Align::Left),
    ]);
    for row in &comparison.rows {
        let mid = |span: &Span| span.mid.to_string();
        let signed = |difference: &Quantity| match difference.to_string() {
            text if text.starts_with('-') => text,
            text => format!("+{text}"),
        };
        table.row(vec![
            row.name.to_owned(),
            row.planned.as_ref().map(mid).unwrap_or_default(),
            row.planned.as_ref().map(interval).unwrap_or_default(),
            row.logged.as_ref().map(|logged| mid(&logged.span)).unwrap_or_default(),
            row.difference.as_ref().map(signed).unwrap_or_default(),
            if row.agrees == Agrees::Unknown { "" } else { row.agrees.name() }.to_owned(),
            row.logged.as_ref().map(|logged| logged.place.clone()).unwrap_or_default(),
        ]);
    }
    table
}

fn interval(span: &Span) -> String {
    if span.low == span.high { String::new() } else { format!("{} to {}", span.low, span.high) }
}

/// A line a file: where it is, what its run showed, what of the log it does not show.
fn written(emission: Option<&Emission>) -> Vec<String> {
    let Some(emission) = emission else { return Vec::new() };
    let mut lines = Vec::new();
    for Written { path, file } in &emission.written {
        let claim = if file.differs.is_empty() { "wrote" } else { "wrote, not claimed," };
        lines.push(format!("{claim} {}: {}", path.display(), file.shows));
        lines.extend(file.differs.iter().map(|differs| format!("      differs: {differs}")));
    }
    lines.extend(emission.unfixed.as_ref().map(|why| format!("no fixed.yaml: {why}")));
    lines
}

/// The comparison for machines; null when none was asked for.
pub(super) fn comparison(view: &View<'_>) -> Value {
    view.comparison.map_or(Value::Null, |comparison| {
        let rows: Vec<Value> = comparison.rows.iter().map(row).collect();
        let departure = comparison.departure.as_ref().map(|departure| {
            json!({
                "name": departure.name,
                "stage": departure.stage.name(),
                "says": departure.says,
            })
        });
        json!({ "kind": comparison.kind, "rows": rows, "departure": departure })
    })
}

fn row(row: &Row) -> Value {
    let logged = row
        .logged
        .as_ref()
        .map(|FromLog { span: value, place }| json!({ "value": span(value), "place": place }));
    json!({
        "name": row.name,
        "stage": row.stage.name(),
        "unit": unit(row),
        "planned": row.planned.as_ref().map(span),
        "logged": logged,
        "difference": row.difference.as_ref().map(quantity),
        "agrees": row.agrees.name(),
    })
}

/// What the figures of a row are counted in.
fn unit(row: &Row) -> &'static str {
    let logged = row.logged.as_ref().map(|logged| &logged.span);
    match row.planned.as_ref().or(logged).map(|span| &span.mid) {
        Some(Quantity::Bytes(_)) => "bytes",
        Some(Quantity::Count(_)) => "count",
        Some(Quantity::Number(_)) => "number",
        Some(Quantity::Text(_)) | None => "text",
    }
}

fn span(span: &Span) -> Value {
    json!({ "low": quantity(&span.low), "mid": quantity(&span.mid), "high": quantity(&span.high) })
}

fn quantity(quantity: &Quantity) -> Value {
    match quantity {
        Quantity::Bytes(n) | Quantity::Count(n) => json!(n),
        Quantity::Number(x) => json!(x),
        Quantity::Text(text) => json!(text),
    }
}

/// The files for machines; null when none were asked for.
pub(super) fn emission(view: &View<'_>) -> Value {
    view.emission.map_or(Value::Null, |emission| {
        let files = emission.written.iter().map(|Written { path, file }| {
            json!({
                "path": path.display().to_string(),
                "shows": file.shows,
                "claimed": file.differs.is_empty(),
                "differs": file.differs,
            })
        });
        json!({ "files": files.collect::<Vec<_>>(), "unfixed": emission.unfixed })
    })
}
