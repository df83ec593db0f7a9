//! The schema of `bench`.

use super::{list_of, metrics, object, or_null, text, whole};
use serde_json::{Value, json};

pub(super) fn bench() -> Value {
    let failed = object(json!({ "reason": text(), "count": whole(), "first": text() }));
    object(json!({
        "schema": { "const": "plimsoll.bench/1" },
        "verdict": { "enum": ["completed", "failed", "lost", "interrupted"] },
        "place": text(),
        "model": text(),
        "workload": text(),
        "seed": whole(),
        "requests": whole(),
        "wall_time_ns": whole(),
        "metrics": metrics(),
        "engine": or_null(engine()),
        "failures": list_of(failed),
        "notes": list_of(text()),
    }))
}

/// What an engine of this process counted itself.
fn engine() -> Value {
    object(json!({
        "precision": text(),
        "pool_tokens": whole(),
        "prefill_steps": whole(),
        "decode_steps": whole(),
        "step_time_ns": whole(),
        "loop_time_ns": whole(),
        "scheduler_share_ppm": or_null(whole()),
        "finished_requests": whole(),
        "aborted_requests": whole(),
        "refused_requests": whole(),
        "prompt_tokens": whole(),
        "cached_tokens": whole(),
        "generation_tokens": whole(),
        "metrics": metrics(),
    }))
}
