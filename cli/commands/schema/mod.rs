//! `schema`: JSON schemas of what is read and written. Results always have all of their keys; what
//! does not apply is null.

mod bench;
mod cuda;
mod diagnosis;
mod profile;
mod relaunch;
mod serve;
mod sweep;
mod watch;

use crate::{
    args::{SchemaArgs, SchemaOf},
    exit::{self, Failure},
    output::Output,
};
use plimsoll_core::engine::metrics::METRICS;
use serde_json::{Map, Value, json};

/// Prints one schema.
pub fn schema(args: &SchemaArgs, output: &Output) -> Result<u8, Failure> {
    let schema = match args.of {
        SchemaOf::Scenario => plimsoll_replay::scenario::json_schema(),
        SchemaOf::Plan => document(plan()),
        SchemaOf::Diagnosis => document(diagnosis::diagnosis()),
        SchemaOf::Explain => document(diagnosis::explain()),
        SchemaOf::Run => document(run()),
        SchemaOf::Profile => document(profile::profile()),
        SchemaOf::Sweep => document(sweep::document()),
        SchemaOf::SweepRows => document(sweep::line()),
        SchemaOf::Workload => document(workload()),
        SchemaOf::Doctor => document(doctor()),
        SchemaOf::BeforeRelaunch => document(relaunch::before_relaunch()),
        SchemaOf::Bench => document(bench::bench()),
        SchemaOf::Serve => document(serve::serve()),
        SchemaOf::Watch => document(watch::summary()),
        SchemaOf::WatchRecording => document(watch::line()),
        SchemaOf::Replay => document(replay()),
        SchemaOf::Diff => document(diff()),
    };
    output.write(&format!("{schema:#}\n"))?;
    Ok(exit::OK)
}

fn document(mut schema: Value) -> Value {
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema
}

/// An object with these keys, all of them and no others.
fn object(properties: Value) -> Value {
    let keys: Vec<String> =
        properties.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
    json!({
        "type": "object",
        "properties": properties,
        "required": keys,
        "additionalProperties": false,
    })
}

fn map_of(value: Value) -> Value {
    json!({ "type": "object", "additionalProperties": value })
}

fn list_of(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn truth() -> Value {
    json!({ "type": "boolean" })
}

/// Bytes or tokens.
fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// Bytes below zero are over the line.
fn signed() -> Value {
    json!({ "type": "integer" })
}

fn number() -> Value {
    json!({ "type": "number" })
}

fn estimate() -> Value {
    object(json!({ "low_bytes": whole(), "mid_bytes": whole(), "high_bytes": whole() }))
}

fn why() -> Value {
    object(json!({
        "tag": { "enum": ["measured", "computed", "calibrated", "assumed"] },
        "rule": text(),
        "source": text(),
        "inputs": map_of(text()),
    }))
}

fn ledger() -> Value {
    let row = object(json!({
        "account": text(),
        "held_bytes": whole(),
        "interval": estimate(),
        "why": why(),
    }));
    object(json!({ "capacity_bytes": whole(), "rows": list_of(row) }))
}

/// Bytes and counts are integers, fractions are numbers, lists are integers.
fn figures() -> Value {
    let value = json!({ "anyOf": [signed(), number(), text(), list_of(whole())] });
    map_of(object(json!({ "value": value, "why": why() })))
}

fn refusal() -> Value {
    let remedy = object(json!({
        "flag": text(),
        "direction": { "enum": ["raise", "lower", "set", "remove", "act"] },
        "value": or_null(text()),
        "effect": text(),
    }));
    or_null(object(json!({
        "code": text(),
        "message": text(),
        "engine_message": or_null(text()),
        "remedies": list_of(remedy),
    })))
}

fn run() -> Value {
    let claim = object(json!({
        "path": text(),
        "expected": text(),
        "got": text(),
        "holds": truth(),
    }));
    object(json!({
        "schema": { "const": "plimsoll.run/1" },
        "scenario": text(),
        "seed": whole(),
        "passed": truth(),
        "outcome": text(),
        "headline": text(),
        "short": or_null(text()),
        "help": list_of(text()),
        "refusal": refusal(),
        "claims": list_of(claim),
        "figures": figures(),
        "measures": measures(),
        "metrics": or_null(metrics()),
        "ledger": ledger(),
        "moment": or_null(moment()),
        "timeline": or_null(timeline()),
        "notes": list_of(text()),
        "digests": object(json!({ "decisions": text(), "full": text() })),
    }))
}

/// What a run produced, by the names that scenarios claim; the unit last.
fn measures() -> Value {
    map_of(json!({ "anyOf": [signed(), number(), text()] }))
}

/// Metrics of a run under load; null where a metric has no value.
fn metrics() -> Value {
    let names = METRICS.iter().map(|spec| spec.full_name).chain(["least_free_bytes"]);
    let all = names.map(|name| (name.to_owned(), or_null(whole())));
    object(Value::Object(all.collect::<Map<_, _>>()))
}

fn moment() -> Value {
    let rank = object(json!({
        "rank": whole(),
        "capacity_bytes": or_null(whole()),
        "held_bytes": map_of(whole()),
    }));
    object(json!({
        "when": text(),
        "step": or_null(whole()),
        "at_ns": or_null(whole()),
        "used_tokens": or_null(whole()),
        "running": or_null(whole()),
        "waiting": or_null(whole()),
        "ranks": list_of(rank),
    }))
}

fn timeline() -> Value {
    let point = object(json!({
        "from_ns": whole(),
        "to_ns": whole(),
        "doing": { "enum": ["prefill", "decode", "idle"] },
        "others_bytes": whole(),
        "leaked_bytes": whole(),
        "live_bytes": whole(),
        "cached_bytes": whole(),
        "free_bytes": whole(),
        "used_tokens": whole(),
        "running": whole(),
        "waiting": whole(),
    }));
    object(json!({
        "rank": whole(),
        "capacity_bytes": whole(),
        "fixed_bytes": map_of(whole()),
        "pool_tokens": whole(),
        "end_ns": whole(),
        "points": list_of(point),
    }))
}

fn replay() -> Value {
    object(json!({
        "schema": { "const": "plimsoll.replay/1" },
        "recording": { "enum": ["whole", "interrupted", "cut"] },
        "cut_at_byte": or_null(whole()),
        "decisions": whole(),
        "same_decisions": truth(),
        "first": first(),
        "moment": or_null(moment()),
        "timeline": or_null(timeline()),
    }))
}

fn plan() -> Value {
    let names = || list_of(text());
    object(json!({
        "schema": { "const": "plimsoll.plan/1" },
        "verdict": { "enum": ["ok", "low", "oom", "refused"] },
        "headline": text(),
        "engine": object(json!({ "name": text(), "version": text(), "program": text() })),
        "model": object(json!({ "name": text(), "origin": text() })),
        "device": object(json!({ "name": text(), "ranks": whole() })),
        "refusal": refusal(),
        "pool": object(json!({
            "tokens": or_null(whole()),
            "low_tokens": or_null(whole()),
            "high_tokens": or_null(whole()),
            "log_tokens": or_null(whole()),
            "full_context_requests": or_null(number()),
            "context_len_tokens": or_null(whole()),
        })),
        "left_after_graphs": or_null(estimate()),
        "need": or_null(object(json!({ "step": text(), "interval": estimate(), "why": why() }))),
        "prefill": or_null(prefill()),
        "allocator_need_bytes": or_null(whole()),
        "killed_by": or_null(killed_by()),
        "killed_by_on_demand": or_null(killed_by()),
        "margin_bytes": or_null(signed()),
        "min_margin": or_null(object(json!({ "least_bytes": whole(), "holds": truth() }))),
        "window": window(),
        "advice": advice(),
        "basis": basis(),
        "engine_lines": names(),
        "notes": names(),
        "unknown": names(),
        "not_modelled": names(),
        "unknown_flags": names(),
        "figures": figures(),
        "ledger": ledger(),
    }))
}

fn window() -> Value {
    let number = || or_null(number());
    object(json!({
        "flag": text(),
        "used": number(),
        "floor": number(),
        "ceiling": number(),
        "floor_sure": number(),
        "ceiling_sure": number(),
    }))
}

fn killed_by() -> Value {
    let mixes = ["one_prompt", "short_prompts", "cached_prefix", "sampling", "input_logprobs"];
    object(json!({
        "mix": { "enum": mixes },
        "requests": whole(),
        "tokens": whole(),
        "prefix_tokens": whole(),
        "buffer": text(),
        "requested_bytes": whole(),
        "free_bytes": whole(),
        "allocated_bytes": whole(),
    }))
}

fn prefill() -> Value {
    let dies = object(json!({
        "buffer": text(),
        "requested_bytes": whole(),
        "free_bytes": whole(),
        "allocated_bytes": whole(),
    }));
    object(json!({
        "served": truth(),
        "reserved_bytes": or_null(whole()),
        "dies": or_null(dies),
    }))
}

fn advice() -> Value {
    let at = || {
        or_null(object(json!({
            "fraction": number(),
            "pool_tokens": or_null(whole()),
            "left_bytes": signed(),
        })))
    };
    object(json!({
        "action": { "enum": ["keep", "lower", "raise", "no_fraction", "none"] },
        "pass": at(),
        "automatic": at(),
        "next_step": at(),
        "smaller_chunk": or_null(object(json!({
            "chunked_prefill_size_tokens": whole(),
            "need_bytes": whole(),
            "prompt_limit_tokens": or_null(whole()),
        }))),
        "more_ranks": or_null(object(json!({
            "tp": whole(),
            "pool_tokens": or_null(whole()),
            "left_bytes": or_null(whole()),
        }))),
        "own_fraction": at(),
        "command": or_null(text()),
    }))
}

fn basis() -> Value {
    let figure = object(json!({ "interval": estimate(), "why": why() }));
    let names = ["free_before_load", "load", "draft_weights", "workspaces", "graphs"];
    let figures = names.iter().map(|name| ((*name).to_owned(), figure.clone()));
    object(Value::Object(figures.collect::<Map<_, _>>()))
}

fn workload() -> Value {
    let lengths = || {
        object(json!({
            "mean": number(),
            "p50": whole(),
            "p90": whole(),
            "p95": whole(),
            "p99": whole(),
            "max": whole(),
        }))
    };
    let dropped = object(
        json!({ "reason": text(), "count": whole(), "lines": list_of(whole()), "first": or_null(text()) }),
    );
    let file = object(json!({
        "path": text(),
        "format": text(),
        "block_size_tokens": or_null(whole()),
        "sha256": text(),
        "dropped": list_of(dropped),
    }));
    let part = object(json!({
        "name": text(),
        "requests": whole(),
        "waiting": whole(),
        "span_ns": whole(),
        "rate_per_s": or_null(number()),
        "gap_cv": or_null(number()),
        "input_tokens": lengths(),
        "output_tokens": lengths(),
        "prefix_share": or_null(number()),
        "file": or_null(file),
        "notes": list_of(text()),
    }));
    object(json!({ "schema": { "const": "plimsoll.workload/1" }, "parts": list_of(part) }))
}

fn doctor() -> Value {
    let error = || object(json!({ "error": text() }));
    let host = object(json!({
        "total_bytes": whole(),
        "available_bytes": or_null(whole()),
        "headroom_bytes": or_null(whole()),
        "shm_used_bytes": or_null(whole()),
        "cgroup_limit_bytes": or_null(whole()),
        "numa_nodes": whole(),
    }));
    let smi = object(json!({
        "index": whole(),
        "name": text(),
        "total_mib": or_null(whole()),
        "used_mib": or_null(whole()),
        "free_mib": or_null(whole()),
    }));
    object(json!({
        "schema": { "const": "plimsoll.doctor/2" },
        "host": { "anyOf": [host, error()] },
        "nvidia_smi": { "anyOf": [list_of(smi), error()] },
        "cuda": or_null(cuda::cuda()),
    }))
}

fn diff() -> Value {
    object(json!({
        "schema": { "const": "plimsoll.diff/1" },
        "same_decisions": truth(),
        "same_measured": truth(),
        "first": first(),
    }))
}

/// The first difference of two logs.
fn first() -> Value {
    let side = || or_null(text());
    let field = object(json!({ "name": text(), "a": side(), "b": side() }));
    or_null(object(json!({
        "record": or_null(whole()),
        "fields": list_of(field),
        "before": list_of(text()),
        "a": list_of(text()),
        "b": list_of(text()),
    })))
}
