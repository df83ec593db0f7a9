//! A case with what is solved from it once: the ledgers, and the plan of the rank that decides.

use crate::{
    Case,
    planned::{Planned, planned},
    reconstruct::{RankLedger, ledgers},
};

/// A case, studied.
pub(crate) struct Study<'a> {
    /// The case.
    pub(crate) case: &'a Case,
    /// The ledgers of all ranks, the one that decides first.
    pub(crate) ledgers: Vec<RankLedger>,
    /// Plans of that rank's start, one a device that it may be.
    pub(crate) plans: Vec<Planned>,
}

impl<'a> Study<'a> {
    /// Solves what the lines give.
    pub(crate) fn of(case: &'a Case) -> Self {
        let ledgers = ledgers(case);
        let plans = ledgers.first().map_or_else(Vec::new, |rank| planned(case, rank));
        Self { case, ledgers, plans }
    }

    /// The rank that decides.
    pub(crate) fn rank(&self) -> Option<&RankLedger> {
        self.ledgers.first()
    }
}
