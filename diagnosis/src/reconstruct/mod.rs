//! The ledger of each phase and rank, solved from the lines that exist, and what other fractions would give.
//!
//! Every amount is an interval: what the printed digits allow. An account that no line gives is solved from
//! its neighbours; what does not close is `unaccounted`; what is not printed and does not follow says so.

mod chain;
mod check;
mod death;
mod fraction;
mod interval;
mod ledger;
mod mlx;
mod sglang;
mod vllm;
mod what_if;

use plimsoll_ingest::log::{Amount, Rank, Server};

pub use check::{BudgetCheck, sglang_budget};
pub use fraction::{Fraction, Known, capped, known_fraction};
pub(crate) use interval::between;
pub use ledger::{Place, Row, Source, Stage, StageLedger, Whole};
pub use what_if::{AtFraction, STEP, WhatIf};

use crate::{Case, study::Study};

/// What is known of one rank's start.
#[derive(Clone, PartialEq, Debug)]
pub struct RankLedger {
    /// Which rank.
    pub rank: Rank,
    /// Its stages in order.
    pub stages: Vec<StageLedger>,
    /// The fraction in force.
    pub fraction: Option<Fraction>,
    /// Whether a cap on tokens or bytes sizes the pool, so that the fraction is only a gate.
    pub capped: bool,
    /// The pools.
    pub pool: Option<Pool>,
    /// The pool that was made against the rule of the release.
    pub check: Option<BudgetCheck>,
    /// The last reading of free memory in the start, and when it was.
    pub left: Option<Left>,
    /// Free before loading, reduced over ranks as the engine does (vLLM: free at start).
    pub before: Option<Amount>,
    /// SGLang: free when the pools are sized, reduced likewise.
    pub after: Option<Amount>,
    /// What the scheduler of SGLang prints at the end of the start: chunk, running requests, context.
    pub limits: Limits,
    /// What other fractions would give; `None` when a line for it is missing.
    pub what_if: Option<WhatIf>,
}

/// What bounds a server's passes, as printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// New tokens of a prefill pass: SGLang's chunk, vLLM's `max_num_batched_tokens`.
    pub chunk: Option<u64>,
    /// Requests at once.
    pub running: Option<u64>,
    /// Longest sequence.
    pub context: Option<u64>,
}

/// Free memory at the last reading of a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// How much.
    pub bytes: Amount,
    /// When.
    pub stage: Stage,
    /// The line; `None` where it is solved from several.
    pub place: Option<Place>,
}

/// Pools of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Token slots, where printed.
    pub tokens: Option<u64>,
    /// K, V and states, where printed; the budget (below zero) of a start that was refused for it.
    pub bytes: Option<Amount>,
}

impl Pool {
    /// Bytes of one token, both ends, as printed digits allow.
    #[must_use]
    pub fn cell(&self) -> Option<(f64, f64)> {
        let (tokens, bytes) = (self.tokens.filter(|tokens| *tokens > 0)?, self.bytes?);
        (bytes.least() > 0)
            .then(|| (bytes.least() as f64 / tokens as f64, bytes.most() as f64 / tokens as f64))
    }

    /// What rounding down to a page, and a page of padding rows, may take.
    fn rounding(&self) -> i64 {
        let page = self.tokens.map_or(0, page_bound);
        self.cell().map_or(0, |(_, most)| ((page + 1) as f64 * most) as i64)
    }
}

/// The largest page size that a pool of so many tokens can have: pages divide it, and none is above 256.
pub(crate) const fn page_bound(tokens: u64) -> u64 {
    let largest = tokens & tokens.wrapping_neg();
    if largest > 256 || tokens == 0 { 256 } else { largest }
}

impl RankLedger {
    /// The ledger of SGLang with the fraction known, and what others would give.
    #[must_use]
    pub(crate) fn at(mut self, fraction: Fraction) -> Self {
        self.fraction = Some(fraction);
        let budget = || Some(sglang_budget(self.before?, self.after?, fraction));
        let pool = self.pool.and_then(|pool| pool.bytes).or_else(budget);
        // Under a cap the pool does not follow the fraction.
        let moves = self.before.zip(pool).filter(|_| !self.capped);
        self.what_if = moves.map(|(scale, pool)| WhatIf {
            flag: "--mem-fraction-static",
            fraction: fraction.value,
            fraction_half: fraction.half,
            scale,
            pool,
            tokens: self.pool.and_then(|pool| pool.tokens),
            cell: None,
            left: self.left.map(|left| left.bytes),
        });
        self
    }

    /// The most tokens of a cap (`--max-total-tokens`) at which this much is surely left; `None` when there is
    /// as much already, when nothing is left for a pool then, or when a figure for it is missing.
    #[must_use]
    pub fn cap_for_free(&self, wanted: i64) -> Option<u64> {
        let pool = self.pool?;
        let (tokens, (cell, _)) = (pool.tokens?, pool.cell()?);
        let short = wanted.saturating_sub(self.left?.bytes.least());
        let given_up = (short as f64 / cell).ceil();
        let cap = tokens as f64 - given_up;
        (short > 0 && cap >= 1.0).then_some(cap as u64)
    }

    /// The ledger of a stage.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&StageLedger> {
        self.stages.iter().find(|ledger| ledger.stage == stage)
    }
}

/// The ledgers of all ranks: the rank with the least left first, which decides.
#[must_use]
pub fn ledgers(case: &Case) -> Vec<RankLedger> {
    let mut ranks = match case.server() {
        Some(Server::Sglang) => {
            mlx::ledger(case).map_or_else(|| sglang::ranks(case), |ledger| vec![ledger])
        }
        Some(Server::Vllm) => vllm::ranks(case),
        _ => Vec::new(),
    };
    let died = |rank: &RankLedger| rank.stage(Stage::Death).is_none();
    let left = |rank: &RankLedger| rank.left.map_or(i64::MAX, |left| left.bytes.bytes);
    // vLLM's smallest rank has the smallest pool.
    let pool = |rank: &RankLedger| rank.pool.and_then(|p| p.bytes).map_or(i64::MAX, |b| b.bytes);
    ranks.sort_by_key(|rank| (died(rank), left(rank), pool(rank), rank.rank));
    ranks
}

/// What other fractions would give, on the rank that decides; with the bytes of a token of the model, where the
/// catalog knows it.
#[must_use]
pub fn what_if(case: &Case) -> Option<WhatIf> {
    Study::of(case).what_if()
}
