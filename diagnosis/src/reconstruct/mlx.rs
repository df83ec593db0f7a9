//! SGLang's laptop backend: one pool sized from what the machine has available at that moment.
//!
//! Source: SGLang 0.5.22 and later, `MlxModelRunner._compute_pool_size`: the smaller of `limit × f − used` and
//! `available × f`. With the second one in force the fraction is `budget / available`.

use plimsoll_core::memory::ledger::Account;
use plimsoll_ingest::log::{Amount, Event, Sglang};

use super::{
    Left, Limits, Pool, RankLedger,
    fraction::{Fraction, capped, known_fraction},
    ledger::{Place, Row, Source, Stage, Whole, close},
    what_if::WhatIf,
};
use crate::Case;

/// The ledger of the line that sizes the pool; `None` when there is none.
pub(super) fn ledger(case: &Case) -> Option<RankLedger> {
    let (event, line) = case.sglang().rfind(|(_, line)| matches!(line, Sglang::MlxPool { .. }))?;
    let Sglang::MlxPool { available, budget, slots, cell } = line else { return None };
    let place = Place { file: event.file, line: event.line };
    let (available, budget) = ((*available)?, (*budget)?);
    let fraction = known_fraction(case).or_else(|| solved(available, budget));
    let left = available - budget;
    let rows = vec![
        Row::new(Account::KvPool, budget, Source::Printed(place)),
        Row::new(Account::Free, left, Source::Solved("available − pool".to_owned())),
    ];
    let what_if = fraction.map(|fraction| WhatIf {
        flag: "--mem-fraction-static",
        fraction: fraction.value,
        fraction_half: fraction.half,
        scale: available,
        pool: budget,
        tokens: *slots,
        cell: cell.map(|cell| cell as f64),
        left: Some(left),
    });
    Some(RankLedger {
        rank: event.rank,
        stages: vec![close(Stage::AfterPools, (Whole::Available, available), rows)],
        fraction,
        capped: capped(case),
        pool: Some(Pool { tokens: *slots, bytes: Some(budget) }),
        check: None,
        left: Some(Left { bytes: left, stage: Stage::AfterPools, place: Some(place) }),
        before: Some(available),
        after: None,
        limits: limits(case.sglang().rev()),
        what_if,
    })
}

fn solved(available: Amount, budget: Amount) -> Option<Fraction> {
    if available.least() <= 0 {
        return None;
    }
    Fraction::solved(
        budget.least() as f64 / available.most() as f64,
        budget.most() as f64 / available.least() as f64,
    )
}

fn limits<'a>(mut lines: impl Iterator<Item = (&'a Event, &'a Sglang)>) -> Limits {
    let found = lines.find_map(|(_, line)| match line {
        Sglang::Summary { chunked_prefill_size, max_running_requests, context_len, .. } => {
            Some(Limits {
                chunk: chunked_prefill_size.and_then(|chunk| u64::try_from(chunk).ok()),
                running: *max_running_requests,
                context: *context_len,
            })
        }
        _ => None,
    });
    found.unwrap_or_default()
}
