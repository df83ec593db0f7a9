//! A workload in figures, for people and for machines.

use super::table::{Align, Table, csv_cell};
use crate::args::Format;
use plimsoll_core::units::group_thousands;
use plimsoll_ingest::workload::Distribution;
use plimsoll_replay::workload::{Told, describe::Described, presets};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The presets, a line each.
pub fn presets() -> String {
    let mut table = Table::new(&[("preset", Align::Left), ("what it is", Align::Left)]);
    for preset in presets::NAMES.iter().filter_map(|name| presets::named(name)) {
        table.row(vec![preset.name.to_owned(), preset.about.to_owned()]);
    }
    table.human()
}

/// One block a part.
pub fn human(parts: &[Described]) -> String {
    let blocks: Vec<String> = parts.iter().map(block).collect();
    blocks.join("\n")
}

fn block(part: &Described) -> String {
    let summary = &part.summary;
    let mut out = format!("{}: {} requests", part.name, group_thousands(summary.requests));
    if let Some(told) = &part.told {
        let _ = write!(out, " of {} ({})", told.file, told.format);
    }
    out.push_str("\n\n");
    let columns = ["mean", "p50", "p90", "p95", "p99", "max"];
    let mut header = vec![("tokens", Align::Left)];
    header.extend(columns.map(|name| (name, Align::Right)));
    let mut table = Table::new(&header);
    table.row(row("in", &summary.input));
    table.row(row("out", &summary.output));
    out.push_str(&table.human());
    out.push('\n');
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<7} {text}");
    };
    if let Some(rate) = part.rate() {
        line("rate", rate);
    }
    if summary.waiting > 0 {
        line("waiting", format!("{} come when others allow it", group_thousands(summary.waiting)));
    }
    if let Some(share) = summary.prefix_share {
        let of = match &part.told {
            Some(told) => format!("blocks of {} tokens", told.block_size),
            None => "tokens".to_owned(),
        };
        line(
            "shared",
            format!("{:.1} % of the {of} of prompts, in an endless prefix cache", share * 100.0),
        );
    }
    if let Some(told) = &part.told {
        line("sha256", told.sha256.clone());
        for dropped in &told.dropped {
            line("dropped", dropped.to_string());
        }
    }
    for note in &part.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn row(name: &str, lengths: &Distribution) -> Vec<String> {
    let Distribution { mean, p50, p90, p95, p99, max } = *lengths;
    let mut row = vec![name.to_owned(), format!("{mean:.1}")];
    row.extend([p50, p90, p95, p99, max].map(group_thousands));
    row
}

/// `plimsoll.workload/1`.
pub fn json(parts: &[Described]) -> Value {
    let parts: Vec<Value> = parts.iter().map(part).collect();
    json!({ "schema": "plimsoll.workload/1", "parts": parts })
}

fn part(part: &Described) -> Value {
    let summary = &part.summary;
    json!({
        "name": part.name,
        "requests": summary.requests,
        "waiting": summary.waiting,
        "span_ns": summary.span.0,
        "rate_per_s": summary.rate,
        "gap_cv": summary.gap_cv,
        "input_tokens": lengths(&summary.input),
        "output_tokens": lengths(&summary.output),
        "prefix_share": summary.prefix_share,
        "file": part.told.as_ref().map(file),
        "notes": part.notes,
    })
}

fn file(told: &Told) -> Value {
    let dropped: Vec<Value> = told
        .dropped
        .iter()
        .map(|dropped| {
            json!({
                "reason": dropped.reason,
                "count": dropped.count,
                "lines": dropped.lines,
                "first": dropped.first.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    json!({
        "path": told.file,
        "format": told.format,
        "block_size_tokens": (told.block_size > 0).then_some(told.block_size),
        "sha256": told.sha256,
        "dropped": dropped,
    })
}

fn lengths(lengths: &Distribution) -> Value {
    let Distribution { mean, p50, p90, p95, p99, max } = *lengths;
    json!({ "mean": mean, "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": max })
}

/// One line a part.
pub fn table(parts: &[Described], format: Format) -> String {
    let columns =
        ["part", "requests", "rate_per_s", "gap_cv", "input_mean", "output_mean", "prefix_share"];
    let cells = |part: &Described| {
        let summary = &part.summary;
        let number =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
        vec![
            part.name.clone(),
            summary.requests.to_string(),
            number(summary.rate),
            number(summary.gap_cv),
            format!("{:.2}", summary.input.mean),
            format!("{:.2}", summary.output.mean),
            number(summary.prefix_share),
        ]
    };
    if format == Format::Md {
        let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
        parts.iter().for_each(|part| table.row(cells(part)));
        return table.markdown();
    }
    let mut out = format!("{}\n", columns.join(","));
    for part in parts {
        let cells: Vec<String> = cells(part).iter().map(|cell| csv_cell(cell)).collect();
        let _ = writeln!(out, "{}", cells.join(","));
    }
    out
}
