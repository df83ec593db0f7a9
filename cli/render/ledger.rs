//! A ledger on one screen: who holds what, and that it adds up.

use super::table::{Align, Table};
use plimsoll_core::{
    figure::Estimate,
    memory::ledger::{Account, Ledger, Row},
    units::{Bytes, GIB, Tokens},
};

/// Tokens that stand beside an account.
pub struct Beside {
    /// The account.
    pub account: Account,
    /// Its tokens.
    pub tokens: Tokens,
}

/// GiB with two decimals, without the unit.
fn gib(bytes: Bytes) -> String {
    format!("{:.2}", bytes.as_gib_f64())
}

/// Accounts that no log prints: they take up the rounding first, so that the rows add up on screen.
const ROUNDING_FIRST: [Account; 6] = [
    Account::Context,
    Account::DriverReserve,
    Account::RequestTable,
    Account::Workspaces,
    Account::Unaccounted,
    Account::Graphs,
];

/// Each amount in hundredths of a GiB, rounded such that they add up to the rounded total: a figure
/// may be rounded the other way (by less than 0.01 GiB), those that no log prints before the others.
fn hundredths(rows: &[Row], total: Bytes) -> Vec<u64> {
    let exact = |bytes: Bytes| u128::from(bytes.0) * 100;
    let nearest = |bytes: Bytes| ((exact(bytes) + u128::from(GIB / 2)) / u128::from(GIB)) as u64;
    let mut shown: Vec<u64> = rows.iter().map(|row| nearest(row.bytes.mid)).collect();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let late = |account: Account| {
        ROUNDING_FIRST.iter().position(|a| *a == account).unwrap_or(ROUNDING_FIRST.len())
    };
    order.sort_by_key(|at| late(rows[*at].account));
    let mut missing =
        i128::from(nearest(total)) - shown.iter().map(|n| i128::from(*n)).sum::<i128>();
    for at in order {
        let real = exact(rows[at].bytes.mid);
        let now = u128::from(shown[at]) * u128::from(GIB);
        if missing > 0 && now < real {
            shown[at] += 1;
            missing -= 1;
        } else if missing < 0 && now > real {
            shown[at] -= 1;
            missing += 1;
        }
    }
    shown
}

fn share(bytes: Bytes, of: Bytes) -> String {
    if of == Bytes::ZERO {
        String::new()
    } else {
        format!("{:.1} %", 100.0 * bytes.0 as f64 / of.0 as f64)
    }
}

fn interval(estimate: Estimate) -> String {
    if estimate.is_exact() {
        String::new()
    } else {
        format!("{} to {}", gib(estimate.low), gib(estimate.high))
    }
}

/// The table: one row an account, the capacity at the end.
pub fn table(ledger: &Ledger, beside: &[Beside]) -> Table {
    let mut table = Table::new(&[
        ("held by", Align::Left),
        ("GiB", Align::Right),
        ("interval", Align::Left),
        ("share", Align::Right),
        ("tokens", Align::Right),
        ("", Align::Left),
    ]);
    let shown = hundredths(ledger.rows(), ledger.capacity);
    for (row, shown) in ledger.rows().iter().zip(shown) {
        let tokens = beside.iter().find(|b| b.account == row.account).map(|b| b.tokens.to_string());
        table.row(vec![
            row.account.label().to_owned(),
            format!("{}.{:02}", shown / 100, shown % 100),
            interval(row.bytes),
            share(row.bytes.mid, ledger.capacity),
            tokens.unwrap_or_default(),
            row.why.tag.name().to_owned(),
        ]);
    }
    table.row(vec![
        "capacity".to_owned(),
        gib(ledger.capacity),
        String::new(),
        share(ledger.capacity, ledger.capacity),
        String::new(),
        String::new(),
    ]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::figure::{Tag, Why};

    fn ledger(hundredths_and_more: &[(Account, f64)]) -> Ledger {
        let bytes = |gib: f64| Bytes::from_gib_f64(gib);
        let total = hundredths_and_more.iter().map(|(_, gib)| bytes(*gib)).sum();
        let mut ledger = Ledger::new(total);
        for (account, gib) in hundredths_and_more {
            let why = Why::new(Tag::Computed, "test", "test");
            ledger.hold(*account, Estimate::exact(bytes(*gib)), why);
        }
        ledger
    }

    #[test]
    fn rows_add_up_on_screen_and_figures_of_logs_stay() {
        let ledger = ledger(&[
            (Account::Context, 1.0049),
            (Account::Weights, 72.3349),
            (Account::KvPool, 15.1349),
            (Account::Graphs, 3.7549),
            (Account::Free, 0.8249),
        ]);
        let shown = hundredths(ledger.rows(), ledger.capacity);
        assert_eq!(shown, [101, 7233, 1513, 376, 82]);
        assert_eq!(shown.iter().sum::<u64>(), 9305);
        assert_eq!(gib(ledger.capacity), "93.05");
    }

    #[test]
    fn every_figure_is_within_a_hundredth_and_the_sum_is_exact() {
        for seed in 1..500_u64 {
            let gib = |n: u64| (seed * 7919 * (n + 3) % 9973) as f64 / 977.0;
            let accounts = Account::ALL.iter().zip(0..);
            let rows: Vec<(Account, f64)> = accounts.map(|(a, n)| (*a, gib(n))).collect();
            let ledger = ledger(&rows);
            let shown = hundredths(ledger.rows(), ledger.capacity);
            let total = (ledger.capacity.as_gib_f64() * 100.0).round() as u64;
            assert_eq!(shown.iter().sum::<u64>(), total, "seed {seed}");
            for (row, shown) in ledger.rows().iter().zip(&shown) {
                let apart = row.bytes.mid.as_gib_f64() * 100.0 - *shown as f64;
                assert!(apart.abs() < 1.0, "seed {seed}: {apart}");
            }
        }
    }
}
