//! A diagnosis for machines. Every key is always there; what the log does not give is null.

use super::{View, extra, help};
use plimsoll_diagnosis::{
    Capacity, Evidence, Finding, Relaunch, Value as Number,
    reconstruct::{AtFraction, RankLedger, Row, Source, StageLedger, WhatIf},
};
use plimsoll_ingest::log::Amount;
use serde_json::{Map, Value, json};

/// The document.
pub fn machine(view: &View<'_>) -> Value {
    let report = view.report;
    let first = view.first();
    let facts = report.facts.iter();
    let facts: Vec<Value> = facts
        .map(|fact| json!({ "name": fact.name, "value": fact.value, "source": fact.source }))
        .collect();
    json!({
        "schema": "plimsoll.diagnosis/1",
        "verdict": report.verdict,
        "level": report.level().map(|level| level.name()),
        "code": first.map(|first| first.code),
        "files": view.names,
        "log": log(view),
        "facts": facts,
        "findings": list(&report.findings, finding),
        "ledgers": list(&report.ledgers, rank),
        "capacity": report.capacity.as_ref().map(capacity),
        "relaunch": report.relaunch.as_ref().map(relaunch),
        "command": help::command(view),
        "missing": report.missing,
        "against": extra::comparison(view),
        "emitted": extra::emission(view),
    })
}

fn list<T>(items: &[T], one: impl Fn(&T) -> Value) -> Value {
    items.iter().map(one).collect()
}

fn log(view: &View<'_>) -> Value {
    let log = &view.case.log;
    json!({
        "lines": log.lines,
        "bytes": log.bytes,
        "starts": log.starts,
        "ranks": log.ranks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "lines_left_out": log.events_left_out,
        "oddities": log.oddities,
    })
}

pub(super) fn finding(finding: &Finding) -> Value {
    let numbers = finding.numbers.iter().map(|number| {
        let value = match number.value {
            Number::Int(n) => json!(n),
            Number::Float(x) => json!(x),
        };
        (number.name.to_owned(), value)
    });
    let feasible = finding.feasible.map(|(above, below)| json!({ "above": above, "below": below }));
    json!({
        "code": finding.code,
        "level": finding.level.name(),
        "cause": finding.cause.name(),
        "also": finding.also.iter().map(|cause| cause.name()).collect::<Vec<_>>(),
        "phase": finding.phase.name(),
        "confidence": finding.confidence.name(),
        "headline": finding.headline,
        "because": finding.because,
        "arithmetic": finding.arithmetic,
        "numbers": numbers.collect::<Map<String, Value>>(),
        "fraction": finding.fraction.name(),
        "feasible": feasible,
        "help": list(&finding.help, |lever| json!({
            "flag": lever.flag,
            "change": lever.change.name(),
            "value": lever.value,
            "gives": lever.gives,
        })),
        "no_help": list(&finding.no_help, |no| json!({
            "flag": no.flag,
            "change": no.change.map(|change| change.name()),
            "why": no.why,
        })),
        "evidence": list(&finding.evidence, evidence),
    })
}

fn evidence(line: &Evidence) -> Value {
    json!({ "file": line.file, "line": line.line, "text": line.text })
}

/// A printed amount: below zero where an engine prints a budget below zero.
fn amount(amount: Amount) -> Value {
    json!({
        "low_bytes": amount.least(),
        "mid_bytes": amount.bytes,
        "high_bytes": amount.most(),
    })
}

fn rank(ledger: &RankLedger) -> Value {
    json!({
        "rank": ledger.rank.to_string(),
        "stages": list(&ledger.stages, stage),
        "what_if": ledger.what_if.as_ref().map(what_if),
    })
}

fn stage(ledger: &StageLedger) -> Value {
    json!({
        "stage": ledger.stage.name(),
        "whole": ledger.whole.name(),
        "interval": amount(ledger.bytes),
        "rows": list(&ledger.rows, row),
        "closes_to": ledger.closes_to.map(amount),
    })
}

fn row(row: &Row) -> Value {
    let (kind, text, place) = match &row.source {
        Source::Printed(place) => ("printed", None, Some(place)),
        Source::Solved(text) => ("solved", Some(text), None),
        Source::AtMost(text) => ("at_most", Some(text), None),
        Source::NotPrinted => ("not_printed", None, None),
    };
    json!({
        "account": row.account.name(),
        "detail": row.detail,
        "interval": row.bytes.map(amount),
        "source": {
            "kind": kind,
            "rule": text,
            "file": place.map(|place| place.file),
            "line": place.map(|place| place.line),
        },
    })
}

fn what_if(what_if: &WhatIf) -> Value {
    json!({
        "flag": what_if.flag,
        "fraction": what_if.fraction,
        "fraction_half": what_if.fraction_half,
        "scale": amount(what_if.scale),
        "pool": amount(what_if.pool),
        "pool_tokens": what_if.tokens,
        "left": what_if.left.map(amount),
    })
}

fn at_fraction(at: &AtFraction) -> Value {
    json!({
        "fraction": at.fraction,
        "pool": amount(at.pool),
        "low_tokens": at.tokens.map(|(low, _)| low),
        "high_tokens": at.tokens.map(|(_, high)| high),
        "left": at.left.map(amount),
    })
}

fn capacity(capacity: &Capacity) -> Value {
    json!({
        "pool_tokens": capacity.pool_tokens,
        "pool": capacity.pool.map(amount),
        "peak_usage": capacity.peak_usage,
        "peak_tokens": capacity.peak_tokens,
        "peak_running": capacity.peak_running,
        "largest_prefill_tokens": capacity.largest_prefill,
        "retractions": capacity.retractions,
        "left": capacity.left.map(amount),
        "need": capacity.need.map(amount),
        "flag": capacity.flag,
        "fraction": capacity.fraction,
        "floor": capacity.floor,
        "ceiling": capacity.ceiling,
        "next_step": capacity.next.as_ref().map(at_fraction),
        "raising": capacity.raising.name(),
    })
}

fn relaunch(relaunch: &Relaunch) -> Value {
    json!({
        "baseline": amount(relaunch.baseline),
        "line": relaunch.line,
        "ranks": relaunch.ranks.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
