//! When pages are lent to others, and when they are taken again.

use std::time::Duration;

use plimsoll_core::policy::plimsoll::{Lending, Move, PoolPages, Room};

use crate::{engine::Pressure, plan::MemoryPlan};

/// How often memory is looked at.
const EVERY: Duration = Duration::from_millis(100);

/// Reads what memory is left; `None` where it cannot be read now.
pub(super) type Look = Box<dyn FnMut() -> Option<Room> + Send>;

/// Looks at the memory and says how many pages are to be lent.
pub(super) struct Watch {
    look: Look,
    lending: Lending,
    pages: u64,
    /// Pages that stay, whatever others want.
    kept: u64,
}

impl Watch {
    /// For the pool of a plan, with pages of so many tokens.
    pub(super) fn new(look: Look, plan: &MemoryPlan, page_size: u64) -> Self {
        Self {
            look,
            lending: Lending { margin: plan.margin, page: plan.page },
            pages: plan.pages,
            kept: plan.settings.least_pages(page_size).min(plan.pages),
        }
    }
}

impl Pressure for Watch {
    fn every(&self) -> Duration {
        EVERY
    }

    fn target(&mut self, lent: u64) -> u64 {
        let Some(room) = (self.look)() else { return lent };
        let spare = self.pages.saturating_sub(self.kept).saturating_sub(lent);
        match self.lending.decide(room, PoolPages { spare, lent }) {
            Move::Stay => lent,
            Move::Give(pages) => lent.saturating_add(pages),
            Move::Take(pages) => lent.saturating_sub(pages),
        }
    }
}
