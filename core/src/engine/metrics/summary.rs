//! Mean and percentiles of a set of times, in integers.

/// Times in nanoseconds, rounded to the nearest, half up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

/// A place between two neighbours of the ascending order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rank {
    /// The lower neighbour, from 0.
    pub(super) low: u64,
    /// Hundredths of the way to the upper one.
    pub(super) part: u64,
}

impl Rank {
    /// Where the `percent`th percentile of `count` values lies: `percent / 100 × (count − 1)`.
    ///
    /// Source: numpy `percentile`, method `linear`; the benchmark clients of SGLang and vLLM call it.
    const fn of(percent: u64, count: u64) -> Self {
        let (whole, rest) = ((count - 1) / 100, (count - 1) % 100);
        Self { low: whole * percent + rest * percent / 100, part: rest * percent % 100 }
    }
}

impl Summary {
    /// Of `count` values; `at` answers the values at a place and behind it.
    pub(super) fn of(
        count: u64,
        sum: u128,
        max: u64,
        mut at: impl FnMut(Rank) -> (u64, u64),
    ) -> Option<Self> {
        if count == 0 {
            return None;
        }
        let mut percentile = |percent| {
            let rank = Rank::of(percent, count);
            let (low, high) = at(rank);
            let way = u128::from(high.saturating_sub(low)) * u128::from(rank.part);
            low.saturating_add(u64::try_from((way + 50) / 100).unwrap_or(u64::MAX))
        };
        Some(Self {
            mean: rounded(sum, u128::from(count)),
            p50: percentile(50),
            p90: percentile(90),
            p95: percentile(95),
            p99: percentile(99),
            max,
        })
    }

    /// Of a list, which is sorted here.
    #[must_use]
    pub fn of_list(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let sum = values.iter().map(|value| u128::from(*value)).sum();
        let max = values.last().copied().unwrap_or_default();
        let value = |place: u64| {
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            values.get(place).copied().unwrap_or(max)
        };
        let at = |rank: Rank| (value(rank.low), value(rank.low + 1));
        Self::of(values.len() as u64, sum, max, at)
    }
}

/// `part / whole` to the nearest integer, half up; 0 of nothing.
pub(super) fn rounded(part: u128, whole: u128) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from((part + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_numpy() {
        // numpy.percentile([10, 20, 40, 80, 160], [50, 90, 95, 99]) = 40, 128, 144, 156.8
        let summary = Summary::of_list(vec![80, 10, 160, 40, 20]).unwrap();
        assert_eq!((summary.p50, summary.p90, summary.p95, summary.p99), (40, 128, 144, 157));
        assert_eq!((summary.mean, summary.max), (62, 160));
        // numpy.percentile([1, 2], 50) = 1.5, half up.
        assert_eq!(Summary::of_list(vec![2, 1]).unwrap().p50, 2);
        let one = Summary::of_list(vec![7]).unwrap();
        assert_eq!(one, Summary { mean: 7, p50: 7, p90: 7, p95: 7, p99: 7, max: 7 });
        assert_eq!(Summary::of_list(Vec::new()), None);
    }
}
