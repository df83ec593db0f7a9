//! The account of every byte: of the rank that decides, at the stage that decides.

use super::View;
use crate::render::table::{Align, Table};
use plimsoll_core::units::GIB;
use plimsoll_diagnosis::reconstruct::{RankLedger, Row, Source, Stage, StageLedger, Whole};
use plimsoll_ingest::log::Amount;

/// The ledger that is shown: that of the death, else of the last stage that the log reached.
pub(super) fn deciding<'a>(view: &View<'a>) -> Option<(&'a RankLedger, &'a StageLedger)> {
    let rank = view.report.ledgers.first()?;
    let death = rank.stages.iter().find(|ledger| ledger.stage == Stage::Death);
    let stage = death.or_else(|| rank.stages.last())?;
    // A single figure is no account.
    (stage.rows.iter().filter(|row| row.bytes.is_some()).count() > 1).then_some((rank, stage))
}

/// For people, between empty lines; nothing when the log gives no ledger.
pub(super) fn human(view: &View<'_>) -> String {
    deciding(view).map_or_else(String::new, |(rank, stage)| {
        format!("\n{}", table(view, rank, stage).human())
    })
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
    let whole = match stage.whole {
        Whole::Capacity => "capacity",
        Whole::FreeBeforeLoad => "free before loading",
    };
    let closes = stage.closes_to.map(|rest| format!("closes to {} GiB", gib(rest)));
    table.row(vec![
        whole.to_owned(),
        gib(stage.bytes),
        interval(stage.bytes),
        closes.unwrap_or_default(),
    ]);
    table
}

fn name(row: &Row) -> String {
    let label = row.account.label();
    row.detail.map_or_else(|| label.to_owned(), |detail| format!("{label}: {detail}"))
}

fn gib(amount: Amount) -> String {
    format!("{:.2}", amount.as_gib())
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
        Source::Printed(place) => view.place(place.file, place.line),
        Source::Solved(text) => text.clone(),
        Source::AtMost(text) => format!("at most: {text}"),
        Source::NotPrinted => "not printed".to_owned(),
    }
}
