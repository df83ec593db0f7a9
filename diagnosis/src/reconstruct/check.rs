//! The pool that was made against the pool that the rule gives.

use plimsoll_ingest::log::Amount;

use super::{fraction::Fraction, interval::scaled};

/// Budget by the rule, and what became of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BudgetCheck {
    /// Memory for the pools by the rule of the release.
    pub expected: Amount,
    /// What the lines say the pools take.
    pub printed: Amount,
    /// Expected − printed.
    pub difference: Amount,
    /// What rounding down to whole pages, and paddings, may explain, bytes.
    pub allowed: i64,
}

impl BudgetCheck {
    /// `after − before × (1 − f)` against the pools.
    ///
    /// Source: SGLang `profile_max_num_token`, every release from 0.4.6.
    pub(crate) fn sglang(
        before: Amount,
        after: Amount,
        fraction: Fraction,
        printed: Amount,
        allowed: i64,
    ) -> Self {
        Self::of(sglang_budget(before, after, fraction), printed, allowed)
    }

    pub(crate) fn of(expected: Amount, printed: Amount, allowed: i64) -> Self {
        Self { expected, printed, difference: expected - printed, allowed }
    }

    /// Whether printed digits and rounding to pages explain the difference.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.difference.most() >= -self.allowed && self.difference.least() <= self.allowed
    }

    /// `closes to 0.01 GiB`, or `2.10 GiB below the rule`.
    #[must_use]
    pub fn words(&self) -> String {
        let apart = Amount::exact(self.difference.bytes.saturating_abs());
        if self.closes() {
            return format!("closes to {apart}");
        }
        let side = if self.difference.bytes > 0 { "below" } else { "above" };
        format!("{apart} {side} the rule")
    }
}

/// `after − before × (1 − f)`; below zero when the weights alone take more than the fraction.
#[must_use]
pub fn sglang_budget(before: Amount, after: Amount, fraction: Fraction) -> Amount {
    let outside = |f: f64| scaled(before, 1.0 - f);
    let (low, high) = (fraction.value - fraction.half, fraction.value + fraction.half);
    let (least, most) = (after - outside(low), after - outside(high));
    super::interval::between(least.least().min(most.least()), least.most().max(most.most()))
}
