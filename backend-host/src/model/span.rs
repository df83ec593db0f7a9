//! Attention of some queries over one span of positions: the scores of all its keys, then its values weighed
//! by them. Every sum has one order, which depends on the position of a key alone.
#![allow(clippy::needless_range_loop, reason = "constant ranges over arrays become whole vectors")]

use std::ops::Range;

use super::{
    dot::{LANES, Lanes, Tile, sum},
    kv::{HeadKv, Stored},
    vector::exp,
};

/// Positions of a span; spans begin at its multiples.
pub(super) const SPAN: usize = 256;
/// Queries whose scores are kept at a time.
pub(super) const QUERIES: usize = 16;
/// Keys that are taken at a time.
const KEYS: usize = 4;
/// Values of a head that are accumulated at a time.
const WIDE: usize = 2 * LANES;

/// Keys and values, and the part of them that is looked at.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) kv: HeadKv<'a>,
    /// Pages of the request.
    pub(super) table: &'a [u32],
    /// First position; a multiple of [`SPAN`].
    pub(super) start: usize,
    pub(super) head_dim: usize,
    /// 1 / sqrt(head width).
    pub(super) scale: f32,
    pub(super) tile: Tile,
}

/// One query and what it sees of the span: places in the span, perhaps none.
#[derive(Clone, Copy, Default)]
pub(super) struct Query<'a> {
    pub(super) values: &'a [f32],
    pub(super) from: usize,
    pub(super) to: usize,
}

/// What a query takes from a span: the highest score, the sum of e^(score − highest).
pub(super) type Weight = [f32; 2];

/// Nothing seen.
pub(super) const UNSEEN: Weight = [f32::NEG_INFINITY, 0.0];

type Scores = [[f32; SPAN]; QUERIES];

/// `out` has a head a query: the values times e^(score − highest), summed.
#[inline(always)]
pub(super) fn attend<T: Stored>(
    span: Span<'_>,
    queries: &[Query<'_>],
    out: &mut [f32],
    weights: &mut [Weight],
) {
    let mut scores: Scores = [[f32::NEG_INFINITY; SPAN]; QUERIES];
    let seen = queries.iter().filter(|q| q.from < q.to);
    let from = seen.clone().map(|q| q.from).min().unwrap_or(0);
    let to = seen.map(|q| q.to).max().unwrap_or(0);
    let mut at = from;
    while at < to {
        let run = span.run::<T>(at, to);
        match span.tile {
            Tile::Wide => score::<T, 3>(span, queries, (at, run.keys), &mut scores),
            Tile::Narrow => score::<T, 1>(span, queries, (at, run.keys), &mut scores),
        }
        at += run.count;
    }
    for ((query, scores), weight) in queries.iter().zip(&mut scores).zip(weights) {
        *weight = soften(scores, query.from..query.to);
    }
    out.fill(0.0);
    let (wide, width) = (span.tile == Tile::Wide, span.head_dim);
    let mut first = 0;
    while first < queries.len() {
        let left = queries.len() - first;
        let (queries, scores) = (&queries[first..], &scores[first..]);
        let out = &mut out[first * width..];
        first += match left {
            3.. if wide => weigh::<T, 3>(span, queries, scores, out),
            2.. => weigh::<T, 2>(span, queries, scores, out),
            _ => weigh::<T, 1>(span, queries, scores, out),
        };
    }
}

/// Consecutive positions in one page.
#[derive(Clone, Copy)]
struct Run<'a, T> {
    count: usize,
    keys: &'a [T],
    values: &'a [T],
}

impl<'a> Span<'a> {
    /// From a place of the span to the end of its page, or to `to`.
    #[inline(always)]
    fn run<T: Stored>(self, at: usize, to: usize) -> Run<'a, T> {
        let (position, page_tokens) = (self.start + at, self.kv.page_tokens());
        let inside = position % page_tokens;
        let count = (page_tokens - inside).min(to - at);
        let (keys, values) = self.kv.page::<T>(self.table[position / page_tokens]);
        let range = inside * self.head_dim..(inside + count) * self.head_dim;
        Run { count, keys: &keys[range.clone()], values: &values[range] }
    }
}

/// Scores of the keys of a run, which begins at a place of the span, with all queries.
#[inline(always)]
fn score<T: Stored, const Q: usize>(
    span: Span<'_>,
    queries: &[Query<'_>],
    (at, keys): (usize, &[T]),
    scores: &mut Scores,
) {
    let width = span.head_dim;
    let mut done = 0;
    for keys in keys.chunks(KEYS * width) {
        let count = keys.len() / width;
        let mut first = 0;
        while first < queries.len() {
            if count == KEYS && first + Q <= queries.len() {
                let values: [&[f32]; Q] = std::array::from_fn(|q| queries[first + q].values);
                let found = products(values, keys, width);
                for q in 0..Q {
                    for k in 0..KEYS {
                        scores[first + q][at + done + k] = found[q][k] * span.scale;
                    }
                }
                first += Q;
            } else if count == KEYS {
                let found = products([queries[first].values], keys, width);
                for k in 0..KEYS {
                    scores[first][at + done + k] = found[0][k] * span.scale;
                }
                first += 1;
            } else {
                for (k, key) in keys.chunks_exact(width).enumerate() {
                    scores[first][at + done + k] = dot(queries[first].values, key) * span.scale;
                }
                first += 1;
            }
        }
        done += count;
    }
}

/// Some queries with four keys that follow each other.
#[inline(always)]
fn products<T: Stored, const Q: usize>(
    queries: [&[f32]; Q],
    keys: &[T],
    width: usize,
) -> [[f32; KEYS]; Q] {
    let mut sums = [[[0.0_f32; LANES]; KEYS]; Q];
    for group in 0..width / LANES {
        let at = group * LANES;
        let mut wide = [[0.0_f32; LANES]; KEYS];
        for k in 0..KEYS {
            if let Some(key) = keys[k * width + at..].first_chunk::<LANES>() {
                for i in 0..LANES {
                    wide[k][i] = key[i].wide();
                }
            }
        }
        for q in 0..Q {
            let Some(query) = queries[q][at..].first_chunk::<LANES>() else { continue };
            for k in 0..KEYS {
                for i in 0..LANES {
                    sums[q][k][i] = query[i].mul_add(wide[k][i], sums[q][k][i]);
                }
            }
        }
    }
    for at in width / LANES * LANES..width {
        for q in 0..Q {
            for k in 0..KEYS {
                let sum = &mut sums[q][k][at % LANES];
                *sum = queries[q][at].mul_add(keys[k * width + at].wide(), *sum);
            }
        }
    }
    sums.map(|sums| sum_each(&sums))
}

/// What `sum` gives for each, all four at a time.
#[inline(always)]
fn sum_each(lanes: &[Lanes; KEYS]) -> [f32; KEYS] {
    let mut eight = [[0.0_f32; 8]; KEYS];
    for k in 0..KEYS {
        for i in 0..8 {
            eight[k][i] = lanes[k][i] + lanes[k][i + 8];
        }
    }
    let mut four = [[0.0_f32; 4]; KEYS];
    for k in 0..KEYS {
        for i in 0..4 {
            four[k][i] = eight[k][i] + eight[k][i + 4];
        }
    }
    let mut out = [0.0; KEYS];
    for k in 0..KEYS {
        out[k] = (four[k][0] + four[k][2]) + (four[k][1] + four[k][3]);
    }
    out
}

/// As every product is summed: sixteen lanes, then pairwise.
#[inline(always)]
fn dot<T: Stored>(query: &[f32], key: &[T]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (a, b) in query.chunks(LANES).zip(key.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(b.wide(), *lane);
        }
    }
    sum(&lanes)
}

/// Scores become e^(score − highest); what the query does not see becomes zero.
#[inline(always)]
fn soften(scores: &mut [f32; SPAN], seen: Range<usize>) -> Weight {
    if seen.is_empty() {
        return UNSEEN;
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let chunks = scores.as_chunks_mut::<LANES>().0;
    // Outside of these chunks nothing is seen: it would add zeros.
    let chunks = &mut chunks[seen.start / LANES..seen.end.div_ceil(LANES)];
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in chunks.iter() {
        for i in 0..LANES {
            most[i] = most[i].max(chunk[i]);
        }
    }
    let highest = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] - highest);
            sums[i] += chunk[i];
        }
    }
    [highest, sum(&sums)]
}

/// Adds the values, weighed, to the heads of the first `Q` queries: position after position. Answers `Q`.
#[inline(always)]
fn weigh<T: Stored, const Q: usize>(
    span: Span<'_>,
    queries: &[Query<'_>],
    scores: &[[f32; SPAN]],
    out: &mut [f32],
) -> usize {
    let from = queries[..Q].iter().map(|q| q.from).max().unwrap_or(0);
    let to = queries[..Q].iter().map(|q| q.to).min().unwrap_or(0);
    // Before what all of them see, that, and after it.
    for (first, end) in [(0, from), (from, to), (to.max(from), SPAN)] {
        if (first, end) == (from, to) && from < to {
            add::<T, Q>(span, from..to, scores, out);
            continue;
        }
        for (q, query) in queries[..Q].iter().enumerate() {
            let places = query.from.max(first)..query.to.min(end);
            add::<T, 1>(span, places, &scores[q..], &mut out[q * span.head_dim..]);
        }
    }
    Q
}

/// The same for places that all `Q` queries see.
#[inline(always)]
fn add<T: Stored, const Q: usize>(
    span: Span<'_>,
    places: Range<usize>,
    scores: &[[f32; SPAN]],
    out: &mut [f32],
) {
    let width = span.head_dim;
    let mut at = places.start;
    while at < places.end {
        let run = span.run::<T>(at, places.end);
        let weights: [&[f32]; Q] = std::array::from_fn(|q| &scores[q][at..at + run.count]);
        let mut first = 0;
        while first + WIDE <= width {
            add_wide::<T, Q>(run.values, weights, (first, width), out);
            first += WIDE;
        }
        if first < width {
            for (i, row) in run.values.chunks_exact(width).enumerate() {
                for q in 0..Q {
                    let out = &mut out[q * width + first..(q + 1) * width];
                    for (out, value) in out.iter_mut().zip(&row[first..]) {
                        *out = value.wide().mul_add(weights[q][i], *out);
                    }
                }
            }
        }
        at += run.count;
    }
}

/// Thirty-two values of each head from `first` on.
#[inline(always)]
fn add_wide<T: Stored, const Q: usize>(
    values: &[T],
    weights: [&[f32]; Q],
    (first, width): (usize, usize),
    out: &mut [f32],
) {
    let mut sums = [[0.0_f32; WIDE]; Q];
    for q in 0..Q {
        if let Some(out) = out[q * width + first..].first_chunk::<WIDE>() {
            sums[q] = *out;
        }
    }
    for (i, row) in values.chunks_exact(width).enumerate() {
        let Some(row) = row[first..].first_chunk::<WIDE>() else { continue };
        let mut wide = [0.0_f32; WIDE];
        for j in 0..WIDE {
            wide[j] = row[j].wide();
        }
        for q in 0..Q {
            let weight = weights[q][i];
            for j in 0..WIDE {
                sums[q][j] = wide[j].mul_add(weight, sums[q][j]);
            }
        }
    }
    for q in 0..Q {
        if let Some(out) = out[q * width + first..].first_chunk_mut::<WIDE>() {
            *out = sums[q];
        }
    }
}
