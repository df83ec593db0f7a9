//! The ledgers of an SGLang start, rank by rank.

use plimsoll_core::memory::ledger::Account;
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_ingest::log::{Amount, Rank, Sglang};

use super::{
    Left, Limits, Pool, RankLedger,
    chain::{Chain, Step},
    check::{BudgetCheck, sglang_budget},
    death,
    fraction::{Fraction, capped, known_fraction, solve_sglang},
    interval::{least, meet},
    ledger::{Row, Source, Stage, StageLedger, Whole, close},
};
use crate::Case;

/// The readings that the budget is made of, reduced over ranks as the engine does.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    before: Option<Amount>,
    after: Option<Amount>,
}

/// Every rank that says memory. Ranks are never paired, except by the engine's own rule: the budget is made
/// of the smallest reading over ranks, which is taken only where the same ranks print both.
pub(super) fn ranks(case: &Case) -> Vec<RankLedger> {
    let chains = chains(case);
    let server = reduced(&chains);
    chains.iter().map(|(rank, chain)| ledger(case, *rank, chain, server)).collect()
}

/// The lines of each rank; those without a tag belong to the only rank that has one.
fn chains(case: &Case) -> Vec<(Rank, Chain)> {
    let says_memory = |line: &Sglang| {
        matches!(
            line,
            Sglang::LoadBegin { .. }
                | Sglang::LoadEnd { .. }
                | Sglang::KvAllocated { .. }
                | Sglang::MambaAllocated { .. }
                | Sglang::PoolEnd { .. }
                | Sglang::CaptureBegin { .. }
                | Sglang::CaptureEnd { .. }
                | Sglang::Summary { .. }
        )
    };
    let lines = case.sglang().filter(|(_, line)| says_memory(line));
    let mut ranks: Vec<Rank> = lines.map(|(event, _)| event.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let tagged: Vec<Rank> = ranks.iter().copied().filter(|rank| !rank.is_none()).collect();
    if let [only] = tagged[..] {
        return vec![(only, Chain::read(case.sglang()))];
    }
    let of = |rank: Rank| Chain::read(case.sglang().filter(move |(event, _)| event.rank == rank));
    let chains = ranks.into_iter().map(|rank| (rank, of(rank)));
    chains.filter(|(_, chain)| !chain.is_empty()).collect()
}

fn reduced(chains: &[(Rank, Chain)]) -> Readings {
    let all = |read: fn(&Chain) -> Option<Amount>| {
        let found: Option<Vec<Amount>> = chains
            .iter()
            .filter(|(_, chain)| !chain.steps.is_empty())
            .map(|(_, chain)| read(chain))
            .collect();
        found?.into_iter().reduce(least)
    };
    Readings { before: all(before), after: all(after) }
}

/// Free before the weights: printed, or what was left and what they took.
fn before(chain: &Chain) -> Option<Amount> {
    let printed = chain.steps.iter().find(|step| step.stage == Stage::BeforeLoad);
    printed.and_then(|step| step.free).or_else(|| {
        let weights = weights(chain)?;
        Some(weights.free? + weights.printed?)
    })
}

fn weights(chain: &Chain) -> Option<&Step> {
    chain.steps.iter().find(|step| step.account == Some(Account::Weights))
}

/// Free when the pools are sized: the last reading before them (a draft model's, where it is loaded first).
fn after(chain: &Chain) -> Option<Amount> {
    let pools = |step: &&Step| step.stage < Stage::AfterPools;
    let loaded = chain.steps.iter().take_while(|step| pools(step));
    let last = loaded.filter(|step| step.stage == Stage::AfterLoad).filter_map(|s| s.free).last();
    last.or_else(|| {
        let printed = chain.steps.iter().find(|step| step.stage == Stage::BeforeLoad)?;
        Some(printed.free? - weights(chain)?.printed?)
    })
}

fn ledger(case: &Case, rank: Rank, chain: &Chain, server: Readings) -> RankLedger {
    let readings = Readings {
        before: server.before.filter(|_| server.after.is_some()).or_else(|| before(chain)),
        after: server.after.filter(|_| server.before.is_some()).or_else(|| after(chain)),
    };
    let pool = pool(case, chain, readings);
    let (fraction, check) = budget(case, readings, pool.as_ref());
    let left = left(chain);
    let mut stages = stages(case, chain);
    stages.extend(death::ledger(case, rank, &stages));
    let ledger = RankLedger {
        rank,
        stages,
        fraction,
        capped: capped(case),
        pool,
        check,
        left,
        before: readings.before,
        after: readings.after,
        limits: limits(chain),
        what_if: None,
    };
    match fraction {
        Some(fraction) => ledger.at(fraction),
        None => ledger,
    }
}

fn limits(chain: &Chain) -> Limits {
    chain.summary.map_or_else(Limits::default, |summary| Limits {
        chunk: summary.chunk.and_then(|chunk| u64::try_from(chunk).ok()),
        running: summary.running,
        context: summary.context_len,
    })
}

/// The last reading of free memory in the start, and when it was.
fn left(chain: &Chain) -> Option<Left> {
    let last = chain.steps.iter().rev().find(|step| step.free.is_some())?;
    Some(Left { bytes: last.free?, stage: last.stage, place: Some(last.place) })
}

/// The pools together, with their states.
fn pool(case: &Case, chain: &Chain, readings: Readings) -> Option<Pool> {
    let counted = |step: &&Step| {
        matches!(step.account, Some(Account::KvPool | Account::StatePool))
            || step.account == Some(Account::DraftPool) && draft_in_budget(case)
    };
    let parts: Vec<&Step> = chain.steps.iter().filter(counted).collect();
    let printed = parts.iter().map(|step| step.printed).collect::<Option<Vec<_>>>();
    let printed = printed.filter(|parts| !parts.is_empty());
    let bytes = printed.map(|parts| parts.into_iter().fold(Amount::default(), |a, b| a + b));
    let main = chain.pools.iter().filter(|pool| pool.account == Account::KvPool);
    let from_pools = main.filter_map(|pool| pool.tokens).max();
    let tokens = chain.summary.map(|summary| summary.tokens).or(from_pools);
    let bytes = bytes.or_else(|| refused_budget(case, readings));
    (tokens.is_some() || bytes.is_some()).then_some(Pool { tokens, bytes })
}

/// The budget of a start that was refused before it made a pool.
fn refused_budget(case: &Case, readings: Readings) -> Option<Amount> {
    let refused = case.sglang().any(|(_, line)| {
        matches!(line, Sglang::NotEnoughMemory { .. } | Sglang::WeightsLeaveNothing { .. })
    });
    let fraction = known_fraction(case).filter(|_| refused)?;
    Some(sglang_budget(readings.before?, readings.after?, fraction))
}

/// From 0.5.14 the draft's KV is charged per token; before, it is taken beside the budget.
fn draft_in_budget(case: &Case) -> bool {
    case.version().is_some_and(|version| version.since(5, 14))
}

fn budget(
    case: &Case,
    readings: Readings,
    pool: Option<&Pool>,
) -> (Option<Fraction>, Option<BudgetCheck>) {
    let known = known_fraction(case);
    let (Some(before), Some(after)) = (readings.before, readings.after) else {
        return (known, None);
    };
    let Some(bytes) = pool.and_then(|pool| pool.bytes) else { return (known, None) };
    let slack = pool.map_or(0, Pool::rounding);
    if let Some(fraction) = known {
        let check = BudgetCheck::sglang(before, after, fraction, bytes, slack);
        return (known, (!capped(case)).then_some(check));
    }
    let solved = (!capped(case)).then(|| solve_sglang(before, after, bytes, slack)).flatten();
    (solved, None)
}

/// A ledger a stage, from the steps up to it.
fn stages(case: &Case, chain: &Chain) -> Vec<StageLedger> {
    let Some(before) = before(chain) else { return Vec::new() };
    let capacity = case.capacity();
    let whole = capacity.map_or((Whole::FreeBeforeLoad, before), |all| (Whole::Capacity, all));
    let mut base = Vec::new();
    if let Some(all) = capacity {
        base.extend(outside(chain, all, before));
    }
    let solved = solve(case, chain, before);
    let mut kinds: Vec<Stage> = chain.steps.iter().map(|step| step.stage).collect();
    kinds.dedup();
    let at = |stage: Stage| {
        let upto = solved.iter().filter(|row| row.stage <= stage);
        let mut rows = base.clone();
        rows.extend(upto.flat_map(|solved| solved.rows.iter().cloned()));
        rows.push(free(chain, stage, before));
        close(stage, whole, rows)
    };
    kinds.into_iter().map(at).collect()
}

/// Context and other programs: what was not free before the weights.
fn outside(chain: &Chain, capacity: Amount, before: Amount) -> Vec<Row> {
    let held = capacity - before;
    let Some((usage, place)) = chain.context else {
        let how =
            "capacity − free before loading: context, libraries and other programs".to_owned();
        return vec![Row::new(Account::Context, held, Source::Solved(how))];
    };
    let how = Source::Solved("capacity − free before loading − context".to_owned());
    let mut others = Row::new(Account::OtherPrograms, held - usage, how);
    others.detail = Some("and what was taken before the first reading");
    vec![Row::new(Account::Context, usage, Source::Printed(place)), others]
}

/// Free at the end of a stage: printed, or at most the last reading less what was printed since.
fn free(chain: &Chain, stage: Stage, before: Amount) -> Row {
    let upto: Vec<&Step> = chain.steps.iter().filter(|step| step.stage <= stage).collect();
    let last = upto.iter().rposition(|step| step.free.is_some());
    let since = upto.get(last.map_or(0, |at| at + 1)..).unwrap_or_default();
    let read = last.and_then(|at| upto.get(at)).and_then(|step| Some((step.free?, step.place)));
    let (from, place) = read.map_or((before, None), |(free, place)| (free, Some(place)));
    if since.is_empty() {
        let how = || "free after loading + what loading took".to_owned();
        let source = place.map_or_else(|| Source::Solved(how()), Source::Printed);
        return Row::new(Account::Free, from, source);
    }
    let taken: Option<Vec<Amount>> = since.iter().map(|step| step.printed).collect();
    let Some(taken) = taken else { return Row::unknown(Account::Free) };
    let rest = taken.into_iter().fold(from, |rest, bytes| rest - bytes);
    let how = "the last reading less what was printed since; tables and buffers are not".to_owned();
    Row::new(Account::Free, rest, Source::AtMost(how))
}

/// What was taken between two readings of free memory, solved.
struct Solved {
    stage: Stage,
    rows: Vec<Row>,
}

fn solve(case: &Case, chain: &Chain, before: Amount) -> Vec<Solved> {
    let mut solved = Vec::new();
    let mut free = before;
    let mut open: Vec<&Step> = Vec::new();
    for step in &chain.steps {
        if step.account.is_some() {
            open.push(step);
        }
        let Some(now) = step.free else { continue };
        if step.stage == Stage::BeforeLoad {
            free = now;
            open.clear();
            continue;
        }
        let taken = free - now;
        let mut rows = segment(case, chain, &open, taken);
        rows.retain(|row| !rounding_alone(row));
        solved.push(Solved { stage: step.stage, rows });
        free = now;
        open.clear();
    }
    let rest = open.iter().map(|step| (step.stage, printed(step)));
    solved.extend(rest.map(|(stage, row)| Solved { stage, rows: vec![row] }));
    solved
}

fn printed(step: &Step) -> Row {
    let account = step.account.unwrap_or(Account::Unaccounted);
    let source = step.printed.map_or(Source::NotPrinted, |_| Source::Printed(step.place));
    Row { account, detail: step.detail, bytes: step.printed, source }
}

/// One segment: printed amounts stand, one without a figure takes the rest.
fn segment(case: &Case, chain: &Chain, steps: &[&Step], taken: Amount) -> Vec<Row> {
    let mut rows: Vec<Row> = steps.iter().map(|step| printed(step)).collect();
    let known = rows.iter().filter_map(|row| row.bytes);
    let rest = known.fold(taken, |rest, bytes| rest - bytes);
    let missing: Vec<usize> =
        (0..rows.len()).filter(|at| rows.get(*at).is_some_and(|row| row.bytes.is_none())).collect();
    let table = |row: &Row| row.account == Account::RequestTable;
    match missing[..] {
        [] => {
            // The two figures of one account agree within their digits: both bound it.
            if let [row] = &mut rows[..]
                && let Some(both) = row.bytes.and_then(|bytes| meet(bytes, taken))
            {
                row.bytes = Some(both);
            } else if rest.least() > 0 || rest.most() < 0 {
                rows.push(unaccounted(rest));
            }
        }
        [at] if rows.get(at).is_some_and(table) => {
            rows.remove(at);
            rows.extend(beside_pools(case, chain, steps, rest));
        }
        [at] => {
            if let Some(row) = rows.get_mut(at) {
                row.bytes = Some(rest);
                row.source = Source::Solved("free before − free after it".to_owned());
            }
        }
        // The pool and its table together: neither is printed.
        [pool, _] => {
            rows.truncate(pool + 1);
            if let Some(row) = rows.get_mut(pool) {
                row.bytes = Some(rest);
                row.source = Source::Solved("free before − free after the pools".to_owned());
            }
        }
        _ => {}
    }
    rows
}

/// An unaccounted amount that may be nothing.
fn rounding_alone(row: &Row) -> bool {
    let nothing = |bytes: Amount| bytes.least() <= 0 && bytes.most() >= 0;
    row.account == Account::Unaccounted && row.bytes.is_some_and(nothing)
}

fn unaccounted(rest: Amount) -> Row {
    let how = "free before − free after − what is printed between".to_owned();
    Row::new(Account::Unaccounted, rest, Source::Solved(how))
}

/// What the pools take beside K and V: the request table where its shape is printed, and the rest.
fn beside_pools(case: &Case, chain: &Chain, steps: &[&Step], rest: Amount) -> Vec<Row> {
    // A draft shares the table of its target.
    if steps.iter().any(|step| step.account == Some(Account::DraftPool)) {
        return vec![unaccounted(rest)];
    }
    let Some((table, how)) = table(case, chain) else {
        let how = "free before − free after − pools".to_owned();
        return vec![Row::new(Account::RequestTable, rest, Source::Solved(how))];
    };
    if table > rest.most() {
        // More than there is: the table was made for fewer requests.
        return vec![unaccounted(rest)];
    }
    let row = Row::new(Account::RequestTable, Amount::exact(table), Source::Solved(how));
    let over = rest - Amount::exact(table);
    if over.least() > 0 { vec![row, unaccounted(over)] } else { vec![row] }
}

/// Rows × columns × 4 bytes.
///
/// Source: SGLang `ReqToTokenPool`: rows are the requests that may run (one more for padding from 0.5.11),
/// columns the context and 4 more; a draft adds a few columns.
fn table(case: &Case, chain: &Chain) -> Option<(i64, String)> {
    let summary = chain.summary?;
    let (running, context) = (summary.running?, summary.context_len?);
    let padding = u64::from(case.version().is_none_or(|version: Version| version.since(5, 11)));
    let (rows, columns) = (running.checked_add(padding)?, context.checked_add(4)?);
    let bytes = rows.checked_mul(columns)?.checked_mul(4)?;
    let how = format!("{rows} rows × ({context} + 4) columns × 4 B");
    Some((i64::try_from(bytes).ok()?, how))
}
