//! The broker: one count of all memory, shared by the server and its neighbours.
//!
//! It maps nothing. It says what fits, and keeps the account of every byte.

use crate::spec::{HostSpec, Limit, RankSpec};
use plimsoll_core::{
    backend::{BackendError, HostLimit, Place, Rank},
    memory::ledger::Account,
    units::Bytes,
};
use std::collections::BTreeMap;

/// The memory of one device, or of the host.
#[derive(Debug)]
struct Budget {
    /// What programs can hold in all.
    usable: Bytes,
    /// Segments are rounded up to a multiple of it.
    granularity: Bytes,
    /// What other programs hold.
    others: Bytes,
    /// What segments and parts of ranges hold, by account.
    held: BTreeMap<Account, Bytes>,
    /// Sum of `held`.
    sum: Bytes,
}

impl Budget {
    const fn new(usable: Bytes, granularity: Bytes, others: Bytes) -> Self {
        Self { usable, granularity, others, held: BTreeMap::new(), sum: Bytes::ZERO }
    }

    const fn free(&self) -> Bytes {
        self.usable.saturating_sub(self.sum.saturating_add(self.others))
    }
}

/// Who asks, and of which memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) rank: Rank,
    pub(crate) account: Account,
    pub(crate) place: Place,
}

impl Claim {
    pub(crate) const fn device(rank: Rank, account: Account) -> Self {
        Self { rank, account, place: Place::Device }
    }

    /// The refusal of this claim for now.
    pub(crate) const fn out_of_memory(self, requested: Bytes, free: Bytes) -> BackendError {
        let Self { rank, account, place } = self;
        match place {
            Place::Device => BackendError::OutOfMemory { rank, account, requested, free },
            Place::Host => {
                let limit = HostLimit::Host;
                BackendError::HostOutOfMemory { rank, account, limit, requested, free }
            }
        }
    }
}

/// Counts the memory of all ranks and of the host.
#[derive(Debug)]
pub(crate) struct Broker {
    limit: Limit,
    ranks: Vec<(RankSpec, Budget)>,
    host: Budget,
}

impl Broker {
    /// A machine at rest, other programs at their start.
    ///
    /// # Errors
    ///
    /// [`BackendError::TooLarge`] when a rank's reserve and other programs exceed its capacity.
    pub(crate) fn new(spec: &HostSpec) -> Result<Self, BackendError> {
        let mut ranks = Vec::new();
        for (rank, device) in (0..).map(Rank).zip(&spec.ranks) {
            let requested = device.driver_reserve.saturating_add(device.others);
            if requested > device.capacity {
                let (account, capacity) = (Account::OtherPrograms, device.capacity);
                return Err(BackendError::TooLarge { rank, account, requested, capacity });
            }
            let usable = device.capacity.saturating_sub(device.driver_reserve);
            ranks.push((*device, Budget::new(usable, device.granularity, device.others)));
        }
        let host = Budget::new(spec.host_available, Bytes::ZERO, Bytes::ZERO);
        Ok(Self { limit: spec.limit, ranks, host })
    }

    pub(crate) const fn limit(&self) -> Limit {
        self.limit
    }

    pub(crate) fn spec(&self, rank: Rank) -> Result<&RankSpec, BackendError> {
        let found = self.ranks.get(rank.0 as usize);
        found.map(|(spec, _)| spec).ok_or(BackendError::Unknown("rank"))
    }

    fn budget(&self, claim: Claim) -> Result<&Budget, BackendError> {
        let (_, budget) =
            self.ranks.get(claim.rank.0 as usize).ok_or(BackendError::Unknown("rank"))?;
        Ok(if claim.place == Place::Host { &self.host } else { budget })
    }

    fn budget_mut(&mut self, claim: Claim) -> Option<&mut Budget> {
        match claim.place {
            Place::Host => Some(&mut self.host),
            Place::Device => self.ranks.get_mut(claim.rank.0 as usize).map(|(_, budget)| budget),
        }
    }

    /// Free memory of one device, as it is counted.
    pub(crate) fn device_free(&self, rank: Rank) -> Result<Bytes, BackendError> {
        Ok(self.budget(Claim::device(rank, Account::Free))?.free())
    }

    /// Free memory of the host, as it is counted.
    pub(crate) const fn host_free(&self) -> Bytes {
        self.host.free()
    }

    /// What other programs hold of the claim's memory.
    pub(crate) fn others(&self, claim: Claim) -> Result<Bytes, BackendError> {
        Ok(self.budget(claim)?.others)
    }

    /// Every row of one device: it sums to the capacity while the broker refuses.
    pub(crate) fn rows(&self, rank: Rank) -> Result<Vec<(Account, Bytes)>, BackendError> {
        let (spec, budget) =
            self.ranks.get(rank.0 as usize).ok_or(BackendError::Unknown("rank"))?;
        let mut rows = budget.held.clone();
        *rows.entry(Account::DriverReserve).or_default() += spec.driver_reserve;
        *rows.entry(Account::OtherPrograms).or_default() += budget.others;
        *rows.entry(Account::Free).or_default() += budget.free();
        Ok(rows.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect())
    }

    /// What a segment of `size` costs, if it may be taken; takes nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::exact`].
    pub(crate) fn segment(&self, claim: Claim, size: Bytes) -> Result<Bytes, BackendError> {
        let budget = self.budget(claim)?;
        let Claim { rank, account, .. } = claim;
        let capacity = budget.usable;
        // A size near 2^64 has no multiple above it.
        let rounded = size.0.checked_next_multiple_of(budget.granularity.0.max(1)).map(Bytes);
        let rounded =
            rounded.ok_or(BackendError::TooLarge { rank, account, requested: size, capacity })?;
        self.exact(claim, rounded)?;
        Ok(rounded)
    }

    /// Whether `size`, exactly, may be taken; takes nothing.
    ///
    /// # Errors
    ///
    /// While the broker refuses: [`BackendError::TooLarge`], and as [`Self::room`].
    pub(crate) fn exact(&self, claim: Claim, size: Bytes) -> Result<(), BackendError> {
        let capacity = self.budget(claim)?.usable;
        if size > capacity && self.limit == Limit::Broker {
            let Claim { rank, account, .. } = claim;
            return Err(BackendError::TooLarge { rank, account, requested: size, capacity });
        }
        self.room(claim, size)
    }

    /// Whether `requested` more may be taken now.
    ///
    /// # Errors
    ///
    /// While the broker refuses: [`BackendError::OutOfMemory`] of a device,
    /// [`BackendError::HostOutOfMemory`] of the host.
    pub(crate) fn room(&self, claim: Claim, requested: Bytes) -> Result<(), BackendError> {
        let free = self.budget(claim)?.free();
        if requested > free && self.limit == Limit::Broker {
            return Err(claim.out_of_memory(requested, free));
        }
        Ok(())
    }

    /// Counts `size` more for a claim that had room.
    pub(crate) fn take(&mut self, claim: Claim, size: Bytes) {
        if let Some(budget) = self.budget_mut(claim) {
            let held = budget.held.entry(claim.account).or_default();
            *held = held.saturating_add(size);
            budget.sum = budget.sum.saturating_add(size);
        }
    }

    /// Counts `size` less.
    pub(crate) fn give(&mut self, claim: Claim, size: Bytes) {
        if let Some(budget) = self.budget_mut(claim) {
            let held = budget.held.entry(claim.account).or_default();
            *held = held.saturating_sub(size);
            budget.sum = budget.sum.saturating_sub(size);
        }
    }

    /// Other programs hold `held` of the claim's memory from now on.
    pub(crate) fn set_others(&mut self, claim: Claim, held: Bytes) {
        if let Some(budget) = self.budget_mut(claim) {
            budget.others = held;
        }
    }
}
