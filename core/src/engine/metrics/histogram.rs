//! Times counted in buckets whose width is a fixed part of their value.

use super::summary::{Rank, Summary};
use crate::units::Nanos;

/// Values below this have a bucket of their own.
const EXACT: u64 = 2 * HALF;
/// Buckets of each power of two above.
const HALF: u64 = 1 << HALF_BITS;
const HALF_BITS: u32 = 10;

/// A histogram of times. Below 2,048 ns a value stands for itself; above, a bucket is at most 1/1024 of its
/// values wide and answers with its middle, so that a percentile is off by less than 0.05 %. Mean and largest are exact.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    largest: u64,
}

impl Histogram {
    /// Counts `value` `times` times.
    pub fn add(&mut self, value: Nanos, times: u64) {
        if times == 0 {
            return;
        }
        let at = bucket(value.0);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(at) {
            *count += times;
        }
        self.total += times;
        self.sum += u128::from(value.0) * u128::from(times);
        self.largest = self.largest.max(value.0);
    }

    /// Values that were counted.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Mean, percentiles, largest; `None` of nothing.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(self.total, self.sum, self.largest, |rank| self.at(rank))
    }

    /// The values of two neighbouring places in the ascending order.
    fn at(&self, rank: Rank) -> (u64, u64) {
        let value_of = |place: u64| {
            let mut seen = 0;
            let reaches = |count: &u64| {
                seen += count;
                seen > place
            };
            let at = self.counts.iter().position(reaches).unwrap_or_default();
            middle(at).min(self.largest)
        };
        let low = value_of(rank.low);
        (low, if rank.part == 0 { low } else { value_of(rank.low + 1) })
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let shift = shift_of(value);
    let at = u64::from(shift) * HALF + (value >> shift);
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// How many low bits of a value its bucket does not tell apart.
const fn shift_of(value: u64) -> u32 {
    if value < EXACT { 0 } else { u64::BITS - value.leading_zeros() - HALF_BITS - 1 }
}

/// The middle of a bucket, rounded down.
fn middle(at: usize) -> u64 {
    let at = at as u64;
    if at < EXACT {
        return at;
    }
    let shift = at / HALF - 1;
    ((at - shift * HALF) << shift) + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut last = 0;
        for value in 0..1_000_000 {
            let at = bucket(value);
            assert!(at == last || at == last + 1, "{value} lies in bucket {at} after {last}");
            last = at;
            assert!(
                middle(at).abs_diff(value) * 2048 <= value,
                "{value} is told as {}",
                middle(at)
            );
        }
        assert!(bucket(u64::MAX) < 60_000, "the table stays small");
        assert!(middle(bucket(u64::MAX)) > u64::MAX - (u64::MAX >> 10));
    }

    #[test]
    fn small_values_are_exact_and_weights_count() {
        let mut histogram = Histogram::default();
        histogram.add(Nanos(100), 3);
        histogram.add(Nanos(2_000), 1);
        histogram.add(Nanos(7), 0);
        let summary = histogram.summary().unwrap();
        // 100, 100, 100, 2000: the mean is 575, the 90th percentile lies at place 2.7.
        assert_eq!((summary.mean, summary.p50, summary.max), (575, 100, 2_000));
        assert_eq!(summary.p90, 100 + (2_000 - 100) * 7 / 10);
        assert_eq!(Histogram::default().summary(), None);
    }
}
