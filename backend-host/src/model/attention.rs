//! Causal attention of one token's query heads that share a key head, over pages in any order.
//!
//! Positions are taken in blocks from the first that the token sees; the running maximum and sum are
//! rescaled from block to block. So the result depends on the token's own past alone.

use std::ops::Range;

use super::{
    dot::{LANES, sum},
    kv::{HeadKv, Stored},
    vector::exp,
};

/// Positions of a block.
const BLOCK: usize = 32;
/// Query heads that are taken together.
const HEADS: usize = 16;

/// What one token's heads attend to.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    pub(super) kv: HeadKv<'a>,
    /// Pages of the token's request.
    pub(super) table: &'a [u32],
    /// First position that the token sees, and the first that it does not.
    pub(super) seen: (usize, usize),
    pub(super) head_dim: usize,
    /// 1 / sqrt(head width).
    pub(super) scale: f32,
}

/// `queries` are heads one after the other; so is `out`.
#[inline(always)]
pub(super) fn attend<T: Stored>(past: Past<'_>, queries: &[f32], out: &mut [f32]) {
    let width = HEADS * past.head_dim;
    for (queries, out) in queries.chunks(width).zip(out.chunks_mut(width)) {
        heads::<T>(past, queries, out);
    }
}

#[inline(always)]
fn heads<T: Stored>(past: Past<'_>, queries: &[f32], out: &mut [f32]) {
    let (mut most, mut sums) = ([f32::NEG_INFINITY; HEADS], [0.0_f32; HEADS]);
    out.fill(0.0);
    let (first, end) = past.seen;
    for start in (first..end).step_by(BLOCK) {
        let positions = start..end.min(start + BLOCK);
        let heads = queries.chunks_exact(past.head_dim).zip(out.chunks_exact_mut(past.head_dim));
        for ((query, out), (most, sum)) in heads.zip(most.iter_mut().zip(&mut sums)) {
            block::<T>(past, positions.clone(), query, out, (most, sum));
        }
    }
    for (out, sum) in out.chunks_exact_mut(past.head_dim).zip(sums) {
        let scale = 1.0 / sum;
        out.iter_mut().for_each(|value| *value *= scale);
    }
}

#[inline(always)]
fn block<T: Stored>(
    past: Past<'_>,
    positions: Range<usize>,
    query: &[f32],
    out: &mut [f32],
    (most, sum): (&mut f32, &mut f32),
) {
    let width = past.kv.page_tokens();
    let row = |position: usize| {
        let (keys, values) = past.kv.page::<T>(past.table[position / width]);
        let at = position % width * past.head_dim;
        (&keys[at..at + past.head_dim], &values[at..at + past.head_dim])
    };
    let mut scores = [f32::NEG_INFINITY; BLOCK];
    let mut highest = *most;
    for (score, position) in scores.iter_mut().zip(positions.clone()) {
        *score = dot(query, row(position).0) * past.scale;
        highest = highest.max(*score);
    }
    let before = exp(*most - highest);
    *most = highest;
    if before != 1.0 {
        *sum *= before;
        out.iter_mut().for_each(|value| *value *= before);
    }
    for score in &mut scores {
        *score = exp(*score - highest);
    }
    for (score, position) in scores.iter().zip(positions) {
        *sum += score;
        for (out, value) in out.iter_mut().zip(row(position).1) {
            *out = value.wide().mul_add(*score, *out);
        }
    }
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
