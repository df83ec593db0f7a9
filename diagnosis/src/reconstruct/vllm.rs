//! The ledgers of a vLLM start, rank by rank.
//!
//! Source: vLLM `Worker.determine_available_memory`: `total × utilization − weights − growth outside torch −
//! activation peak (− graphs, from 0.20) = KV`; V0 prints the same sum in one line.

use plimsoll_core::memory::ledger::Account;
use plimsoll_ingest::log::{Amount, Event, Rank, Vllm};

use super::{
    Left, Limits, Pool, RankLedger,
    check::BudgetCheck,
    death,
    fraction::{Fraction, capped, known_fraction},
    interval::{between, scaled},
    ledger::{Place, Row, Source, Stage, StageLedger, Whole, close},
    what_if::WhatIf,
};
use crate::Case;

/// An amount with its line.
type Read = Option<(Amount, Place)>;

/// What one rank prints.
#[derive(Clone, Debug, Default)]
struct Lines {
    weights: Read,
    /// Weights and what grew outside torch, in one figure (0.27 and later).
    consumed: Read,
    non_torch: Read,
    peak: Read,
    kv: Read,
    graph_estimate: Read,
    graphs: Read,
    free_at_start: Read,
    total: Read,
    wanted: Read,
    /// Weights and activation peak in one figure (V0 up to 0.6.4).
    peak_torch: Read,
}

/// Every rank that says memory.
pub(super) fn ranks(case: &Case) -> Vec<RankLedger> {
    let mut ranks: Vec<Rank> =
        case.vllm().filter(|(_, line)| of_rank(line)).map(|(event, _)| event.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if let [_] = ranks[..] {
        // One rank: what the engine's own process prints is about it.
        let rank = ranks.first().copied().unwrap_or_default();
        return vec![ledger(case, rank, &Lines::read(case.vllm()))];
    }
    let of = |rank: Rank| {
        ledger(case, rank, &Lines::read(case.vllm().filter(move |(event, _)| event.rank == rank)))
    };
    ranks.into_iter().map(of).collect()
}

/// Lines that a worker prints about its own device.
fn of_rank(line: &Vllm) -> bool {
    matches!(
        line,
        Vllm::LoadEnd { .. }
            | Vllm::FreeAtStart { .. }
            | Vllm::Budget { .. }
            | Vllm::Profile { .. }
            | Vllm::Usage { .. }
            | Vllm::AvailableKv { .. }
            | Vllm::GraphEstimate { .. }
            | Vllm::CaptureEnd { .. }
            | Vllm::GraphPool { .. }
    )
}

impl Lines {
    fn read<'a>(lines: impl Iterator<Item = (&'a Event, &'a Vllm)>) -> Self {
        let mut read = Self::default();
        for (event, line) in lines {
            read.take(Place { file: event.file, line: event.line }, line);
        }
        read
    }

    fn take(&mut self, place: Place, line: &Vllm) {
        let seen = |amount: &Option<Amount>| amount.map(|amount| (amount, place));
        let keep = |slot: &mut Read, found: Read| *slot = found.or(*slot);
        match line {
            Vllm::LoadEnd { weights } => keep(&mut self.weights, Some((*weights, place))),
            Vllm::FreeAtStart { free, total, wanted, .. } => {
                keep(&mut self.free_at_start, Some((*free, place)));
                keep(&mut self.total, Some((*total, place)));
                keep(&mut self.wanted, seen(wanted));
            }
            Vllm::Budget { total, budget, .. } => {
                keep(&mut self.total, Some((*total, place)));
                keep(&mut self.wanted, Some((*budget, place)));
            }
            Vllm::Profile {
                weights, non_torch, activation_peak, kv, peak_torch, total, ..
            } => {
                keep(&mut self.peak_torch, seen(peak_torch));
                keep(&mut self.total, seen(total));
                keep(&mut self.weights, seen(weights));
                keep(&mut self.non_torch, seen(non_torch));
                keep(&mut self.peak, seen(activation_peak));
                keep(&mut self.kv, seen(kv));
            }
            Vllm::Usage { .. } => self.usage(place, line),
            Vllm::KvGiven { free, reserved } => {
                keep(&mut self.free_at_start, seen(free));
                keep(&mut self.kv, seen(reserved));
            }
            Vllm::AvailableKv { amount } => keep(&mut self.kv, Some((*amount, place))),
            Vllm::GraphEstimate { amount } => {
                keep(&mut self.graph_estimate, Some((*amount, place)));
            }
            // Below zero is a fault of some releases: nothing is known then.
            Vllm::CaptureEnd { took: Some(took) } if took.bytes >= 0 => {
                keep(&mut self.graphs, Some((*took, place)));
            }
            Vllm::GraphPool { actual, .. } if actual.bytes >= 0 => {
                keep(&mut self.graphs, Some((*actual, place)));
            }
            _ => {}
        }
    }

    /// The sum at the end of a start. With growth outside torch apart, its first figure is the weights
    /// alone.
    fn usage(&mut self, place: Place, line: &Vllm) {
        let Vllm::Usage {
            free,
            total,
            wanted,
            consumed,
            activation_peak,
            non_torch,
            graphs,
            in_use,
            ..
        } = line
        else {
            return;
        };
        let seen = |amount: &Option<Amount>| amount.map(|amount| (amount, place));
        let keep = |slot: &mut Read, found: &Option<Amount>| *slot = seen(found).or(*slot);
        let first = if non_torch.is_some() { &mut self.weights } else { &mut self.consumed };
        keep(first, consumed);
        keep(&mut self.free_at_start, free);
        keep(&mut self.total, total);
        keep(&mut self.wanted, wanted);
        keep(&mut self.non_torch, non_torch);
        keep(&mut self.peak, activation_peak);
        keep(&mut self.graphs, graphs);
        keep(&mut self.kv, in_use);
    }
}

fn ledger(case: &Case, rank: Rank, lines: &Lines) -> RankLedger {
    let total = total(case, lines);
    let known = known_fraction(case);
    let fraction = known.or_else(|| solved(lines, total));
    let wanted = wanted(lines, total, known);
    let pool = pool(case, lines);
    let check = wanted.and_then(|wanted| check(lines, wanted)).filter(|_| !capped(case));
    let mut stages = Vec::new();
    stages.extend(at_start(lines, total));
    stages.extend(budget(lines, wanted));
    stages.extend(ready(lines, total));
    stages.extend(death::ledger(case, rank, &stages));
    let left = left(lines).map(|bytes| Left { bytes, stage: Stage::Ready, place: None });
    let what_if = what_if(fraction, total, pool.as_ref(), left.map(|left| left.bytes));
    let what_if = what_if.filter(|_| !capped(case));
    let before = lines.free_at_start.map(|(free, _)| free);
    RankLedger {
        rank,
        stages,
        fraction,
        capped: capped(case),
        pool,
        check,
        left,
        before,
        after: None,
        limits: limits(case),
        what_if,
    }
}

fn limits(case: &Case) -> Limits {
    let number = |name: &str| case.arg(name).and_then(|text| text.parse().ok());
    let printed = case.vllm().find_map(|(_, line)| match line {
        Vllm::BatchedTokens { tokens } => Some(*tokens),
        _ => None,
    });
    let context = case.vllm().find_map(|(_, line)| match line {
        Vllm::Concurrency { tokens, .. } => Some(*tokens),
        Vllm::KvTokens { per_request, .. } => per_request.map(|(tokens, _)| tokens),
        _ => None,
    });
    Limits {
        chunk: printed.or_else(|| number("max_num_batched_tokens")),
        running: number("max_num_seqs"),
        context: context.or_else(|| number("max_model_len")),
    }
}

/// The device's total: printed, of the profile, or from the remark on graph memory, which says the same
/// amount as a share of it.
fn total(case: &Case, lines: &Lines) -> Option<Amount> {
    let printed = lines.total.map(|(total, _)| total).or_else(|| case.capacity());
    printed.or_else(|| {
        let (estimate, _) = lines.graph_estimate?;
        let share = case.vllm().find_map(|(_, line)| match line {
            Vllm::UtilizationNote { current: Some(now), without: Some(without), .. } => {
                Some(now - without)
            }
            _ => None,
        })?;
        // Printed with four decimals.
        let (low, high) = (share - 1e-4, share + 1e-4);
        let of = |bytes: i64, share: f64| (bytes as f64 / share) as i64;
        (low > 0.0).then(|| between(of(estimate.least(), high), of(estimate.most(), low)))
    })
}

/// `total × utilization`.
fn wanted(lines: &Lines, total: Option<Amount>, fraction: Option<Fraction>) -> Option<Amount> {
    lines.wanted.map(|(wanted, _)| wanted).or_else(|| Some(scaled(total?, fraction?.value)))
}

/// What the budget pays before KV, where every part is printed.
fn charged(lines: &Lines) -> Option<Amount> {
    let amount = |read: Read| read.map(|(amount, _)| amount);
    if let Some(both) = amount(lines.peak_torch) {
        return Some(both + amount(lines.non_torch)?);
    }
    let held = match amount(lines.consumed) {
        Some(consumed) => consumed,
        None => amount(lines.weights)? + amount(lines.non_torch)?,
    };
    let graphs = amount(lines.graph_estimate).unwrap_or_default();
    Some(held + amount(lines.peak)? + graphs)
}

fn check(lines: &Lines, wanted: Amount) -> Option<BudgetCheck> {
    let (kv, _) = lines.kv?;
    Some(BudgetCheck::of(wanted - charged(lines)?, kv, 0))
}

fn solved(lines: &Lines, total: Option<Amount>) -> Option<Fraction> {
    let (kv, _) = lines.kv?;
    let (sum, total) = (charged(lines)? + kv, total?);
    if total.least() <= 0 {
        return None;
    }
    Fraction::solved(
        sum.least() as f64 / total.most() as f64,
        sum.most() as f64 / total.least() as f64,
    )
}

fn pool(case: &Case, lines: &Lines) -> Option<Pool> {
    let tokens = case.vllm().filter_map(|(_, line)| match line {
        Vllm::KvTokens { tokens, .. } => Some(*tokens),
        Vllm::Blocks { gpu, .. } => Some(gpu.saturating_mul(block_size(case))),
        _ => None,
    });
    let tokens = tokens.min();
    let bytes = lines.kv.map(|(kv, _)| kv);
    (tokens.is_some() || bytes.is_some()).then_some(Pool { tokens, bytes })
}

/// Tokens of a block: as given, else 16.
fn block_size(case: &Case) -> u64 {
    let given = match case.launch.as_ref().map(|launch| &launch.engine) {
        Some(plimsoll_ingest::launch::EngineLaunch::Vllm(args)) => args.block_size,
        _ => None,
    };
    given.or_else(|| case.arg("block_size")?.parse().ok()).unwrap_or(16)
}

fn row(account: Account, read: Read) -> Option<Row> {
    read.map(|(amount, place)| Row::new(account, amount, Source::Printed(place)))
}

/// Weights and what grew outside torch; in newer releases one figure.
fn held(lines: &Lines) -> Vec<Row> {
    if let Some(mut both) = row(Account::Weights, lines.consumed) {
        both.detail = Some("with what grew outside torch");
        return vec![both];
    }
    let weights =
        row(Account::Weights, lines.weights).unwrap_or_else(|| Row::unknown(Account::Weights));
    let mut outside =
        row(Account::Context, lines.non_torch).unwrap_or_else(|| Row::unknown(Account::Context));
    outside.detail = Some("outside torch, since the start");
    vec![weights, outside]
}

fn at_start(lines: &Lines, total: Option<Amount>) -> Option<StageLedger> {
    let (free, place) = lines.free_at_start?;
    let total = total?;
    let how = "total − free at start: context, communicators and other programs".to_owned();
    let rows = vec![
        Row::new(Account::Context, total - free, Source::Solved(how)),
        Row::new(Account::Free, free, Source::Printed(place)),
    ];
    Some(close(Stage::BeforeLoad, (Whole::Capacity, total), rows))
}

/// What `gpu_memory_utilization` asks for, and what of it goes to KV.
fn budget(lines: &Lines, wanted: Option<Amount>) -> Option<StageLedger> {
    if lines.kv.is_none() && lines.peak.is_none() && lines.peak_torch.is_none() {
        return None;
    }
    if let Some(both) = row(Account::Weights, lines.peak_torch) {
        return Some(close(Stage::AfterPools, (Whole::Budget, wanted?), oldest(lines, both)));
    }
    let mut rows = held(lines);
    let mut peak =
        row(Account::Activations, lines.peak).unwrap_or_else(|| Row::unknown(Account::Activations));
    peak.detail = Some("peak of the profile run");
    if lines.peak.is_none() && lines.non_torch.is_none() && lines.consumed.is_none() {
        // Neither is printed: they are one row.
        rows.retain(|row| row.account != Account::Context);
        peak.detail = Some("peak of the profile run, and what grew outside torch");
    }
    rows.push(peak);
    rows.extend(row(Account::Graphs, lines.graph_estimate).map(|mut graphs| {
        graphs.detail = Some("estimate");
        graphs
    }));
    rows.push(row(Account::KvPool, lines.kv).unwrap_or_else(|| Row::unknown(Account::KvPool)));
    Some(close(Stage::AfterPools, (Whole::Budget, wanted?), rows))
}

/// The oldest form: weights and activation peak in one figure.
fn oldest(lines: &Lines, mut both: Row) -> Vec<Row> {
    both.detail = Some("with the activation peak");
    let account = |account, read| row(account, read).unwrap_or_else(|| Row::unknown(account));
    vec![both, account(Account::Context, lines.non_torch), account(Account::KvPool, lines.kv)]
}

/// When the server is ready: the peak is free again between passes.
fn ready(lines: &Lines, total: Option<Amount>) -> Option<StageLedger> {
    let (free, start) = (lines.free_at_start?.0, total?);
    let left = left(lines)?;
    let how = "total − free at start: context, communicators and other programs".to_owned();
    let mut rows = vec![Row::new(Account::Context, start - free, Source::Solved(how))];
    rows.extend(held(lines));
    rows.extend(row(Account::Graphs, lines.graphs));
    rows.extend(row(Account::KvPool, lines.kv));
    let how = "free at start − weights − growth − graphs − KV pool".to_owned();
    rows.push(Row::new(Account::Free, left, Source::Solved(how)));
    Some(close(Stage::Ready, (Whole::Capacity, start), rows))
}

/// Free between passes: what was free at the start less all that stays. Needs every part.
fn left(lines: &Lines) -> Option<Amount> {
    let amount = |read: Read| read.map(|(amount, _)| amount);
    let held = match amount(lines.consumed) {
        Some(consumed) => consumed,
        None => amount(lines.weights)? + amount(lines.non_torch)?,
    };
    Some(amount(lines.free_at_start)? - held - amount(lines.graphs)? - amount(lines.kv)?)
}

fn what_if(
    fraction: Option<Fraction>,
    total: Option<Amount>,
    pool: Option<&Pool>,
    left: Option<Amount>,
) -> Option<WhatIf> {
    let fraction = fraction?;
    Some(WhatIf {
        flag: "--gpu-memory-utilization",
        fraction: fraction.value,
        fraction_half: fraction.half,
        scale: total?,
        pool: pool?.bytes?,
        tokens: pool?.tokens,
        cell: None,
        left,
    })
}
