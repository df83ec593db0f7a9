//! Schemas of `diagnose` and `explain`.

use super::{list_of, map_of, number, object, or_null, signed, text, truth, whole};
use plimsoll_diagnosis::{
    Cause, Confidence, Direction, Level, Move, Phase, codes::CODES, pages::PageKind,
};
use serde_json::{Value, json};

/// A printed amount with the interval that its digits allow; budgets may be below zero.
fn amount() -> Value {
    object(json!({ "low_bytes": signed(), "mid_bytes": signed(), "high_bytes": signed() }))
}

fn names(names: impl Iterator<Item = &'static str>) -> Value {
    json!({ "enum": names.collect::<Vec<_>>() })
}

fn causes() -> Value {
    names(Cause::ALL.iter().map(|cause| cause.name()))
}

pub(super) fn diagnosis() -> Value {
    let levels = || names(Level::ALL.iter().map(|level| level.name()));
    let fact = object(json!({ "name": text(), "value": text(), "source": text() }));
    object(json!({
        "schema": { "const": "plimsoll.diagnosis/1" },
        "verdict": text(),
        "level": or_null(levels()),
        "code": or_null(names(CODES.iter().map(|code| code.code))),
        "files": list_of(text()),
        "log": log(),
        "facts": list_of(fact),
        "findings": list_of(finding()),
        "ledgers": list_of(rank()),
        "capacity": or_null(capacity()),
        "relaunch": or_null(object(json!({
            "baseline": amount(),
            "line": whole(),
            "ranks": list_of(text()),
        }))),
        "command": or_null(text()),
        "missing": list_of(text()),
        "against": or_null(against()),
        "emitted": or_null(emitted()),
    }))
}

fn against() -> Value {
    let value = || json!({ "anyOf": [signed(), number(), text()] });
    let span = || object(json!({ "low": value(), "mid": value(), "high": value() }));
    let row = object(json!({
        "name": text(),
        "stage": text(),
        "unit": { "enum": ["bytes", "count", "number", "text"] },
        "planned": or_null(span()),
        "logged": or_null(object(json!({ "value": span(), "place": text() }))),
        "difference": or_null(value()),
        "agrees": { "enum": ["within", "outside", "unknown"] },
    }));
    let departure = object(json!({ "name": text(), "stage": text(), "says": text() }));
    object(json!({
        "kind": { "enum": ["plan", "scenario", "recording"] },
        "rows": list_of(row),
        "departure": or_null(departure),
    }))
}

fn emitted() -> Value {
    let file = object(json!({
        "path": text(),
        "shows": text(),
        "claimed": truth(),
        "differs": list_of(text()),
    }));
    object(json!({ "files": list_of(file), "unfixed": or_null(text()) }))
}

fn log() -> Value {
    object(json!({
        "lines": whole(),
        "bytes": whole(),
        "starts": whole(),
        "ranks": list_of(text()),
        "lines_left_out": whole(),
        "oddities": list_of(text()),
    }))
}

fn finding() -> Value {
    let moves = || names(Move::ALL.iter().map(|change| change.name()));
    let lever = object(json!({
        "flag": text(),
        "change": moves(),
        "value": or_null(text()),
        "gives": or_null(text()),
    }));
    let no_help = object(json!({ "flag": text(), "change": or_null(moves()), "why": text() }));
    let evidence = object(json!({ "file": whole(), "line": whole(), "text": text() }));
    object(json!({
        "code": names(CODES.iter().map(|code| code.code)),
        "level": names(Level::ALL.iter().map(|level| level.name())),
        "cause": causes(),
        "also": list_of(causes()),
        "phase": names(Phase::ALL.iter().map(|phase| phase.name())),
        "confidence": names(Confidence::ALL.iter().map(|confidence| confidence.name())),
        "headline": text(),
        "because": text(),
        "arithmetic": list_of(text()),
        "numbers": map_of(number()),
        "fraction": names(Direction::ALL.iter().map(|direction| direction.name())),
        "feasible": or_null(object(json!({ "above": number(), "below": number() }))),
        "help": list_of(lever),
        "no_help": list_of(no_help),
        "evidence": list_of(evidence),
    }))
}

fn rank() -> Value {
    let source = object(json!({
        "kind": { "enum": ["printed", "solved", "at_most", "not_printed"] },
        "rule": or_null(text()),
        "file": or_null(whole()),
        "line": or_null(whole()),
    }));
    let row = object(json!({
        "account": text(),
        "detail": or_null(text()),
        "interval": or_null(amount()),
        "source": source,
    }));
    let stage = object(json!({
        "stage": text(),
        "whole": text(),
        "interval": amount(),
        "rows": list_of(row),
        "closes_to": or_null(amount()),
    }));
    let what_if = object(json!({
        "flag": text(),
        "fraction": number(),
        "fraction_half": number(),
        "scale": amount(),
        "pool": amount(),
        "pool_tokens": or_null(whole()),
        "left": or_null(amount()),
    }));
    object(json!({ "rank": text(), "stages": list_of(stage), "what_if": or_null(what_if) }))
}

fn capacity() -> Value {
    let count = || or_null(whole());
    let share = || or_null(number());
    object(json!({
        "pool_tokens": count(),
        "pool": or_null(amount()),
        "peak_usage": share(),
        "peak_tokens": count(),
        "peak_running": count(),
        "largest_prefill_tokens": count(),
        "retractions": whole(),
        "left": or_null(amount()),
        "need": or_null(amount()),
        "flag": or_null(text()),
        "fraction": share(),
        "floor": share(),
        "ceiling": share(),
        "next_step": or_null(object(json!({
            "fraction": number(),
            "pool": amount(),
            "low_tokens": count(),
            "high_tokens": count(),
            "left": or_null(amount()),
        }))),
        "raising": { "enum": ["unknown", "no_reason", "full_only", "allowed"] },
    }))
}

pub(super) fn explain() -> Value {
    let section = object(json!({ "heading": text(), "markdown": text() }));
    let page = object(json!({
        "key": text(),
        "kind": names(PageKind::ALL.iter().map(|kind| kind.name())),
        "title": text(),
        "cause": or_null(causes()),
        "sections": list_of(section),
    }));
    object(json!({ "schema": { "const": "plimsoll.explain/1" }, "pages": list_of(page) }))
}
