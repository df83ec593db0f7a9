//! A run over time and its accounts at a moment, for people and for machines.

use super::table::{Align, Table};
use crate::{
    args::ViewArgs,
    output::{Output, Tone},
};
use plimsoll_core::{
    memory::ledger::Account,
    units::{Bytes, group_thousands},
};
use plimsoll_replay::{
    accounts::RankAccounts,
    ledger_at::LedgerAt,
    timeline::{self, Doing, Glyphs, Ink, Timeline, time},
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Columns of ranks that a table shows at most.
const MOST_COLUMNS: usize = 4;

/// The accounts of all ranks: ranks that hold the same share a column.
pub fn accounts(at: &LedgerAt) -> String {
    let mut out = format!("  accounts {}", at.moment);
    if let Some(ns) = at.at_ns {
        let _ = write!(out, " ({})", time(ns));
    }
    if let Some(pool) = at.pool {
        let (used, all) = (group_thousands(pool.used), group_thousands(pool.pool));
        let (running, waiting) = (pool.running, pool.waiting);
        let _ = write!(out, ": {used} of {all} tokens, {running} running, {waiting} waiting");
    }
    let groups = groups(&at.ranks);
    let shown = &groups[..groups.len().min(MOST_COLUMNS)];
    let names: Vec<String> =
        shown.iter().map(|(ranks, _)| ranks_name(ranks, at.ranks.len())).collect();
    let mut columns = vec![("held by", Align::Left)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for account in Account::ALL {
        if shown.iter().all(|(_, rank)| rank.of(account) == 0) && account != Account::Free {
            continue;
        }
        let mut row = vec![account.label().replace(" (peak)", "")];
        row.extend(shown.iter().map(|(_, rank)| gib(rank.of(account))));
        table.row(row);
    }
    let mut row = vec!["capacity".to_owned()];
    row.extend(shown.iter().map(|(_, rank)| rank.capacity().map_or_else(String::new, gib)));
    table.row(row);
    out.push('\n');
    out.push_str(&table.human());
    if groups.len() > shown.len() {
        let more = groups.len() - shown.len();
        let _ = writeln!(out, "  {more} more ranks differ; --format json has them all");
    }
    out
}

/// Ranks that hold the same, in the order of their first.
fn groups(ranks: &[RankAccounts]) -> Vec<(Vec<u32>, &RankAccounts)> {
    let mut groups: Vec<(Vec<u32>, &RankAccounts)> = Vec::new();
    for rank in ranks {
        let same = groups
            .iter_mut()
            .find(|(_, first)| first.rows() == rank.rows() && first.capacity() == rank.capacity());
        match same {
            Some((members, _)) => members.push(rank.rank),
            None => groups.push((vec![rank.rank], rank)),
        }
    }
    groups
}

fn ranks_name(ranks: &[u32], all: usize) -> String {
    match ranks {
        [_] if all == 1 => "GiB".to_owned(),
        _ if ranks.len() == all => format!("GiB, each of {all} ranks"),
        [one] => format!("GiB, rank {one}"),
        [first, ..] => format!("GiB, rank {first} and {} more", ranks.len() - 1),
        [] => String::new(),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.2}", Bytes(bytes).as_gib_f64())
}

/// The plot, indented by two and coloured where colour is on.
pub fn plot(timeline: &Timeline, views: &ViewArgs, output: &Output) -> String {
    let glyphs = if views.ascii || !output.has_blocks() { Glyphs::Ascii } else { Glyphs::Blocks };
    let mut out = String::new();
    for line in timeline::plot(timeline, output.width().saturating_sub(2), glyphs) {
        out.push_str("  ");
        for (ink, text) in line {
            out.push_str(&match tone(ink) {
                Some(tone) => output.paint(tone, &text),
                None => text,
            });
        }
        out.push('\n');
    }
    out
}

const fn tone(ink: Ink) -> Option<Tone> {
    match ink {
        Ink::Plain => None,
        Ink::Live => Some(Tone::Change),
        Ink::Cached => Some(Tone::Dim),
        Ink::Others | Ink::Leaked => Some(Tone::Close),
        Ink::Pool => Some(Tone::Good),
        Ink::Crash => Some(Tone::Bad),
    }
}

fn rows<'a>(rows: impl IntoIterator<Item = &'a (Account, u64)>) -> Value {
    let rows = rows.into_iter().map(|(account, bytes)| (account.name().to_owned(), json!(bytes)));
    Value::Object(rows.collect::<Map<_, _>>())
}

/// The accounts for machines.
pub fn moment(at: &LedgerAt) -> Value {
    let ranks: Vec<Value> = at
        .ranks
        .iter()
        .map(|rank| {
            json!({
                "rank": rank.rank,
                "capacity_bytes": rank.capacity(),
                "held_bytes": rows(&rank.rows()),
            })
        })
        .collect();
    json!({
        "when": at.moment.to_string(),
        "step": at.step,
        "at_ns": at.at_ns,
        "used_tokens": at.pool.map(|pool| pool.used),
        "running": at.pool.map(|pool| pool.running),
        "waiting": at.pool.map(|pool| pool.waiting),
        "ranks": ranks,
    })
}

/// The timeline for machines: every point, nothing cut into columns.
pub fn timeline(timeline: &Timeline) -> Value {
    let points: Vec<Value> = timeline
        .points
        .iter()
        .map(|point| {
            json!({
                "from_ns": point.from_ns,
                "to_ns": point.to_ns,
                "doing": match point.doing {
                    Doing::Prefill => "prefill",
                    Doing::Decode => "decode",
                    Doing::Idle => "idle",
                },
                "others_bytes": point.layers.others,
                "leaked_bytes": point.layers.leaked,
                "live_bytes": point.layers.live,
                "cached_bytes": point.layers.cached,
                "free_bytes": point.free,
                "used_tokens": point.used,
                "running": point.running,
                "waiting": point.waiting,
            })
        })
        .collect();
    json!({
        "rank": timeline.rank,
        "capacity_bytes": timeline.capacity,
        "fixed_bytes": rows(&timeline.fixed),
        "pool_tokens": timeline.pool_tokens,
        "end_ns": timeline.end_ns,
        "points": points,
    })
}
