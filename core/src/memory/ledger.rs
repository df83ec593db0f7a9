//! The account of every byte of one rank's device, and of the host.
//!
//! A ledger closes: capacity = the sum of its rows + what stays unaccounted. What does not close is
//! a row of its own, never hidden.

use crate::{
    figure::{Estimate, Why},
    units::Bytes,
};

/// Who holds memory. The order is the order of printing: from the device up to what is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Account {
    /// Kept by the driver; no program sees it.
    DriverReserve,
    /// Other programs on the device.
    OtherPrograms,
    /// Context, loaded code and communicators of the server.
    Context,
    /// Model weights and what loading leaves behind.
    Weights,
    /// Weights of the draft model.
    DraftWeights,
    /// Copies beside the weights while they load: converted or repacked tensors.
    LoadScratch,
    /// Request-to-token table and the free lists of the pool.
    RequestTable,
    /// The static KV pool, padding rows included.
    KvPool,
    /// KV pool of the draft model.
    DraftPool,
    /// Per-request states of linear-attention layers.
    StatePool,
    /// Captured graphs and their static buffers.
    Graphs,
    /// Captured graphs of the draft model.
    DraftGraphs,
    /// Workspaces of attention, GEMM and collective libraries.
    Workspaces,
    /// What kernels under tuning try out, before graphs are captured.
    AutotuneScratch,
    /// Transient buffers of a forward pass at its peak.
    Activations,
    /// Taken from the device by an account that is not known.
    Unaccounted,
    /// Free for what comes next.
    Free,
}

impl Account {
    /// Every account, in printing order.
    pub const ALL: [Self; 17] = [
        Self::DriverReserve,
        Self::OtherPrograms,
        Self::Context,
        Self::Weights,
        Self::DraftWeights,
        Self::LoadScratch,
        Self::RequestTable,
        Self::KvPool,
        Self::DraftPool,
        Self::StatePool,
        Self::Graphs,
        Self::DraftGraphs,
        Self::Workspaces,
        Self::AutotuneScratch,
        Self::Activations,
        Self::Unaccounted,
        Self::Free,
    ];

    /// Name in the decision log and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DriverReserve => "driver_reserve",
            Self::OtherPrograms => "other_programs",
            Self::Context => "context",
            Self::Weights => "weights",
            Self::DraftWeights => "draft_weights",
            Self::LoadScratch => "load_scratch",
            Self::RequestTable => "request_table",
            Self::KvPool => "kv_pool",
            Self::DraftPool => "draft_pool",
            Self::StatePool => "state_pool",
            Self::Graphs => "graphs",
            Self::DraftGraphs => "draft_graphs",
            Self::Workspaces => "workspaces",
            Self::AutotuneScratch => "autotune_scratch",
            Self::Activations => "activations",
            Self::Unaccounted => "unaccounted",
            Self::Free => "free",
        }
    }

    /// Name for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::DriverReserve => "driver reserve",
            Self::OtherPrograms => "other programs",
            Self::Context => "context, code, communicators",
            Self::Weights => "weights",
            Self::DraftWeights => "draft weights",
            Self::LoadScratch => "loading (temporary)",
            Self::RequestTable => "request table, free lists",
            Self::KvPool => "KV pool",
            Self::DraftPool => "draft KV pool",
            Self::StatePool => "state pool",
            Self::Graphs => "graphs",
            Self::DraftGraphs => "draft graphs",
            Self::Workspaces => "workspaces",
            Self::AutotuneScratch => "autotuning (temporary)",
            Self::Activations => "activations (peak)",
            Self::Unaccounted => "unaccounted",
            Self::Free => "free",
        }
    }
}

/// One line of a ledger.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Who.
    pub account: Account,
    /// How much, with its interval.
    pub bytes: Estimate,
    /// From what.
    pub why: Why,
}

/// The account of one rank's device at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Ledger {
    /// Physical capacity.
    pub capacity: Bytes,
    rows: Vec<Row>,
}

/// Rows that hold more than the capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the accounts hold {held} of {capacity}: over by {}", .held.saturating_sub(*.capacity))]
pub struct Overdrawn {
    /// Sum of the rows.
    pub held: Bytes,
    /// What there is.
    pub capacity: Bytes,
}

impl Ledger {
    /// An empty account of `capacity`.
    #[must_use]
    pub const fn new(capacity: Bytes) -> Self {
        Self { capacity, rows: Vec::new() }
    }

    /// Adds a row; rows keep the order of [`Account`]. Zero rows are kept out.
    pub fn hold(&mut self, account: Account, bytes: Estimate, why: Why) {
        if bytes == Estimate::ZERO {
            return;
        }
        let at = self.rows.partition_point(|row| row.account <= account);
        self.rows.insert(at, Row { account, bytes, why });
    }

    /// The rows, in the order of [`Account`].
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Sum of the rows' best values.
    #[must_use]
    pub fn held(&self) -> Bytes {
        self.rows.iter().map(|row| row.bytes.mid).sum()
    }

    /// Best value of one account, all its rows added.
    #[must_use]
    pub fn of(&self, account: Account) -> Bytes {
        self.rows.iter().filter(|row| row.account == account).map(|row| row.bytes.mid).sum()
    }

    /// Capacity that no row holds.
    ///
    /// # Errors
    ///
    /// [`Overdrawn`] when the rows hold more than there is.
    pub fn rest(&self) -> Result<Bytes, Overdrawn> {
        let held = self.held();
        self.capacity.checked_sub(held).ok_or(Overdrawn { held, capacity: self.capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Tag;

    #[test]
    fn rows_keep_the_order_of_accounts_and_close() {
        let why = || Why::new(Tag::Measured, "given", "test");
        let mut ledger = Ledger::new(Bytes::gib(10));
        ledger.hold(Account::KvPool, Estimate::exact(Bytes::gib(4)), why());
        ledger.hold(Account::Weights, Estimate::exact(Bytes::gib(5)), why());
        ledger.hold(Account::Graphs, Estimate::ZERO, why());
        let order: Vec<_> = ledger.rows().iter().map(|r| r.account.name()).collect();
        assert_eq!(order, ["weights", "kv_pool"]);
        assert_eq!(ledger.rest(), Ok(Bytes::gib(1)));
        ledger.hold(Account::Free, Estimate::exact(Bytes::gib(2)), why());
        assert!(ledger.rest().is_err());
    }
}
