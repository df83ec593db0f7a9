//! Arithmetic on printed amounts that keeps the truth inside.

use plimsoll_ingest::log::Amount;

/// The amount with these ends; the ends are ordered.
pub(crate) fn between(low: i64, high: i64) -> Amount {
    let (low, high) = (low.min(high), low.max(high));
    // Wide enough for both ends when their sum is odd; no overflow at the ends of i64.
    let bytes = low.midpoint(high);
    Amount { bytes, half: high.saturating_sub(bytes).max(bytes.saturating_sub(low)) }
}

/// `amount × factor`, each end rounded outward.
pub(crate) fn scaled(amount: Amount, factor: f64) -> Amount {
    let a = amount.least() as f64 * factor;
    let b = amount.most() as f64 * factor;
    between(a.min(b).floor() as i64, a.max(b).ceil() as i64)
}

/// What both allow; `None` when they exclude each other.
pub(crate) fn meet(a: Amount, b: Amount) -> Option<Amount> {
    let (low, high) = (a.least().max(b.least()), a.most().min(b.most()));
    (low <= high).then(|| between(low, high))
}

/// The smaller of two: the truth is the smaller of the two truths.
pub(crate) fn least(a: Amount, b: Amount) -> Amount {
    between(a.least().min(b.least()), a.most().min(b.most()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_stay_inside() {
        let odd = between(-3, 4);
        assert!(odd.least() <= -3 && odd.most() >= 4 && odd.half <= 4);
        let third = scaled(Amount { bytes: 100, half: 1 }, 1.0 / 3.0);
        assert!(third.least() <= 33 && third.most() >= 34);
        assert_eq!(meet(between(0, 10), between(12, 14)), None);
        assert_eq!(meet(between(0, 10), between(4, 12)), Some(between(4, 10)));
    }
}
