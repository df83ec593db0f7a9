//! What a loaded engine really holds, beside its plan.

use crate::model::ModelMemory;
use plimsoll_core::{
    policy::plimsoll::{Part, Plan},
    units::Bytes,
};

/// One part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which.
    pub part: Part,
    /// By the plan.
    pub planned: Bytes,
    /// As counted; `None` for what can only be seen as a part of the whole.
    pub held: Option<Bytes>,
}

/// The plan beside the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// All parts of the plan but what it leaves free.
    pub rows: Vec<Held>,
    /// What of the process lies in RAM.
    pub resident: Bytes,
}

impl Audit {
    /// A loaded model and a reading of the process beside the plan.
    #[must_use]
    pub fn new(plan: &Plan, model: &ModelMemory, resident: Bytes) -> Self {
        let held = |part| match part {
            Part::Process => Some(plan.of(Part::Process)),
            Part::Weights => Some(Bytes(model.weights)),
            Part::Rotary => Some(Bytes(model.rope)),
            Part::Arena => Some(Bytes(model.arena)),
            Part::Scratch => Some(Bytes(model.scratch)),
            Part::KvPool => Some(Bytes(model.kv)),
            _ => None,
        };
        // The kernel's tables are not the process's own memory; the other two are left free.
        let outside = [Part::PageTables, Part::Margin, Part::Rest];
        let parts = Part::ALL.into_iter().filter(|part| !outside.contains(part));
        let rows = parts.map(|part| Held { part, planned: plan.of(part), held: held(part) });
        Self { rows: rows.collect(), resident }
    }

    /// What the counted parts explain.
    #[must_use]
    pub fn explained(&self) -> Bytes {
        self.rows.iter().filter_map(|row| row.held).sum()
    }

    /// What the plan sets aside for what is not counted apart.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.rows.iter().filter(|row| row.held.is_none()).map(|row| row.planned).sum()
    }

    /// What of the process no counted part explains.
    #[must_use]
    pub fn unexplained(&self) -> Bytes {
        self.resident.saturating_sub(self.explained())
    }

    /// What is beyond the plan: more than the budgets allow, or a counted part that outgrew its row.
    #[must_use]
    pub fn beyond(&self) -> Bytes {
        let grown =
            self.rows.iter().map(|row| row.held.unwrap_or(Bytes::ZERO).saturating_sub(row.planned));
        self.unexplained().saturating_sub(self.budget()).saturating_add(grown.sum())
    }
}
