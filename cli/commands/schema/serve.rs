//! The schema of the plan that `serve` prints.

use super::{list_of, object, or_null, text, whole};
use serde_json::{Value, json};

pub(super) fn serve() -> Value {
    let row = object(json!({
        "device": text(),
        "account": text(),
        "size_bytes": whole(),
        "planned_bytes": whole(),
        "measured_bytes": or_null(whole()),
        "tag": { "enum": ["measured", "computed", "calibrated", "assumed"] },
        "rule": text(),
    }));
    object(json!({
        "schema": { "const": "plimsoll.serve/1" },
        "model": text(),
        "device": text(),
        "limit_bytes": whole(),
        "limit_from": text(),
        "memory": list_of(row),
        "page_bytes": whole(),
        "max_total_num_tokens": whole(),
        "page_size": whole(),
        "max_running_requests": whole(),
        "chunked_prefill_size": whole(),
        "context_length": whole(),
    }))
}
