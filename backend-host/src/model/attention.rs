//! Causal attention of one token's query heads that share a key head, over slots in any order.
//!
//! Positions are taken in blocks from the first that the token sees; the running maximum and sum are
//! rescaled from block to block. So the result depends on the token's own past alone.

use super::{dot::dot, kv::LayerKv, vector::exp};

/// Positions of a block.
const BLOCK: usize = 32;
/// Query heads that are taken together.
const HEADS: usize = 16;

/// What one token's heads attend to.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    pub(super) kv: LayerKv<'a>,
    /// Slots of the positions that the token sees, in order.
    pub(super) slots: &'a [u32],
    /// First value of the key head in a slot.
    pub(super) start: usize,
    pub(super) head_dim: usize,
    /// 1 / sqrt(head width).
    pub(super) scale: f32,
}

/// `queries` are heads one after the other; so is `out`.
#[inline(always)]
pub(super) fn attend(past: Past<'_>, queries: &[f32], out: &mut [f32]) {
    let width = HEADS * past.head_dim;
    for (queries, out) in queries.chunks(width).zip(out.chunks_mut(width)) {
        heads(past, queries, out);
    }
}

#[inline(always)]
fn heads(past: Past<'_>, queries: &[f32], out: &mut [f32]) {
    let (mut most, mut sums) = ([f32::NEG_INFINITY; HEADS], [0.0_f32; HEADS]);
    out.fill(0.0);
    for slots in past.slots.chunks(BLOCK) {
        let heads = queries.chunks_exact(past.head_dim).zip(out.chunks_exact_mut(past.head_dim));
        for ((query, out), (most, sum)) in heads.zip(most.iter_mut().zip(&mut sums)) {
            block(past, slots, query, out, (most, sum));
        }
    }
    for (out, sum) in out.chunks_exact_mut(past.head_dim).zip(sums) {
        let scale = 1.0 / sum;
        out.iter_mut().for_each(|value| *value *= scale);
    }
}

#[inline(always)]
fn block(
    past: Past<'_>,
    slots: &[u32],
    query: &[f32],
    out: &mut [f32],
    (most, sum): (&mut f32, &mut f32),
) {
    let place = |slot: u32| {
        let at = slot as usize * past.kv.width + past.start;
        at..at + past.head_dim
    };
    let mut scores = [f32::NEG_INFINITY; BLOCK];
    let mut highest = *most;
    for (score, slot) in scores.iter_mut().zip(slots) {
        *score = dot(query, &past.kv.keys[place(*slot)]) * past.scale;
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
    for (score, slot) in scores.iter().zip(slots) {
        *sum += score;
        let values = &past.kv.values[place(*slot)];
        for (out, value) in out.iter_mut().zip(values) {
            *out = value.mul_add(*score, *out);
        }
    }
}
