//! JSON schemas of a sweep: its document, and the lines of a file of rows.

use super::{list_of, number, object, or_null, signed, text, truth, whole};
use plimsoll_sweep::{
    question::header::SCHEMA,
    row::{Kind, RESULTS, WHICH},
};
use serde_json::{Map, Value, json};

fn header() -> Value {
    object(json!({
        "schema": { "const": SCHEMA },
        "question": text(),
        "points": whole(),
        "shard": or_null(text()),
        "plimsoll": text(),
        "scenarios": list_of(object(json!({
            "name": text(),
            "sha256": text(),
            "seed": whole(),
        }))),
        "set": list_of(text()),
        "axes": list_of(object(json!({
            "name": text(),
            "paths": list_of(text()),
            "values": list_of(text()),
        }))),
        "seeds": or_null(text()),
        "inputs": list_of(object(json!({ "file": text(), "sha256": text() }))),
    }))
}

/// A row: the columns that every sweep has, and one for each swept path.
fn row() -> Value {
    let column = |kind: Kind| match kind {
        Kind::Int => signed(),
        Kind::Float => number(),
        Kind::Text => text(),
    };
    let which = WHICH.iter().map(|one| (one.name.to_owned(), column(one.kind)));
    let results = RESULTS.iter().map(|one| (one.name.to_owned(), or_null(column(one.kind))));
    let all: Map<String, Value> = which.chain(results).collect();
    let mut row = object(Value::Object(all));
    row["properties"]["outcome"] = text();
    row["additionalProperties"] = json!({ "anyOf": [number(), text()] });
    row
}

/// A line of a file of rows.
pub(super) fn line() -> Value {
    json!({ "anyOf": [header(), row()] })
}

/// The JSON of `sweep`.
pub(super) fn document() -> Value {
    let values =
        || json!({ "type": "object", "additionalProperties": { "anyOf": [number(), text()] } });
    let value = || json!({ "anyOf": [number(), text()] });
    let answer = object(json!({
        "scenario": text(),
        "others": text(),
        "over": text(),
        "survive_share": number(),
        "highest": or_null(value()),
        "highest_lived": or_null(whole()),
        "highest_runs": or_null(whole()),
        "crash_at_most": or_null(number()),
        "confidence": number(),
        "runs_needed": or_null(whole()),
        "shown": truth(),
        "first_that_fails": or_null(value()),
        "islands": list_of(value()),
        "one_step_below": or_null(number()),
        "two_steps_below": or_null(number()),
    }));
    let group = object(json!({
        "scenario": text(),
        "values": values(),
        "runs": whole(),
        "lived": whole(),
        "died": whole(),
        "not_started": whole(),
        "reason": or_null(text()),
        "crash_share": number(),
        "crash_low": number(),
        "crash_high": number(),
        "worst_margin_bytes": or_null(signed()),
        "worst_margin_index": or_null(whole()),
        "least_free_after_graphs_bytes": or_null(whole()),
        "least_pool_tokens": or_null(whole()),
        "median_throughput_output_milli_per_s": or_null(whole()),
        "median_ttft_p99_ns": or_null(whole()),
        "pareto": or_null(truth()),
    }));
    let objective = object(json!({ "name": text(), "better": { "enum": ["higher", "lower"] } }));
    object(json!({
        "schema": { "const": "plimsoll.sweep/1" },
        "question": header(),
        "answers": list_of(answer),
        "objectives": list_of(objective),
        "groups": list_of(group),
        "rows": list_of(row()),
    }))
}
