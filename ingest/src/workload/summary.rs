//! A workload in figures: how many, how long, how bursty, how much of it is the same.

use super::trace::{BlockRun, Trace};
use plimsoll_core::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// A distribution of lengths, tokens. Percentiles are values that occur: that of rank n p, rounded up.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

impl Distribution {
    /// Of these lengths, in any order.
    #[must_use]
    pub fn of(mut lengths: Vec<u64>) -> Self {
        lengths.sort_unstable();
        let Some(max) = lengths.last().copied() else { return Self::default() };
        let n = lengths.len();
        let at = |percent: usize| lengths[(n * percent).div_ceil(100).clamp(1, n) - 1];
        let sum: u128 = lengths.iter().map(|length| u128::from(*length)).sum();
        let mean = sum as f64 / n as f64;
        Self { mean, p50: at(50), p90: at(90), p95: at(95), p99: at(99), max }
    }
}

/// What a workload is like.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// Requests.
    pub requests: u64,
    /// Requests that come when others allow it, not at a time of their own.
    pub waiting: u64,
    /// From the first to the last time.
    pub span: Nanos,
    /// Requests a second over the span; `None` where all come at once.
    pub rate: Option<f64>,
    /// Deviation of the gaps between times over their mean; `None` under two gaps.
    pub gap_cv: Option<f64>,
    /// Prompts, history included.
    pub input: Distribution,
    /// Answers.
    pub output: Distribution,
    /// Part of the prompts that an endless prefix cache would have: of the blocks where there are ids,
    /// else of the tokens.
    pub prefix_share: Option<f64>,
}

impl Summary {
    /// From times, prompts and answers.
    #[must_use]
    pub fn new(mut times: Vec<Nanos>, inputs: Vec<u64>, outputs: Vec<u64>) -> Self {
        times.sort_unstable();
        let (first, last) = (times.first().copied(), times.last().copied());
        let span = Nanos(last.unwrap_or_default().0 - first.unwrap_or_default().0);
        let seconds = span.0 as f64 / 1e9;
        Self {
            requests: inputs.len() as u64,
            waiting: (inputs.len() - times.len().min(inputs.len())) as u64,
            span,
            rate: (span.0 > 0).then(|| times.len() as f64 / seconds),
            gap_cv: gap_cv(&times),
            input: Distribution::of(inputs),
            output: Distribution::of(outputs),
            prefix_share: None,
        }
    }

    /// Of a trace, at its own speed.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let times: Vec<Nanos> = trace.rows.iter().map(|row| row.at).collect();
        Self::of_rows(trace, &(0..trace.rows.len()).collect::<Vec<_>>(), &times)
    }

    /// Of some rows of a trace, by their indices in the order of the file, at these times by row.
    #[must_use]
    pub fn of_rows(trace: &Trace, rows: &[usize], times: &[Nanos]) -> Self {
        let waits: BTreeSet<usize> = trace.links.iter().map(|link| link.row as usize).collect();
        let own_time = |row: &&usize| !waits.contains(row);
        let at = rows.iter().filter(own_time).filter_map(|row| times.get(*row)).copied();
        let totals = inputs(trace);
        let inputs = rows.iter().filter_map(|row| totals.get(*row)).copied().collect();
        let output = |row: &usize| trace.rows.get(*row).map(|row| u64::from(row.output));
        let mut summary = Self::new(at.collect(), inputs, rows.iter().filter_map(output).collect());
        summary.prefix_share = prefix_share(rows.iter().flat_map(|row| trace.blocks(*row)));
        summary
    }
}

/// Prompts of all rows, tokens, history included.
fn inputs(trace: &Trace) -> Vec<u64> {
    let mut inputs: Vec<u64> = Vec::with_capacity(trace.rows.len());
    for row in &trace.rows {
        let before = row.history().and_then(|before| {
            Some(inputs.get(before)? + u64::from(trace.rows.get(before)?.output))
        });
        inputs.push(before.unwrap_or(0) + u64::from(row.input));
    }
    inputs
}

/// Deviation over mean of the gaps between times in order.
fn gap_cv(times: &[Nanos]) -> Option<f64> {
    let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64).collect();
    if gaps.len() < 2 {
        return None;
    }
    let n = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / n;
    let square = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / n;
    (mean > 0.0).then(|| square.sqrt() / mean)
}

/// Blocks that were there before. Ids are chained: one that was seen brings all before it.
fn prefix_share<'b>(blocks: impl Iterator<Item = &'b BlockRun>) -> Option<f64> {
    let mut seen = Ids::default();
    let (mut all, mut new) = (0_u64, 0_u64);
    for run in blocks {
        let len = u64::from(run.len);
        all += len;
        new += seen.add(run.first, run.first + len);
    }
    (all > 0).then(|| (all - new) as f64 / all as f64)
}

/// A set of ids as ranges that do not touch: first to end, the end not in it.
#[derive(Default)]
struct Ids(BTreeMap<u64, u64>);

impl Ids {
    /// Adds a range and answers how many of it are new.
    fn add(&mut self, from: u64, to: u64) -> u64 {
        let (mut first, mut end, mut had) = (from, to, 0);
        while let Some((start, stop)) = self.0.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if stop < first {
                break;
            }
            had += stop.min(to).saturating_sub(start.max(from));
            first = first.min(start);
            end = end.max(stop);
            self.0.remove(&start);
        }
        self.0.insert(first, end);
        to - from - had
    }
}
