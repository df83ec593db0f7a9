//! A case with what is solved from it once: the ledgers, and the plan of the rank that decides.

use plimsoll_core::figure::FigureValue;
use plimsoll_ingest::log::Server;
use plimsoll_replay::plan::Plan;

use crate::{
    Case,
    planned::{DeviceKnown, Planned, planned},
    reconstruct::{Fraction, Known, RankLedger, WhatIf, ledgers},
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
    /// Solves what the lines give, and adds what the model and the device say.
    pub(crate) fn of(case: &'a Case) -> Self {
        let mut ledgers = ledgers(case);
        let plans = ledgers.first().map_or_else(Vec::new, |rank| planned(case, rank));
        if let Some(first) = plans.first() {
            ledgers = ledgers.into_iter().map(|rank| with_plan(case, rank, first)).collect();
        }
        Self { case, ledgers, plans }
    }

    /// What other fractions would give, on the first rank whose lines say.
    pub(crate) fn what_if(&self) -> Option<WhatIf> {
        self.ledgers.iter().find_map(|rank| rank.what_if)
    }

    /// The rank that decides.
    pub(crate) fn rank(&self) -> Option<&RankLedger> {
        self.ledgers.first()
    }
}

/// The automatic fraction where no line gives one, and the bytes of a token.
fn with_plan(case: &Case, mut rank: RankLedger, planned: &Planned) -> RankLedger {
    let sglang = case.server() == Some(Server::Sglang);
    // What is automatic goes by the device: a guessed one does not do.
    if rank.fraction.is_none()
        && sglang
        && planned.known == DeviceKnown::Named
        && let Some(value) = planned.plan.fraction
    {
        rank = rank.at(Fraction { value, half: 0.0, known: Known::Automatic });
    }
    let printed = rank.pool.and_then(|pool| pool.cell());
    if let (Some(what_if), Some((least, most)), Some(cell)) =
        (&mut rank.what_if, printed, cell(&planned.plan))
    {
        // Pools with states, windows or paddings do not grow by the cell alone.
        what_if.cell = (least <= cell && cell <= most).then_some(cell);
    }
    rank
}

fn cell(plan: &Plan) -> Option<f64> {
    match plan.ran.start.figure("kv_bytes_per_token")?.value {
        FigureValue::Bytes(bytes) => Some(bytes.0 as f64),
        FigureValue::Float(bytes) => Some(bytes),
        _ => None,
    }
}
