//! The kernels as plain loops: for processors without one of their own, and to compare the others with.
#![allow(clippy::needless_range_loop, reason = "constant ranges over arrays become whole vectors")]

use super::{
    super::{
        linear::Out,
        panels::{Bytes, Line, Nibbles, Panels, ROWS, Scale},
    },
    HALF_START, Integers, SCALE, START, SUM, Sums, Words, word,
};

#[inline(always)]
pub(super) fn run(job: Integers<'_>, out: &mut [Out<'_>]) {
    match job.panels {
        Panels::Nibbles(v) => job.tiles(v, out, nibbles, nibbles, (nibbles, nibbles)),
        Panels::FineNibbles(v) => job.tiles(v, out, nibbles, nibbles, (nibbles, nibbles)),
        Panels::Bytes(v) => job.tiles(v, out, bytes, bytes, (bytes, bytes)),
        Panels::FineBytes(v) => job.tiles(v, out, bytes, bytes, (bytes, bytes)),
    }
}

/// Adds the products of a line's bytes with a word's to the rows' sums.
#[inline(always)]
fn line(sums: &mut [i32; ROWS], line: &Line, word: i32) {
    let x = word.to_le_bytes().map(|b| i32::from(b as i8));
    for r in 0..ROWS {
        for j in 0..4 {
            sums[r] += i32::from(line[r * 4 + j]) * x[j];
        }
    }
}

#[inline(always)]
fn add<S: Scale>(sums: &[i32; ROWS], scales: &[S; ROWS], x: f32, to: &mut Sums) {
    for r in 0..ROWS {
        to[r] = (sums[r] as f32).mul_add(scales[r].value() * x, to[r]);
    }
}

#[inline(always)]
fn nibbles<S: Scale, const T: usize>(blocks: &[Nibbles<S>], x: [&[Words]; T]) -> [Sums; T] {
    let mut out = [[0.0; ROWS]; T];
    for (b, block) in blocks.iter().enumerate() {
        let low = block.lines.map(|line| line.map(|byte| byte & 15));
        let high = block.lines.map(|line| line.map(|byte| byte >> 4));
        for t in 0..T {
            let words = &x[t][b];
            let mut sums = [0; ROWS];
            for i in 0..4 {
                line(&mut sums, &low[i], word(words, i));
                line(&mut sums, &high[i], word(words, i + 4));
            }
            add(&sums, &block.scales, words[SCALE], &mut out[t]);
            for r in 0..ROWS {
                out[t][r] = block.least[r].value().mul_add(words[SUM], out[t][r]);
            }
        }
    }
    out
}

#[inline(always)]
fn bytes<S: Scale, const K: usize, const T: usize>(
    blocks: &[Bytes<S, K>],
    x: [&[Words]; T],
) -> [Sums; T] {
    let mut out = [[0.0; ROWS]; T];
    for (b, block) in blocks.iter().enumerate() {
        for t in 0..T {
            let words = &x[t][b];
            let (all, first) = (word(words, START), word(words, HALF_START));
            for k in 0..K {
                let start = match (K, k) {
                    (1, _) => all,
                    (_, 0) => first,
                    _ => all - first,
                };
                let mut sums = [start; ROWS];
                for i in k * 8 / K..(k + 1) * 8 / K {
                    line(&mut sums, &block.lines[i], word(words, i));
                }
                add(&sums, &block.scales[k], words[SCALE], &mut out[t]);
            }
        }
    }
    out
}
