//! The memory plan of a server, for people and machines.

use plimsoll_core::units::{Bytes, group_thousands};
use plimsoll_server::{
    plan::{MemoryOf, PlannedRow},
    start::Planned,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One row a line, and what the scheduler gets.
pub fn human(planned: &Planned) -> String {
    let mut out = String::new();
    for memory in &planned.memory.memories {
        rows(planned.name(), memory, &mut out);
    }
    let (settings, n) = (&planned.settings, group_thousands);
    let _ = writeln!(
        out,
        "  pool {} tokens in pages of {}; {} requests at once, {} tokens a prefill pass, {} a request",
        n(settings.pool_pages * settings.page_size),
        settings.page_size,
        n(settings.max_running_requests),
        n(settings.chunked_prefill_size),
        n(settings.context_length)
    );
    out
}

fn rows(name: &str, memory: &MemoryOf, out: &mut String) {
    let on = memory.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default();
    let _ = writeln!(out, "memory plan of {name}{on}: {} ({})", memory.limit, memory.from);
    if memory.device.is_some() {
        let _ = writeln!(out, "  {:<26} {:>12} {:>12}", "", "planned", "measured");
    }
    for row in &memory.rows {
        let (label, planned) = (row.label, row.planned.to_string());
        let tag = row.why.tag.name();
        let _ = match (&memory.device, row.measured) {
            (None, _) => writeln!(out, "  {label:<26} {planned:>12}  {tag}"),
            (Some(_), measured) => {
                let measured = measured.map(|bytes| bytes.to_string()).unwrap_or_default();
                writeln!(out, "  {label:<26} {planned:>12} {measured:>12}  {tag}")
            }
        };
    }
}

/// The same as a document.
pub fn machine(planned: &Planned) -> Value {
    let memory = &planned.memory;
    let rows = memory.memories.iter().flat_map(|memory| {
        let device = memory.device.as_deref().unwrap_or("host");
        memory.rows.iter().map(move |row| document(device, row))
    });
    let limit: Bytes = memory.memories.iter().map(|memory| memory.limit).sum();
    let settings = &planned.settings;
    json!({
        "schema": "plimsoll.serve/1",
        "model": planned.name(),
        "device": planned.device(),
        "limit_bytes": limit.0,
        "limit_from": memory.memories.first().map_or("", |memory| &memory.from),
        "memory": rows.collect::<Vec<_>>(),
        "page_bytes": memory.page.0,
        "max_total_num_tokens": settings.pool_pages * settings.page_size,
        "page_size": settings.page_size,
        "max_running_requests": settings.max_running_requests,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "context_length": settings.context_length,
    })
}

fn document(device: &str, row: &PlannedRow) -> Value {
    json!({
        "device": device,
        "account": row.name,
        "size_bytes": row.bytes().0,
        "planned_bytes": row.planned.0,
        "measured_bytes": row.measured.map(|bytes| bytes.0),
        "tag": row.why.tag.name(),
        "rule": row.why.rule,
    })
}
