//! Schema of the part of `doctor` that `--cuda` adds.

use super::{list_of, object, or_null, text, truth, whole};
use crate::commands::doctor::cuda::{Need, State};
use serde_json::{Value, json};

/// The pieces, the devices, and who holds them.
pub(super) fn cuda() -> Value {
    let states = [State::Found, State::Unfit, State::Missing].map(State::word);
    let piece = object(json!({
        "name": text(),
        "state": { "enum": states },
        "says": text(),
        "path": or_null(text()),
        "release": or_null(text()),
        "needed_for": { "enum": Need::ALL.map(Need::word) },
        "purpose": text(),
        "get": list_of(text()),
    }));
    let device = object(json!({
        "ordinal": whole(),
        "name": text(),
        "total_bytes": whole(),
        "free_bytes": or_null(whole()),
        "compute_capability": text(),
        "code": or_null(json!({ "enum": ["sm_90", "sm_100", "sm_120", "ptx"] })),
        "mig_profile": or_null(text()),
        "integrated": truth(),
        "virtual_memory": or_null(truth()),
    }));
    let holder = object(json!({
        "index": or_null(whole()),
        "pid": whole(),
        "used_mib": or_null(whole()),
    }));
    object(json!({
        "serves": truth(),
        "headline": text(),
        "pieces": list_of(piece),
        "devices": list_of(device),
        "holders": list_of(holder),
    }))
}
