//! The figures of a page, as its script reads them.

use crate::{
    collect::{Collected, CrashSeen},
    column::Column,
    row::Row,
};
use plimsoll_core::memory::ledger::Account;
use plimsoll_replay::accounts::RankAccounts;
use serde_json::{Map, Value, json};

/// The line above which the heaviest pass does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoadLine {
    /// What the heaviest pass needs, in bytes.
    pub(crate) need: u64,
    /// Which pass that is.
    pub(crate) pass: String,
}

/// What moves while a server runs.
const MOVES: [Account; 3] = [Account::OtherPrograms, Account::Activations, Account::Free];

/// What does not move on a rank, in printing order; what leaks later is beyond it.
pub(crate) fn fixed(rank: &RankAccounts) -> Vec<(Account, u64)> {
    let mut rows = rank.rows();
    rows.retain(|(account, bytes)| !MOVES.contains(account) && *bytes > 0);
    rows
}

/// The rank that is shown, and what no account explained when serving began.
#[derive(Clone, Copy)]
struct Shown {
    rank: u32,
    unexplained: u64,
}

type Of = fn(&Row, Shown) -> u64;

/// Columns, their way of writing, and where their values are.
const COLUMNS: [(&str, Column, Of); 38] = [
    ("from", Column::Steps, |row, _| row.from_ns),
    ("length", Column::Plain, |row, _| row.to_ns.saturating_sub(row.from_ns)),
    ("doing", Column::Plain, |row, _| row.doing.code()),
    ("merged", Column::Plain, |row, _| row.merged - 1),
    ("step", Column::Steps, |row, _| row.first_step),
    ("steps", Column::Plain, |row, _| row.steps),
    ("prefills", Column::Plain, |row, _| row.prefills),
    ("prefill_tokens", Column::Plain, |row, _| row.prefill_tokens),
    ("prefill_less", Column::Plain, |row, _| row.prefill_tokens - row.prefill_most),
    ("prefix_tokens", Column::Plain, |row, _| row.prefix_tokens),
    ("prefill_ns", Column::Plain, |row, _| row.prefill_ns),
    ("decode_tokens", Column::Plain, |row, _| row.decode_tokens),
    ("decode_ns", Column::Plain, |row, _| row.decode_ns),
    ("requests", Column::Steps, |row, _| row.requests),
    ("live", Column::Steps, |row, _| row.live.max),
    ("live_less", Column::Plain, |row, _| row.live.max - row.live.min),
    ("reserved", Column::Steps, |row, shown| row.rank(shown.rank).reserved.max),
    ("others", Column::Steps, |row, shown| row.rank(shown.rank).others.max),
    ("leaked", Column::Steps, |row, shown| {
        row.rank(shown.rank).leaked.max.saturating_sub(shown.unexplained)
    }),
    ("free", Column::Steps, |row, shown| row.rank(shown.rank).free.min),
    ("free_more", Column::Plain, |row, shown| {
        row.rank(shown.rank).free.max - row.rank(shown.rank).free.min
    }),
    ("used", Column::Steps, |row, _| row.used.max),
    ("used_less", Column::Plain, |row, _| row.used.max - row.used.min),
    ("evictable", Column::Steps, |row, _| row.evictable.max),
    ("running", Column::Steps, |row, _| row.running.max),
    ("running_less", Column::Plain, |row, _| row.running.max - row.running.min),
    ("waiting", Column::Steps, |row, _| row.waiting.max),
    ("waiting_less", Column::Plain, |row, _| row.waiting.max - row.waiting.min),
    ("arrived", Column::Plain, |row, _| row.counts.arrived),
    ("admitted", Column::Plain, |row, _| row.counts.admitted),
    ("deferred", Column::Plain, |row, _| row.counts.deferred),
    ("retracted", Column::Plain, |row, _| row.counts.retracted),
    ("preempted", Column::Plain, |row, _| row.counts.preempted),
    ("evicted", Column::Plain, |row, _| row.counts.evicted),
    ("finished", Column::Plain, |row, _| row.counts.finished),
    ("aborted", Column::Plain, |row, _| row.counts.aborted),
    ("refused", Column::Plain, |row, _| row.counts.refused),
    ("changes", Column::Plain, |row, _| row.counts.changes),
];

/// All that the script needs; null when nothing was served.
pub(crate) fn data(run: &Collected, line: Option<&LoadLine>) -> Value {
    let rank = run.rank();
    let Some(start) = run.served.get(rank as usize) else { return Value::Null };
    let shown = Shown { rank, unexplained: start.of(Account::Unaccounted) };
    let fixed: Vec<Value> = fixed(start)
        .iter()
        .map(|(account, bytes)| json!([account.name(), account.label(), bytes]))
        .collect();
    let columns: Map<String, Value> = COLUMNS
        .iter()
        .map(|(name, column, of)| {
            let text = column.encode(run.rows.iter().map(|row| of(row, shown)));
            ((*name).to_owned(), json!([u8::from(*column == Column::Steps), text]))
        })
        .collect();
    let kept = |(at, row): (usize, &Row)| {
        let items: Vec<Value> = row.items.iter().map(|item| item.json()).collect();
        (!items.is_empty() || row.dropped > 0).then(|| json!([at, row.dropped, items]))
    };
    let items: Vec<Value> = run.rows.iter().enumerate().filter_map(kept).collect();
    json!({
        "schema": crate::REPORT_MARK,
        "rank": rank,
        "ranks": run.served.len(),
        "capacity_bytes": start.capacity().unwrap_or(0),
        "fixed": fixed,
        "pool_tokens": run.pool_tokens,
        "need_bytes": line.map(|line| line.need),
        "need_pass": line.map(|line| line.pass.as_str()),
        "end_ns": run.end_ns,
        "stretch_ns": run.stretch_ns,
        "rows": run.rows.len(),
        "columns": columns,
        "forms": run.forms.json(),
        "items": items,
        "crash": run.crash.as_ref().map(crash),
    })
}

fn crash(crash: &CrashSeen) -> Value {
    json!({
        "at_ns": crash.at_ns,
        "rank": crash.rank,
        "step": crash.step,
        "mode": crash.mode,
        "tokens": crash.tokens,
        "requests": crash.requests,
        "requested_bytes": crash.requested,
        "free_bytes": crash.free,
        "allocated_bytes": crash.allocated,
        "reserved_bytes": crash.reserved,
        "buffer": crash.buffer,
        "message": crash.message,
    })
}
