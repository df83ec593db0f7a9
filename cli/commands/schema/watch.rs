//! JSON schemas of a watch: its summary, and the lines of its recording.

use super::{list_of, map_of, number, object, or_null, signed, text, whole};
use serde_json::{Value, json};

fn server() -> Value {
    json!({ "enum": ["sglang", "vllm"] })
}

fn memory() -> Value {
    json!({ "enum": ["nvidia_smi", "amdgpu", "host", "none"] })
}

fn ending() -> Value {
    json!({ "enum": ["done", "interrupted", "lost"] })
}

/// Numbers, truths and words by the engine's names.
fn settings() -> Value {
    map_of(json!({ "anyOf": [number(), text(), { "type": "boolean" }] }))
}

fn reading() -> Value {
    object(json!({
        "device": whole(),
        "free_bytes": whole(),
        "sample": whole(),
        "at_ms": whole(),
    }))
}

/// The JSON of `watch`.
pub(super) fn summary() -> Value {
    let heaviest = object(json!({
        "rank": text(),
        "by": { "enum": ["prefill_tokens_total", "prompt_tokens_total"] },
        "tokens": whole(),
        "from_ms": whole(),
        "to_ms": whole(),
        "least": or_null(reading()),
        "margin_bytes": or_null(signed()),
    }));
    let undercut = object(json!({ "first": reading(), "least": reading(), "samples": whole() }));
    let help = object(json!({
        "action": { "enum": ["keep", "lower", "raise", "look"] },
        "flag": or_null(text()),
        "value": or_null(text()),
        "text": text(),
    }));
    object(json!({
        "schema": { "const": "plimsoll.watch_summary/1" },
        "verdict": { "enum": ["ok", "undercut", "lost", "nothing"] },
        "headline": text(),
        "server": server(),
        "version": or_null(text()),
        "model": or_null(text()),
        "settings": settings(),
        "memory": memory(),
        "samples": whole(),
        "missed": whole(),
        "restarts": whole(),
        "span_ms": whole(),
        "ending": or_null(ending()),
        "min_free_bytes": or_null(whole()),
        "least": or_null(reading()),
        "margin_bytes": or_null(signed()),
        "undercut": or_null(undercut),
        "heaviest_prefill": or_null(heaviest),
        "devices": list_of(object(json!({
            "index": whole(),
            "first_free_bytes": whole(),
            "least": reading(),
            "last_free_bytes": whole(),
        }))),
        "ranks": map_of(rank_summary()),
        "help": list_of(help),
    }))
}

fn rank_summary() -> Value {
    object(json!({
        "capacity_tokens": or_null(whole()),
        "peak_usage": or_null(number()),
        "peak_held_tokens": or_null(whole()),
        "most_running_requests": or_null(whole()),
        "most_queued_requests": or_null(whole()),
        "retractions": or_null(whole()),
        "prefill_tokens": or_null(whole()),
        "output_tokens": or_null(whole()),
        "cache_hit_rate": or_null(number()),
    }))
}

/// A line of a recording: the header, or one of the others by its `kind`.
pub(super) fn line() -> Value {
    let device = object(json!({
        "index": whole(),
        "name": text(),
        "total_bytes": or_null(whole()),
    }));
    let header = object(json!({
        "schema": { "const": plimsoll_ingest::watch::recording::SCHEMA },
        "plimsoll": text(),
        "server": server(),
        "version": or_null(text()),
        "model": or_null(text()),
        "metrics": { "enum": ["on", "off"] },
        "interval_ms": whole(),
        "min_free_bytes": or_null(whole()),
        "memory": memory(),
        "memory_missing": or_null(text()),
        "devices": list_of(device),
        "held_bytes": map_of(whole()),
        "settings": settings(),
    }));
    let free = || list_of(object(json!({ "index": whole(), "free_bytes": whole() })));
    let sample = object(json!({
        "kind": { "const": "sample" },
        "at_ms": whole(),
        "ranks": map_of(figures()),
        "devices": free(),
    }));
    let missed = object(json!({
        "kind": { "const": "missed" },
        "at_ms": whole(),
        "why": text(),
        "devices": free(),
    }));
    let end = object(json!({ "kind": { "const": "end" }, "at_ms": whole(), "why": ending() }));
    json!({ "anyOf": [header, sample, missed, end] })
}

/// Figures of a rank; those that the server does not give are absent.
fn figures() -> Value {
    json!({
        "type": "object",
        "properties": {
            "running_requests": whole(),
            "queued_requests": whole(),
            "pool_held_tokens": whole(),
            "pool_capacity_tokens": whole(),
            "pool_usage": number(),
            "retractions_total": whole(),
            "retracting_requests": whole(),
            "prefill_tokens_total": whole(),
            "prompt_tokens_total": whole(),
            "output_tokens_total": whole(),
            "output_tokens_per_s": number(),
            "cache_hit_rate": number(),
            "cache_query_tokens_total": whole(),
            "cache_hit_tokens_total": whole(),
        },
        "additionalProperties": false,
    })
}
