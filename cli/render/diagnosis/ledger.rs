//! The account of every byte: of the rank that decides, at the stage that decides.

use super::{Detail, View, evidence::shorten};
use crate::render::table::{Align, Table};
use plimsoll_core::{memory::ledger::Account, units::GIB};
use plimsoll_diagnosis::reconstruct::{RankLedger, Row, Source, Stage, StageLedger};
use plimsoll_ingest::log::Amount;

/// The ledgers that are shown, of the rank that decides: the one that tells most, or every stage.
pub(super) fn shown<'a>(view: &View<'a>) -> Vec<(&'a RankLedger, &'a StageLedger)> {
    let Some(rank) = view.report.ledgers.first() else { return Vec::new() };
    let tells = |ledger: &&StageLedger| known(ledger) > 1;
    let stages = rank.stages.iter().filter(tells).map(|stage| (rank, stage));
    match view.detail {
        Detail::All => stages.collect(),
        Detail::Screen => {
            deciding(rank).filter(tells).map(|stage| (rank, stage)).into_iter().collect()
        }
    }
}

/// The last stage with a pool: it has what stands beside the pool apart, where the text of a failed
/// allocation knows only PyTorch's sum. Without a pool, the failure; else the last stage.
fn deciding(rank: &RankLedger) -> Option<&StageLedger> {
    let has_pool = |ledger: &&StageLedger| ledger.sum(Account::KvPool).is_some();
    let alive = || rank.stages.iter().filter(|ledger| ledger.stage != Stage::Death);
    let death = || rank.stages.iter().find(|ledger| ledger.stage == Stage::Death);
    alive().rfind(has_pool).or_else(death).or_else(|| rank.stages.last())
}

/// Rows with a figure; a single one is no account.
fn known(ledger: &StageLedger) -> usize {
    ledger.rows.iter().filter(|row| row.bytes.is_some()).count()
}

/// For people, between empty lines; nothing when the log gives no ledger.
pub(super) fn human(view: &View<'_>, width: usize) -> String {
    let tables = shown(view).into_iter();
    tables
        .map(|(rank, stage)| format!("\n{}", cut(&table(view, rank, stage).human(), width)))
        .collect()
}

/// Lines shortened at their end: the last column says where a figure is from, at any length.
fn cut(table: &str, width: usize) -> String {
    table.lines().map(|line| format!("{}\n", shorten(line, width))).collect()
}

/// One row an account, the whole at the end.
pub(super) fn table(view: &View<'_>, rank: &RankLedger, stage: &StageLedger) -> Table {
    let gap = if rank.rank.is_none() { "" } else { " " };
    let title = format!("{}{gap}{}", rank.rank, stage.stage.words());
    let mut table = Table::new(&[
        (&title, Align::Left),
        ("GiB", Align::Right),
        ("interval", Align::Left),
        ("from", Align::Left),
    ]);
    for row in &stage.rows {
        table.row(vec![
            name(row),
            row.bytes.map_or_else(|| "?".to_owned(), gib),
            row.bytes.map_or_else(String::new, interval),
            source(view, &row.source),
        ]);
    }
    let closes = stage.closes_to.map(|rest| format!("closes to {} GiB", gib(rest)));
    table.row(vec![
        stage.whole.name().replace('_', " "),
        gib(stage.bytes),
        interval(stage.bytes),
        closes.unwrap_or_default(),
    ]);
    table
}

/// The detail says more than the account, unless it goes on from it.
fn name(row: &Row) -> String {
    let label = row.account.label();
    match row.detail {
        Some(detail) if row.account == Account::Unaccounted => format!("{label}: {detail}"),
        Some(detail) if !detail.starts_with("and ") => detail.to_owned(),
        _ => label.to_owned(),
    }
}

fn gib(amount: Amount) -> String {
    let text = format!("{:.2}", amount.as_gib());
    if text == "-0.00" { "0.00".to_owned() } else { text }
}

/// An interval wider than what two printed decimals leave open.
fn interval(amount: Amount) -> String {
    let side = |bytes: i64| bytes as f64 / GIB as f64;
    if side(amount.half) <= 0.0101 {
        return String::new();
    }
    format!("{:.2} to {:.2}", side(amount.least()), side(amount.most()))
}

fn source(view: &View<'_>, source: &Source) -> String {
    match source {
        // Of one log its name says nothing.
        Source::Printed(place) if view.names.len() == 1 && place.line > 0 => {
            format!("line {}", place.line)
        }
        Source::Printed(place) => view.place(place.file, place.line),
        Source::Solved(text) => text.clone(),
        Source::AtMost(text) => format!("at most: {text}"),
        Source::NotPrinted => "not printed".to_owned(),
    }
}
