//! What it says when a figure lies outside of the plan.

use super::{Agrees, FromLog, Quantity, Row, Span};

/// One sentence on the first row outside of the plan.
pub(super) fn of(row: &Row, rows: &[Row]) -> String {
    let (Some(planned), Some(logged)) = (&row.planned, &row.logged) else { return String::new() };
    let more = row.difference.as_ref().and_then(Quantity::number).is_some_and(|d| d > 0.0);
    let by = row.difference.as_ref().and_then(absolute).map_or_else(String::new, |d| d.to_string());
    let numbers = numbers(planned, logged);
    let meaning = match (row.name, more) {
        ("engine" | "model" | "ranks", _) => "the log is of another launch than the plan".to_owned(),
        ("version", _) => "the releases differ, and their rules may".to_owned(),
        ("fraction", _) => "the server ran with another fraction than was planned".to_owned(),
        ("context_len" | "chunked_prefill_size" | "max_running_requests", _) => {
            "a setting differs: the command was changed, or the release chose another default".to_owned()
        }
        ("total", _) => "another device than planned, or a slice of it".to_owned(),
        ("free_before_load", false) => format!(
            "{by} less was free before loading: another program on the device, or a larger context"
        ),
        ("free_before_load", true) => {
            format!("{by} more was free before loading: nothing else ran, or the device is larger")
        }
        ("weights", true) => format!(
            "loading took {by} more than planned: another quantization, a draft or an encoder, or another \
             program that took memory meanwhile"
        ),
        ("weights", false) => format!(
            "loading took {by} less than planned: another quantization, or memory came back meanwhile"
        ),
        ("free_after_load", _) => {
            format!("free memory after loading is off by {by}, though its parts are within the plan")
        }
        ("kv_bytes_per_token", _) => {
            "a token takes other bytes than planned: --kv-cache-dtype, or layers that are not counted".to_owned()
        }
        ("available_kv_cache_memory", false) => format!(
            "{by} less is left for the cache: the profile run, or memory outside of PyTorch, took more"
        ),
        ("available_kv_cache_memory", true) => {
            format!("{by} more is left for the cache: the profile run took less")
        }
        ("pool_tokens" | "num_gpu_blocks", false) => format!("{by} fewer in the pool{}", unexplained(rows)),
        ("pool_tokens" | "num_gpu_blocks", true) => format!("{by} more in the pool{}", unexplained(rows)),
        ("free_after_pool", false) => format!(
            "{by} less is free behind the pool: something besides it was taken while it was made"
        ),
        ("free_after_pool", true) => {
            format!("{by} more is free behind the pool: the request table or a second pool is smaller")
        }
        ("graphs", true) => format!("graphs and workspaces took {by} more than planned"),
        ("graphs", false) => format!("graphs and workspaces took {by} less than planned"),
        ("free_after_graphs", false) => format!("{by} less is left when the server is ready"),
        ("free_after_graphs", true) => format!("{by} more is left when the server is ready"),
        ("outcome", _) => "the end was not planned, though every figure before it was".to_owned(),
        _ => "it lies outside of the plan".to_owned(),
    };
    format!("{meaning} ({numbers})")
}

fn absolute(difference: &Quantity) -> Option<Quantity> {
    difference.like(difference.number()?.abs())
}

fn numbers(planned: &Span, logged: &FromLog) -> String {
    let range = match planned.low == planned.high {
        true => planned.mid.to_string(),
        false => format!("{} ({} to {})", planned.mid, planned.low, planned.high),
    };
    format!("planned {range}, {} at {}", logged.span.mid, logged.place)
}

/// A pool that is off while all before it agrees has another reason than memory.
fn unexplained(rows: &[Row]) -> &'static str {
    let seen = |name: &str| rows.iter().any(|row| row.name == name && row.agrees == Agrees::Within);
    match seen("free_before_load") && seen("weights") {
        true => {
            ", though memory before it was as planned: a cap, a page size, states or a second pool"
        }
        false => "; the log does not print what was free before it",
    }
}
