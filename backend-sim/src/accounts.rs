//! Totals by account, kept as amounts come and go.

use plimsoll_core::{memory::ledger::Account, units::Bytes};

/// What each account holds, and the sum; every operation is O(1).
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    held: [Bytes; Account::ALL.len()],
    total: Bytes,
}

impl Accounts {
    pub(crate) const fn total(&self) -> Bytes {
        self.total
    }

    pub(crate) const fn of(&self, account: Account) -> Bytes {
        self.held[account as usize]
    }

    pub(crate) fn add(&mut self, account: Account, bytes: Bytes) {
        self.held[account as usize] += bytes;
        self.total += bytes;
    }

    pub(crate) const fn sub(&mut self, account: Account, bytes: Bytes) {
        let held = &mut self.held[account as usize];
        debug_assert!(held.0 >= bytes.0, "more is given back than was taken");
        *held = held.saturating_sub(bytes);
        self.total = self.total.saturating_sub(bytes);
    }

    /// Moves an amount from one account to another.
    pub(crate) fn shift(&mut self, from: Account, to: Account, bytes: Bytes) {
        self.sub(from, bytes);
        self.add(to, bytes);
    }

    /// Accounts and amounts, in the order of [`Account`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Account, Bytes)> {
        Account::ALL.into_iter().map(|account| (account, self.of(account)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_has_its_own_place() {
        let mut accounts = Accounts::default();
        for (n, account) in (1..).zip(Account::ALL) {
            accounts.add(account, Bytes(n));
        }
        for (n, (account, bytes)) in (1..).zip(accounts.iter()) {
            assert_eq!((bytes, accounts.of(account)), (Bytes(n), Bytes(n)));
        }
        let weights = accounts.of(Account::Weights);
        accounts.shift(Account::Free, Account::Weights, Bytes(3));
        assert_eq!(accounts.of(Account::Weights), weights + Bytes(3));
        let count = Account::ALL.len() as u64;
        assert_eq!(accounts.total(), Bytes((1..=count).sum()));
    }
}
