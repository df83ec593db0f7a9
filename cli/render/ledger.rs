//! A ledger on one screen: who holds what, and that it adds up.

use super::table::{Align, Table};
use plimsoll_core::{
    figure::Estimate,
    memory::ledger::{Account, Ledger},
    units::{Bytes, Tokens},
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
    for row in ledger.rows() {
        let tokens = beside.iter().find(|b| b.account == row.account).map(|b| b.tokens.to_string());
        table.row(vec![
            row.account.label().to_owned(),
            gib(row.bytes.mid),
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
