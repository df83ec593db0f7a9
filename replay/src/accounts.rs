//! Who holds which memory, followed through a decision log record by record.

use crate::record::{FieldValue, Record};
use plimsoll_core::memory::ledger::Account;
use std::collections::BTreeMap;

/// An unsigned field; `None` when it is missing or something else.
#[must_use]
pub fn number(record: &Record, name: &str) -> Option<u64> {
    match record.fields.get(name)? {
        FieldValue::Unsigned(n) => Some(*n),
        _ => None,
    }
}

/// A text field; empty when it is missing or something else.
#[must_use]
pub fn text<'a>(record: &'a Record, name: &str) -> &'a str {
    match record.fields.get(name) {
        Some(FieldValue::Text(text)) => text,
        _ => "",
    }
}

/// One rank's device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankAccounts {
    /// Which rank.
    pub rank: u32,
    reserve: u64,
    total: Option<u64>,
    others: u64,
    /// What the system keeps of a memory in common with the host.
    system: u64,
    /// Page cache that readings count as used.
    page_cache: u64,
    held: BTreeMap<Account, u64>,
}

impl RankAccounts {
    /// Bytes that the device has in all, the driver's reserve included; `None` until a total was read.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.total?.checked_add(self.reserve)
    }

    /// Bytes that one account holds.
    #[must_use]
    pub fn of(&self, account: Account) -> u64 {
        match account {
            Account::DriverReserve => self.reserve,
            Account::OtherPrograms => {
                self.others.saturating_add(self.system).saturating_add(self.page_cache)
            }
            Account::Free => self.free().unwrap_or(0),
            own => self.held.get(&own).copied().unwrap_or(0),
        }
    }

    /// Bytes that nobody holds; `None` until a total was read.
    #[must_use]
    pub fn free(&self) -> Option<u64> {
        Some(self.room()?.saturating_sub(self.page_cache))
    }

    /// Bytes that could be taken: free ones and page cache.
    fn room(&self) -> Option<u64> {
        let own = self.held.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let others = self.others.saturating_add(self.system);
        Some(self.total?.saturating_sub(others).saturating_sub(own))
    }

    /// Page cache that somebody else needs is gone, and does not come back by itself.
    fn squeeze(&mut self) {
        if let Some(room) = self.room() {
            self.page_cache = self.page_cache.min(room);
        }
    }

    /// Every account that holds something, in printing order; with `free` they add up to the capacity.
    #[must_use]
    pub fn rows(&self) -> Vec<(Account, u64)> {
        let rows = Account::ALL.iter().map(|account| (*account, self.of(*account)));
        rows.filter(|(account, bytes)| *bytes > 0 || *account == Account::Free).collect()
    }
}

/// The devices of all ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accounts {
    ranks: Vec<RankAccounts>,
    host_others: u64,
    unified: bool,
}

impl Accounts {
    /// In rank order.
    #[must_use]
    pub fn ranks(&self) -> &[RankAccounts] {
        &self.ranks
    }

    /// One rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> Option<&RankAccounts> {
        self.ranks.get(rank as usize)
    }

    /// Takes the next record; kinds that move no memory change nothing.
    pub fn take(&mut self, record: &Record) {
        self.change(record);
        self.ranks.iter_mut().for_each(RankAccounts::squeeze);
    }

    fn change(&mut self, record: &Record) {
        match record.kind.as_str() {
            "capacity_read" => self.capacity(record),
            "reading" => self.reading(record),
            "segment_allocated" => self.segment(record, u64::saturating_add),
            "segment_freed" => self.segment(record, u64::saturating_sub),
            "leaked" => {
                let size = number(record, "size_bytes").unwrap_or(0);
                if let Some(state) = self.of(record) {
                    let held = state.held.entry(Account::Unaccounted).or_default();
                    *held = held.saturating_add(size);
                }
            }
            "observed" => self.observed(record),
            "tenant_changed" => {
                let host = self.host_part();
                let held = number(record, "held_bytes").unwrap_or(0);
                if let Some(state) = self.of(record) {
                    state.others = held.saturating_add(host);
                }
            }
            "host_tenant_changed" => {
                let held = number(record, "held_bytes").unwrap_or(0);
                let before = std::mem::replace(&mut self.host_others, held);
                self.move_host(before, held);
            }
            _ => {}
        }
    }

    fn of(&mut self, record: &Record) -> Option<&mut RankAccounts> {
        self.ranks.get_mut(record.rank? as usize)
    }

    /// What programs on the host take from devices that share its memory.
    const fn host_part(&self) -> u64 {
        if self.unified { self.host_others } else { 0 }
    }

    fn move_host(&mut self, before: u64, now: u64) {
        if self.unified {
            for state in &mut self.ranks {
                state.others = state.others.saturating_sub(before).saturating_add(now);
            }
        }
    }

    fn capacity(&mut self, record: &Record) {
        let total = number(record, "total_bytes");
        let tool = number(record, "tool_bytes");
        self.unified = text(record, "memory") == "unified";
        let host = number(record, "host_others_bytes").unwrap_or(0);
        self.host_others = host;
        self.ranks.push(RankAccounts {
            rank: record.rank.unwrap_or(0),
            reserve: tool.zip(total).map_or(0, |(tool, total)| tool.saturating_sub(total)),
            total,
            others: number(record, "others_bytes").unwrap_or(0).saturating_add(host),
            system: number(record, "system_bytes").unwrap_or(0),
            page_cache: number(record, "page_cache_bytes").unwrap_or(0),
            held: BTreeMap::new(),
        });
    }

    /// What a live device said: what is neither free nor the server's is other programs'. Host memory that
    /// is mapped and not touched is no one's loss, so a total may be less than what is held.
    fn observed(&mut self, record: &Record) {
        let (total, free) = (number(record, "total_bytes"), number(record, "free_bytes"));
        let Some(free) = free.filter(|_| text(record, "what") == "reading") else { return };
        if let Some(state) = self.of(record) {
            let own = state.held.values().fold(free, |sum, bytes| sum.saturating_add(*bytes));
            let total = total.or(state.total).unwrap_or(0).max(own);
            state.total = Some(total);
            state.others = total.saturating_sub(own);
        }
    }

    /// The first reading gives the total where none could be read.
    fn reading(&mut self, record: &Record) {
        let Some(free) = number(record, "free_bytes") else { return };
        let Some(state) = self.of(record) else { return };
        if state.total.is_none() {
            let own = state.held.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let beside = state.others.saturating_add(state.system);
            let taken = own.saturating_add(beside).saturating_add(state.page_cache);
            state.total = Some(free.saturating_add(taken));
        }
    }

    fn segment(&mut self, record: &Record, change: fn(u64, u64) -> u64) {
        let size = number(record, "size_bytes").unwrap_or(0);
        // A pool on the host is in the device's memory where there is only one.
        if text(record, "place") == "host" && !self.unified {
            return;
        }
        let account = Account::ALL.into_iter().find(|a| a.name() == text(record, "account"));
        if let Some(state) = self.of(record) {
            let held = state.held.entry(account.unwrap_or(Account::Unaccounted)).or_default();
            *held = change(*held, size);
        }
    }
}
