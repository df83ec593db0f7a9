//! How traces of schedulers write requests, whichever engine made them.

use plimsoll_core::{
    kv::{Run, Runs},
    sched::RequestId,
};
use serde_json::Value;

/// Outputs of request `r`: `OUTPUTS + r * STRIDE + k`.
pub(super) const OUTPUTS: u64 = 1_000_000_000;
pub(super) const STRIDE: u64 = 100_000;

pub(super) fn is(value: &Value) -> bool {
    value.as_bool().unwrap_or(false)
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a count: {value}"))
}

/// A prompt: pieces of a shared text (`p`), of the request's own (`u`), or of another's outputs (`o`).
pub(super) fn prompt(spec: &Value) -> Runs {
    let segment = |part: &Value| {
        let (of, len) = (number(&part[1]), number(&part[2]));
        let first = match part[0].as_str().unwrap() {
            "p" => 1000 + of * STRIDE,
            "u" => 500_000_000 + of * STRIDE,
            "o" => OUTPUTS + of * STRIDE,
            other => panic!("segment {other}"),
        };
        Run { first, len }
    };
    spec.as_array().unwrap().iter().map(segment).collect()
}

pub(super) fn name(id: RequestId) -> String {
    format!("r{}", id.0)
}
