//! The account of the device at the allocation that failed, from PyTorch's own figures.

use plimsoll_core::memory::ledger::Account;
use plimsoll_ingest::log::{Amount, Event, Rank, TorchOom};

use super::ledger::{Place, Row, Source, Stage, StageLedger, Whole, close};
use crate::Case;

/// The ledger at the last out-of-memory text of this rank. What stood before stays (weights, pools,
/// graphs); what PyTorch allocated beyond is the pass that died.
pub(super) fn ledger(case: &Case, rank: Rank, before: &[StageLedger]) -> Option<StageLedger> {
    let (event, oom) = case.torch_ooms().rfind(|(event, oom)| {
        (event.rank == rank || event.rank.is_none()) && oom.capacity.is_some() && oom.free.is_some()
    })?;
    let place = Place { file: event.file, line: event.line };
    let (capacity, free) = (oom.capacity?, oom.free?);
    let mut rows = vec![Row::new(Account::Free, free, Source::Printed(place))];
    match process(oom, capacity, free) {
        Some(own) => rows.extend(of_process(event, oom, own, capacity - free, before)),
        None => rows.extend(standing(before)),
    }
    Some(close(Stage::Death, (Whole::Capacity, capacity), rows))
}

/// What this process holds. Zero and more than the device are artefacts of containers and WSL2.
fn process(oom: &TorchOom, capacity: Amount, free: Amount) -> Option<Amount> {
    let own = oom.this_process?;
    let taken = capacity - free;
    (own.most() > 0 && own.least() <= taken.most()).then_some(own)
}

fn of_process(
    event: &Event,
    oom: &TorchOom,
    own: Amount,
    taken: Amount,
    before: &[StageLedger],
) -> Vec<Row> {
    let place = Place { file: event.file, line: event.line };
    let mut rows = Vec::new();
    let others = taken - own;
    if others.most() > 0 {
        let how = "capacity − free − this process".to_owned();
        rows.push(Row::new(Account::OtherPrograms, others, Source::Solved(how)));
    }
    let (Some(allocated), Some(cached)) = (oom.allocated, oom.reserved_unallocated) else {
        rows.extend(standing(before));
        return rows;
    };
    let how = "this process − what PyTorch reserved: context, libraries, communicators".to_owned();
    rows.push(Row::new(Account::Context, own - allocated - cached, Source::Solved(how)));
    let mut kept = Row::new(Account::Unaccounted, cached, Source::Printed(place));
    kept.detail = Some("reserved by PyTorch, not allocated");
    rows.push(kept);
    rows.extend(allocated_by_torch(place, oom, allocated, standing(before)));
    rows
}

/// What PyTorch has allocated, by account: what stood at the start, the graphs' pools where they are printed
/// apart, and the rest, which is the pass that died.
fn allocated_by_torch(place: Place, oom: &TorchOom, all: Amount, standing: Vec<Row>) -> Vec<Row> {
    // Of graphs only the private pools are PyTorch's; the driver's share is outside.
    let graphs = |row: &Row| matches!(row.account, Account::Graphs | Account::DraftGraphs);
    let mut rows: Vec<Row> = standing.into_iter().filter(|row| !graphs(row)).collect();
    let nothing_stands = rows.is_empty();
    if let Some(pools) = oom.private_pools {
        let mut row = Row::new(Account::Graphs, pools, Source::Printed(place));
        row.detail = Some("private pools of PyTorch");
        rows.push(row);
    }
    let held = rows.iter().filter_map(|row| row.bytes).fold(Amount::default(), |a, b| a + b);
    let rest = all - held;
    if nothing_stands || rest.most() < 0 {
        let mut row = Row::new(Account::Activations, all, Source::Printed(place));
        row.detail = Some("allocated by PyTorch: weights, pools and the pass together");
        return vec![row];
    }
    let how = "allocated by PyTorch − what stood at the start".to_owned();
    let mut row = Row::new(Account::Activations, rest, Source::Solved(how));
    if oom.private_pools.is_none() {
        row.detail = Some("with graphs and workspaces");
    }
    rows.push(row);
    rows
}

/// Accounts of the start that stay, from its last ledger.
fn standing(before: &[StageLedger]) -> Vec<Row> {
    let stays = |row: &&Row| {
        matches!(
            row.account,
            Account::Weights
                | Account::DraftWeights
                | Account::RequestTable
                | Account::KvPool
                | Account::DraftPool
                | Account::StatePool
                | Account::Graphs
                | Account::DraftGraphs
        ) && row.bytes.is_some()
    };
    before.last().map_or_else(Vec::new, |last| last.rows.iter().filter(stays).cloned().collect())
}
