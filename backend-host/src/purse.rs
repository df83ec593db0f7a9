//! How much memory may still be touched, and by whom.

use crate::spec::TouchPolicy;
use plimsoll_core::{memory::ledger::Account, units::Bytes};
use std::{cell::Cell, rc::Rc};

/// Whose memory is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The server's.
    Server,
    /// Other programs'.
    Neighbour,
}

impl Owner {
    pub(crate) const fn of(account: Account) -> Self {
        match account {
            Account::OtherPrograms => Self::Neighbour,
            _ => Self::Server,
        }
    }
}

/// Whether an account's memory is touched. What comes and goes is, so that real memory moves with it; what
/// is taken once and kept (weights, pools, tables, context) is only mapped.
pub(crate) const fn is_touched(account: Account) -> bool {
    matches!(
        account,
        Account::OtherPrograms
            | Account::Graphs
            | Account::Workspaces
            | Account::Activations
            | Account::Unaccounted
    )
}

/// Real memory behind a machine at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Mapped, touched or not; addresses that are only reserved are not.
    pub mapped: Bytes,
    /// Of it, what was really touched: the machine's part of this process's resident memory.
    pub touched: Bytes,
    /// Most that was touched at one time.
    pub touched_peak: Bytes,
    /// What would have been touched since the start, had the policy allowed it.
    pub spared: Bytes,
}

/// Shows the footprint of a machine that somebody else holds.
#[derive(Clone, Debug, Default)]
pub struct Meter(Rc<Cell<Footprint>>);

impl Meter {
    /// The footprint now; the last one when the machine is gone.
    #[must_use]
    pub fn read(&self) -> Footprint {
        self.0.get()
    }

    fn change(&self, change: impl FnOnce(&mut Footprint)) {
        let mut print = self.0.get();
        change(&mut print);
        self.0.set(print);
    }
}

/// Hands out leave to touch.
#[derive(Debug)]
pub(crate) struct Purse {
    left: Bytes,
    neighbours_left: Bytes,
    meter: Meter,
}

impl Purse {
    /// `total` may be lower than the policy's.
    pub(crate) fn new(policy: &TouchPolicy, total: Bytes) -> Self {
        let neighbours_left = policy.neighbours.min(total);
        Self { left: total, neighbours_left, meter: Meter::default() }
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// How much of `want` new bytes of an account may be touched. What should be, and may not, is spared.
    pub(crate) fn leave(&mut self, account: Account, want: Bytes) -> Bytes {
        if !is_touched(account) {
            return Bytes::ZERO;
        }
        let most = match Owner::of(account) {
            Owner::Server => self.left,
            Owner::Neighbour => self.left.min(self.neighbours_left),
        };
        let leave = want.min(most);
        let spared = want.saturating_sub(leave);
        self.meter.change(|print| print.spared = print.spared.saturating_add(spared));
        leave
    }

    /// Counts what was mapped and touched.
    pub(crate) fn spend(&mut self, owner: Owner, mapped: Bytes, touched: Bytes) {
        self.left = self.left.saturating_sub(touched);
        if owner == Owner::Neighbour {
            self.neighbours_left = self.neighbours_left.saturating_sub(touched);
        }
        self.meter.change(|print| {
            print.mapped = print.mapped.saturating_add(mapped);
            print.touched = print.touched.saturating_add(touched);
            print.touched_peak = print.touched_peak.max(print.touched);
        });
    }

    /// Counts what was unmapped.
    pub(crate) fn refund(&mut self, owner: Owner, mapped: Bytes, touched: Bytes) {
        self.left = self.left.saturating_add(touched);
        if owner == Owner::Neighbour {
            self.neighbours_left = self.neighbours_left.saturating_add(touched);
        }
        self.meter.change(|print| {
            print.mapped = print.mapped.saturating_sub(mapped);
            print.touched = print.touched.saturating_sub(touched);
        });
    }
}
