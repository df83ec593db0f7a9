//! The chance of a crash, from how many of so many runs crashed.
//!
//! Intervals are Clopper and Pearson's (Biometrika 26, 1934): exact, never too narrow, which is what a claim
//! of safety needs. They come from the beta distribution, computed with `libm`, so that every platform
//! prints the same digits.

/// How sure an interval is.
pub const CONFIDENCE: f64 = 0.95;

/// A chance with its interval, each from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chance {
    /// Crashes over runs.
    pub share: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

impl Chance {
    /// Of `died` out of `runs`; nothing is known of no run.
    #[must_use]
    pub fn of(died: u64, runs: u64) -> Self {
        if runs == 0 {
            return Self { share: 0.0, low: 0.0, high: 1.0 };
        }
        let tail = (1.0 - CONFIDENCE) / 2.0;
        Self {
            share: died as f64 / runs as f64,
            low: lower_bound(died, runs, tail),
            high: upper_bound(died, runs, tail),
        }
    }
}

/// The chance that is not exceeded with 95 % confidence, one-sided: with no crash of n it is 1 − 0.05^(1/n).
#[must_use]
pub fn at_most(died: u64, runs: u64) -> f64 {
    if runs == 0 { 1.0 } else { upper_bound(died, runs, 1.0 - CONFIDENCE) }
}

/// Runs without a crash that are needed to claim, with 95 % confidence, that the chance of a crash is at most
/// `chance`; `None` for a claim that no number of runs shows.
#[must_use]
pub fn runs_needed(chance: f64) -> Option<u64> {
    if !(chance > 0.0 && chance < 1.0) {
        return None;
    }
    // 1 − 0.05^(1/n) ≤ chance  ⇔  n ≥ log 0.05 / log (1 − chance).
    let n = libm::log(1.0 - CONFIDENCE) / libm::log1p(-chance);
    (n < 1e15).then(|| libm::ceil(n - 1e-9) as u64)
}

/// The chance at which so many crashes or fewer are as rare as `tail`.
fn upper_bound(died: u64, runs: u64, tail: f64) -> f64 {
    if died >= runs {
        return 1.0;
    }
    if died == 0 {
        return -libm::expm1(libm::log(tail) / runs as f64);
    }
    quantile(1.0 - tail, died as f64 + 1.0, (runs - died) as f64)
}

/// The chance at which so many crashes or more are as rare as `tail`.
fn lower_bound(died: u64, runs: u64, tail: f64) -> f64 {
    if died == 0 {
        return 0.0;
    }
    if died >= runs {
        return libm::exp(libm::log(tail) / runs as f64);
    }
    quantile(tail, died as f64, (runs - died) as f64 + 1.0)
}

/// Quantile of the beta distribution, by bisection: its function only rises.
fn quantile(p: f64, a: f64, b: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if incomplete_beta(middle, a, b) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The regularized incomplete beta function, by its continued fraction.
///
/// Source: Abramowitz and Stegun 26.5.8, evaluated by Lentz's method.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // The fraction converges fast on one side of the mean; the other is its mirror.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log_front = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b)
        + a * libm::log(x)
        + b * libm::log1p(-x);
    libm::exp(log_front) / (a * fraction(x, a, b))
}

/// The continued fraction's reciprocal value.
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let guard = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for i in 0..100_000 {
        let m = f64::from(i / 2);
        let term = match i {
            0 => 1.0,
            i if i % 2 == 0 => m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        d = 1.0 / guard(1.0 + term * d);
        c = guard(1.0 + term / c);
        let step = c * d;
        value *= step;
        if (step - 1.0).abs() < 1e-14 {
            break;
        }
    }
    // The fraction above is 1 + 1/(1 + …): its value less the leading one is what divides.
    1.0 / (value - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 5e-5, "{a}, not {b}");
    }

    /// Values of R's `binom.test` and of the closed forms.
    #[test]
    fn intervals_are_those_of_the_tables() {
        for (died, runs, low, high) in [
            (0, 20, 0.0, 0.16843),
            (1, 20, 0.00127, 0.24873),
            (5, 20, 0.08657, 0.49105),
            (10, 20, 0.27196, 0.72804),
            (20, 20, 0.83157, 1.0),
            (1, 10, 0.00253, 0.44502),
            (7, 100, 0.02861, 0.13892),
        ] {
            let chance = Chance::of(died, runs);
            near(chance.low, low);
            near(chance.high, high);
        }
    }

    #[test]
    fn a_claim_needs_its_number_of_seeds() {
        near(at_most(0, 1000), 1.0 - 0.05_f64.powf(1.0 / 1000.0));
        assert_eq!(runs_needed(0.001), Some(2995));
        assert_eq!(runs_needed(0.01), Some(299));
        assert_eq!(runs_needed(0.05), Some(59));
        assert_eq!(runs_needed(0.0), None);
        for chance in [0.1, 0.01, 0.003, 0.0001] {
            let n = runs_needed(chance).unwrap();
            assert!(at_most(0, n) <= chance && at_most(0, n - 1) > chance, "{chance}: {n}");
        }
    }

    /// The sum of the binomial probabilities up to `died`.
    fn binomial(died: u64, runs: u64, p: f64) -> f64 {
        let mut log_choose = 0.0;
        let mut sum = 0.0;
        for k in 0..=died {
            let (k, n) = (k as f64, runs as f64);
            sum += (log_choose + k * p.ln() + (n - k) * (1.0 - p).ln()).exp();
            log_choose += ((n - k) / (k + 1.0)).ln();
        }
        sum
    }

    proptest! {
        /// At the bounds the tails of the binomial distribution are 2.5 % each, summed up term by term.
        #[test]
        fn the_tails_are_what_they_are_said_to_be(runs in 1_u64..300, part in 0.0_f64..1.0) {
            let died = ((runs + 1) as f64 * part) as u64;
            let chance = Chance::of(died, runs);
            prop_assert!(chance.low <= chance.share && chance.share <= chance.high);
            if died < runs {
                prop_assert!((binomial(died, runs, chance.high) - 0.025).abs() < 1e-6);
            }
            if died > 0 {
                prop_assert!((1.0 - binomial(died - 1, runs, chance.low) - 0.025).abs() < 1e-6);
            }
        }

        #[test]
        fn many_runs_do_not_break_it(runs in 1_000_u64..10_000_000, part in 0.0_f64..1.0) {
            let died = (runs as f64 * part) as u64;
            let chance = Chance::of(died, runs);
            prop_assert!(0.0 <= chance.low && chance.low <= chance.share);
            prop_assert!(chance.share <= chance.high && chance.high <= 1.0);
            prop_assert!(chance.high - chance.low < 0.07);
        }
    }
}
