//! The schema of a profile.

use super::{list_of, object, signed, text, whole};
use plimsoll_core::estimate::coefficients::Coefficient;
use plimsoll_replay::profile::{RemainderName, SCHEMA};
use serde_json::{Value, json};

/// A profile.
pub fn profile() -> Value {
    let holds_for = object(json!({
        "engine": { "enum": ["sglang", "vllm"] },
        "release": text(),
        "device": text(),
        "model": text(),
        "layers": whole(),
        "weights_bytes": whole(),
        "ranks": whole(),
        "data_parallel": whole(),
        "dtype": text(),
        "kv_cache_dtype": text(),
    }));
    let rate = object(json!({
        "name": { "enum": Coefficient::ALL.map(Coefficient::name) },
        "value": whole(),
        "basis": { "enum": ["fitted", "assumed"] },
        "deviation_ppm": whole(),
    }));
    let remainder = object(json!({
        "name": { "enum": RemainderName::ALL.map(RemainderName::name) },
        "measured_bytes": whole(),
        "predicted_bytes": whole(),
        "place": text(),
    }));
    let kinds = ["requests", "vllm_bench", "sglang_bench", "log", "watch", "recording"];
    let source = object(json!({
        "file": text(),
        "sha256": text(),
        "kind": { "enum": kinds },
        "measured": whole(),
        "fitted": whole(),
    }));
    let residual = object(json!({
        "part": { "enum": ["fitted", "held_out"] },
        "metric": { "enum": ["ttft", "tpot", "pass", "throughput"] },
        "count": whole(),
        "mean_error_ppm": signed(),
        "typical_error_ppm": whole(),
        "worst_error_ppm": whole(),
    }));
    object(json!({
        "schema": { "const": SCHEMA },
        "plimsoll": text(),
        "holds_for": holds_for,
        "time": list_of(rate),
        "memory": list_of(remainder),
        "sources": list_of(source),
        "residual": list_of(residual),
    }))
}
