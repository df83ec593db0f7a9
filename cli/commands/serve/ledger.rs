//! The memory plan of a server, for people and machines.

use plimsoll_core::{policy::plimsoll::PlanRow, units::group_thousands};
use plimsoll_server::start::Planned;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One row a line, and what the scheduler gets.
pub fn human(planned: &Planned) -> String {
    let plan = &planned.memory.plan;
    let mut out =
        format!("memory plan of {}: {} ({})\n", planned.name(), plan.limit.bytes, plan.limit.from);
    for row in &plan.rows {
        let (label, bytes) = (row.part.label(), row.bytes.to_string());
        let _ = writeln!(out, "  {label:<26} {bytes:>12}  {}", row.why.tag.name());
    }
    let (settings, n) = (&planned.settings, group_thousands);
    let _ = writeln!(
        out,
        "  pool {} tokens in pages of {}; {} requests at once, {} tokens a prefill pass, {} a request",
        n(plan.pool_tokens()),
        settings.page_size,
        n(settings.max_running_requests),
        n(settings.chunked_prefill_size),
        n(settings.context_length)
    );
    out
}

/// The same as a document.
pub fn machine(planned: &Planned) -> Value {
    let plan = &planned.memory.plan;
    let row = |row: &PlanRow| {
        json!({
            "account": row.part.name(),
            "size_bytes": row.bytes.0,
            "tag": row.why.tag.name(),
            "rule": row.why.rule,
        })
    };
    let settings = &planned.settings;
    json!({
        "schema": "plimsoll.serve/1",
        "model": planned.name(),
        "limit_bytes": plan.limit.bytes.0,
        "limit_from": plan.limit.from.to_string(),
        "memory": plan.rows.iter().map(row).collect::<Vec<_>>(),
        "page_bytes": plan.page.0,
        "max_total_num_tokens": plan.pool_tokens(),
        "page_size": settings.page_size,
        "max_running_requests": settings.max_running_requests,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "context_length": settings.context_length,
    })
}
