//! The ledger of each phase and rank, solved from the lines that exist, and what other fractions would give.

mod chain;
mod interval;
mod ledger;
mod what_if;

use plimsoll_ingest::log::Rank;

pub use ledger::{Place, Row, Source, Stage, StageLedger, Whole};
pub use what_if::{AtFraction, STEP, WhatIf};

/// What is known of one rank's start.
#[derive(Clone, PartialEq, Debug)]
pub struct RankLedger {
    /// Which rank.
    pub rank: Rank,
    /// Its stages in order.
    pub stages: Vec<StageLedger>,
    /// What other fractions would give; `None` when a line for it is missing.
    pub what_if: Option<WhatIf>,
}
