//! The memory plan of a server, for people and machines.

use plimsoll_core::units::Bytes;
use plimsoll_server::start::Planned;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One row a line, and what the scheduler gets.
pub fn human(planned: &Planned) -> String {
    let mut out = String::from("memory plan\n");
    let rows = &planned.memory.rows;
    let total: u64 = rows.iter().map(|(_, bytes)| bytes.0).sum();
    for (name, bytes) in rows {
        let _ = writeln!(out, "  {name:<18} {:>12}", bytes.to_string());
    }
    let _ = writeln!(out, "  {:<18} {:>12}", "in all", Bytes(total).to_string());
    let settings = &planned.settings;
    let _ = writeln!(
        out,
        "  pool {} tokens in pages of {}; {} requests at once, {} tokens a prefill pass, {} a request",
        settings.pool_pages * settings.page_size,
        settings.page_size,
        settings.max_running_requests,
        settings.chunked_prefill_size,
        settings.context_length
    );
    out
}

/// The same as a document.
pub fn machine(planned: &Planned) -> Value {
    let rows = planned.memory.rows.iter();
    let rows: Vec<Value> =
        rows.map(|(name, bytes)| json!({"account": name, "size_bytes": bytes.0})).collect();
    let settings = &planned.settings;
    json!({
        "schema": "plimsoll.serve/1",
        "memory": rows,
        "max_total_num_tokens": settings.pool_pages * settings.page_size,
        "page_size": settings.page_size,
        "max_running_requests": settings.max_running_requests,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "context_length": settings.context_length,
    })
}
