//! Who holds what on one rank, kept as sums.

use plimsoll_core::{memory::ledger::Account, units::Bytes};
use std::collections::BTreeMap;

/// Bytes by account, and their sum.
#[derive(Clone, Default)]
pub(crate) struct Accounts {
    held: BTreeMap<Account, Bytes>,
    sum: Bytes,
}

impl Accounts {
    /// Adds to an account.
    pub(crate) fn charge(&mut self, account: Account, size: Bytes) {
        *self.held.entry(account).or_default() += size;
        self.sum += size;
    }

    /// Takes from an account what was charged before.
    pub(crate) fn discharge(&mut self, account: Account, size: Bytes) {
        if let Some(held) = self.held.get_mut(&account) {
            *held = held.saturating_sub(size);
        }
        self.sum = self.sum.saturating_sub(size);
    }

    /// All accounts together.
    pub(crate) const fn sum(&self) -> Bytes {
        self.sum
    }

    /// A copy to which a ledger's other rows are added.
    pub(crate) fn rows(&self) -> BTreeMap<Account, Bytes> {
        self.held.clone()
    }
}

/// Makes rows sum to `total`. What is missing was taken by nobody who is known; what is too much
/// was given back by somebody who is not ours: other programs first, then what the driver kept
/// for our context.
pub(crate) fn close(rows: &mut BTreeMap<Account, Bytes>, total: Bytes) {
    let sum: Bytes = rows.values().copied().sum();
    *rows.entry(Account::Unaccounted).or_default() += total.saturating_sub(sum);
    let mut excess = sum.saturating_sub(total);
    for account in [Account::OtherPrograms, Account::Unaccounted, Account::Context] {
        let row = rows.entry(account).or_default();
        let less = excess.min(*row);
        *row = row.saturating_sub(less);
        excess = excess.saturating_sub(less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(pairs: &[(Account, u64)]) -> BTreeMap<Account, Bytes> {
        pairs.iter().map(|(account, bytes)| (*account, Bytes(*bytes))).collect()
    }

    #[test]
    fn rows_are_closed_from_either_side() {
        let mut short = rows(&[(Account::Weights, 60), (Account::Free, 30)]);
        close(&mut short, Bytes(100));
        assert_eq!(short[&Account::Unaccounted], Bytes(10));
        let mut over =
            rows(&[(Account::OtherPrograms, 5), (Account::Context, 20), (Account::Free, 90)]);
        close(&mut over, Bytes(100));
        assert_eq!(over[&Account::OtherPrograms], Bytes(0));
        assert_eq!(over[&Account::Context], Bytes(10));
        assert_eq!(over.values().copied().sum::<Bytes>(), Bytes(100));
    }

    #[test]
    fn accounts_keep_their_sum() {
        let mut accounts = Accounts::default();
        accounts.charge(Account::Weights, Bytes(7));
        accounts.charge(Account::KvPool, Bytes(5));
        accounts.discharge(Account::Weights, Bytes(7));
        assert_eq!(accounts.sum(), Bytes(5));
        assert_eq!(accounts.rows()[&Account::Weights], Bytes(0));
    }
}
