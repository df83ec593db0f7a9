//! What other fractions would give, from the figures of a log alone.

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::Amount;

use super::{
    interval::{between, scaled},
    page_bound,
};

/// One step by which the operating rules move the fraction.
pub const STEP: f64 = 0.02;

/// What the fraction is a fraction of, and what stood when it was in force: pool and free memory move
/// against each other by `Δf × scale`.
///
/// Source: SGLang `profile_max_num_token` (scale is free memory before loading, every release), vLLM
/// `Worker.determine_available_memory` (scale is the total of the device).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WhatIf {
    /// The flag.
    pub flag: &'static str,
    /// The fraction in force.
    pub fraction: f64,
    /// How far off it may be: 0 where it is printed or given, half the interval where it was solved.
    pub fraction_half: f64,
    /// What it is a fraction of, on the rank that decides.
    pub scale: Amount,
    /// Bytes of the pools (below zero where the start was refused for it).
    pub pool: Amount,
    /// Token slots; `None` where there is no pool or no line prints them.
    pub tokens: Option<u64>,
    /// Bytes of a token, where the model is known and the printed pool agrees; else they follow from the pool.
    pub cell: Option<f64>,
    /// Free at the end of the start, or at the last reading of it.
    pub left: Option<Amount>,
}

/// What a fraction gives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AtFraction {
    /// The fraction.
    pub fraction: f64,
    /// Bytes of the pools there; at or below zero there is no pool.
    pub pool: Amount,
    /// Fewest and most tokens that the printed digits allow.
    pub tokens: Option<(u64, u64)>,
    /// Free at the same moment.
    pub left: Option<Amount>,
}

impl AtFraction {
    /// `159,230 to 159,310 tokens, 5.52 GiB left`.
    #[must_use]
    pub fn words(&self) -> String {
        let tokens = self.tokens.map(|(low, high)| tokens_words(low, high));
        let left = self.left.map(|left| format!("{left} left"));
        let pool = tokens.is_none().then(|| format!("{} for the pool", self.pool));
        let parts: Vec<String> = [tokens, pool, left].into_iter().flatten().collect();
        parts.join(", ")
    }
}

/// Tokens with their interval; one figure where it is narrow against itself.
fn tokens_words(low: u64, high: u64) -> String {
    if low == high {
        return format!("{} tokens", group_thousands(low));
    }
    // Digits that the interval leaves open are not shown.
    let width = high - low;
    let unit = 10_u64.pow(width.ilog10());
    let middle = low.midpoint(high).saturating_add(unit / 2) / unit * unit;
    format!("about {} tokens", group_thousands(middle))
}

impl WhatIf {
    /// Pool, tokens and free memory at another fraction.
    #[must_use]
    pub fn at_fraction(&self, fraction: f64) -> AtFraction {
        let moved = self.moved(fraction);
        let pool = self.pool + moved;
        AtFraction {
            fraction,
            pool,
            tokens: self.tokens.and_then(|tokens| self.tokens_at(tokens, moved)),
            left: self.left.map(|left| left - moved),
        }
    }

    /// `(f − f₀) × scale`, both ends of f₀.
    fn moved(&self, fraction: f64) -> Amount {
        let by = fraction - self.fraction;
        let (a, b) = (
            scaled(self.scale, by - self.fraction_half),
            scaled(self.scale, by + self.fraction_half),
        );
        between(a.least().min(b.least()), a.most().max(b.most()))
    }

    /// Tokens go with the bytes: `T + T × moved / pool`; so the digits of the pool that are not printed
    /// weigh on the difference only.
    fn tokens_at(&self, tokens: u64, moved: Amount) -> Option<(u64, u64)> {
        if self.pool.least() <= 0 || tokens == 0 {
            return None;
        }
        let cell = |pool: i64| pool as f64 / tokens as f64;
        let least = self.cell.unwrap_or_else(|| cell(self.pool.least()));
        let most = self.cell.unwrap_or_else(|| cell(self.pool.most()));
        let more = |moved: i64, cell: f64| moved as f64 / cell;
        let ends = [
            more(moved.least(), least),
            more(moved.least(), most),
            more(moved.most(), least),
            more(moved.most(), most),
        ];
        let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let at = |more: f64| (tokens as f64 + more).max(0.0);
        // Both pools are rounded down to a page, and the printed one has a page of padding rows, which weighs
        // on a token as `page / tokens`.
        let page = page_bound(tokens) as f64;
        let padding = if self.cell.is_some() { 0.0 } else { page / tokens as f64 };
        let slack = |more: f64| page + 1.0 + (more.abs() * padding).ceil();
        let (low, high) = (at(low.floor() - slack(low)), at(high.ceil() + slack(high)));
        (high > 0.0).then_some((low as u64, high as u64))
    }

    /// The largest fraction in steps of 0.01 at which this much is surely left; `None` when no free memory
    /// was printed, or when that leaves no pool.
    #[must_use]
    pub fn fraction_for_free(&self, wanted: i64) -> Option<f64> {
        self.left?;
        self.down(|at| at.left.is_some_and(|left| left.least() >= wanted) && at.pool.least() > 0)
    }

    /// The smallest fraction in steps of 0.01 at which the pool surely holds this many tokens; `None` when
    /// none below 1 does.
    #[must_use]
    pub fn fraction_for_tokens(&self, wanted: u64) -> Option<f64> {
        self.tokens?;
        self.up(|at| at.tokens.is_some_and(|(low, _)| low >= wanted))
    }

    /// The smallest fraction in steps of 0.01 that surely gives this many bytes to the pools.
    #[must_use]
    pub fn fraction_for_pool(&self, wanted: i64) -> Option<f64> {
        self.up(|at| at.pool.least() >= wanted)
    }

    /// Below it there is no pool; the ends that the printed digits allow. `None` without a scale.
    #[must_use]
    pub fn floor(&self) -> Option<(f64, f64)> {
        self.crossing(self.pool)
    }

    /// Above it less than `need` is left; the ends that the printed digits allow.
    #[must_use]
    pub fn ceiling(&self, need: i64) -> Option<(f64, f64)> {
        let over = Amount::exact(need) - self.left?;
        self.crossing(over)
    }

    /// The fraction at which `amount − (f₀ − f) × scale` is zero.
    fn crossing(&self, amount: Amount) -> Option<(f64, f64)> {
        if self.scale.least() <= 0 {
            return None;
        }
        let at = |bytes: i64, scale: i64| self.fraction - bytes as f64 / scale as f64;
        let (least, most) = (self.scale.least(), self.scale.most());
        let ends = [
            at(amount.least(), least),
            at(amount.least(), most),
            at(amount.most(), least),
            at(amount.most(), most),
        ];
        let low = ends.iter().copied().fold(f64::INFINITY, f64::min) - self.fraction_half;
        let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max) + self.fraction_half;
        Some((low, high))
    }

    /// One step up; `None` at the end of the scale.
    #[must_use]
    pub fn next_step(&self) -> Option<AtFraction> {
        let next = hundredths(self.fraction + STEP);
        (next < 1.0).then(|| self.at_fraction(next))
    }

    /// What a step of the fraction moves between pool and free memory.
    #[must_use]
    pub fn step_bytes(&self) -> Amount {
        scaled(self.scale, STEP)
    }

    fn down(&self, holds: impl Fn(&AtFraction) -> bool) -> Option<f64> {
        let hundredth = |n: u32| f64::from(n) / 100.0;
        (1..100).rev().map(hundredth).find(|f| holds(&self.at_fraction(*f)))
    }

    fn up(&self, holds: impl Fn(&AtFraction) -> bool) -> Option<f64> {
        let hundredth = |n: u32| f64::from(n) / 100.0;
        (1..100).map(hundredth).find(|f| holds(&self.at_fraction(*f)))
    }
}

/// To whole thousandths, as fractions are typed.
fn hundredths(f: f64) -> f64 {
    (f * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::units::GIB;

    /// 94.04 GiB before loading, 0.93, a pool of 15.13 GiB for 231,120 tokens, 0.82 GiB left.
    fn margin() -> WhatIf {
        WhatIf {
            flag: "--mem-fraction-static",
            fraction: 0.93,
            fraction_half: 0.0,
            scale: Amount::gib(94.04, 2),
            pool: Amount::gib(15.13, 2),
            tokens: Some(231_120),
            cell: None,
            left: Some(Amount::gib(0.82, 2)),
        }
    }

    #[test]
    fn another_fraction_moves_bytes_between_pool_and_free() {
        let at = margin().at_fraction(0.88);
        assert_eq!(format!("{}", at.left.unwrap()), "5.52 GiB");
        let (low, high) = at.tokens.unwrap();
        assert!(low <= 159_276 && 159_277 <= high && high - low < 200, "{low} {high}");
        assert!(
            at.words().starts_with("about 159,") && at.words().ends_with(" tokens, 5.52 GiB left")
        );
    }

    #[test]
    fn wanted_amounts_give_the_fraction() {
        let what_if = margin();
        let wanted = (1.49 * GIB as f64) as i64;
        assert_eq!(what_if.fraction_for_free(wanted), Some(0.92));
        assert_eq!(what_if.fraction_for_tokens(159_000), Some(0.88));
        assert_eq!(what_if.fraction_for_free(20 * GIB as i64), None);
        let (low, high) = what_if.floor().unwrap();
        assert!(low < 0.7691 && 0.7691 < high && high - low < 0.001, "{low} {high}");
        let (low, high) = what_if.ceiling(wanted).unwrap();
        assert!(low < 0.9229 && 0.9228 < high, "{low} {high}");
        assert_eq!(what_if.next_step().unwrap().fraction, 0.95);
    }
}
