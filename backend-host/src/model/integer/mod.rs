//! Products of quantised matrices in integers. Each 32 values of an input become bytes and a scale; a block's
//! products are summed exactly, and added to the row's float in the order of the blocks. So the sums are the
//! same bits in any tile, on any processor.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use std::ops::Range;

use super::{
    dot::vectors,
    linear::{Out, Processor, Stored},
    panels::{BLOCK, Panels, ROWS, SHIFT},
};

/// float32 words of 32 rounded values.
pub(super) const WORDS: usize = 12;
/// The values' scale.
const SCALE: usize = 8;
/// Their sum.
const SUM: usize = 9;
/// What products with shifted bytes begin with: an integer, -128 times the sum of the values' integers.
const START: usize = 10;
/// The same of the first half of the values.
const HALF_START: usize = 11;

/// 32 rounded values: eight words of four bytes each, then [`SCALE`] and the rest.
type Words = [f32; WORDS];
/// One token's products with a panel.
type Sums = [f32; ROWS];

/// Rows of a matrix times the tokens' rounded rows in `x`.
#[derive(Clone, Copy)]
pub(super) struct Integers<'a> {
    pub(super) panels: &'a Panels,
    pub(super) columns: usize,
    /// The first is that of a panel.
    pub(super) rows: &'a Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) stored: Stored<'a>,
}

impl Integers<'_> {
    /// Computes it with the processor's vectors; `out` has the rows of each token.
    pub(super) fn run(self, processor: Processor, out: &mut [Out<'_>]) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(token) = processor.arch.as_avx512() {
                return avx512::run(token, self, out);
            }
            if let Some(token) = processor.arch.as_avx2() {
                return avx2::run(token, self, out);
            }
        }
        vectors(
            processor.arch,
            #[inline(always)]
            || plain::run(self, out),
        );
    }

    /// Goes through the panels, and through the tokens of each: eight, four, two, one at a time.
    #[inline(always)]
    fn tiles<B>(
        self,
        blocks: &[B],
        out: &mut [Out<'_>],
        eight: impl Fn(&[B], [&[Words]; 8]) -> [Sums; 8],
        four: impl Fn(&[B], [&[Words]; 4]) -> [Sums; 4],
        (two, one): (
            impl Fn(&[B], [&[Words]; 2]) -> [Sums; 2],
            impl Fn(&[B], [&[Words]; 1]) -> [Sums; 1],
        ),
    ) {
        let width = self.columns / BLOCK;
        let x = self.x.as_chunks::<WORDS>().0;
        let first = self.rows.start / ROWS;
        let panels = blocks.chunks_exact(width).enumerate().skip(first);
        for (panel, blocks) in panels.take(self.rows.len().div_ceil(ROWS)) {
            let row = panel * ROWS;
            let at = row - self.rows.start;
            let end = (at + ROWS).min(self.rows.len());
            let mut token = 0;
            let put = |out: &mut [Out<'_>], sums: &[Sums]| {
                for (out, sums) in out.iter_mut().zip(sums) {
                    self.stored.put(&mut out[at..end], sums, row);
                }
            };
            while let Some(out) = out.get_mut(token..token + 8) {
                put(out, &eight(blocks, inputs(x, width, token)));
                token += 8;
            }
            if let Some(out) = out.get_mut(token..token + 4) {
                put(out, &four(blocks, inputs(x, width, token)));
                token += 4;
            }
            if let Some(out) = out.get_mut(token..token + 2) {
                put(out, &two(blocks, inputs(x, width, token)));
                token += 2;
            }
            if let Some(out) = out.get_mut(token..=token) {
                put(out, &one(blocks, inputs(x, width, token)));
            }
        }
    }
}

#[inline(always)]
fn inputs<const T: usize>(x: &[Words], width: usize, token: usize) -> [&[Words]; T] {
    std::array::from_fn(|t| &x[(token + t) * width..(token + t + 1) * width])
}

/// Rounds a row of an input, 32 values at a time: to whole multiples of a 127th of the largest.
pub(super) fn round(processor: Processor, from: &[f32], to: &mut [f32]) {
    let (from, to) = (from.as_chunks::<BLOCK>().0, to.as_chunks_mut::<WORDS>().0);
    vectors(
        processor.arch,
        #[inline(always)]
        || {
            for (from, to) in from.iter().zip(to.iter_mut()) {
                round_block(from, to);
            }
        },
    );
}

#[allow(clippy::needless_range_loop, reason = "constant ranges over arrays become whole vectors")]
#[inline(always)]
fn round_block(from: &[f32; BLOCK], to: &mut Words) {
    /// Adding it rounds to a whole number, ties to even, whose bits stand at the end.
    const MAGIC: f32 = 12_582_912.0;
    let mut most = [0.0_f32; 16];
    for i in 0..16 {
        most[i] = from[i].abs().max(from[i + 16].abs());
    }
    for apart in [8, 4, 2, 1] {
        for i in 0..apart {
            most[i] = most[i].max(most[i + apart]);
        }
    }
    let most = most[0];
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    let mut values = [0_i32; BLOCK];
    for i in 0..BLOCK {
        values[i] = ((from[i] * inverse + MAGIC).to_bits() as i32) << 24 >> 24;
    }
    let half = |values: &[i32]| values.iter().sum::<i32>();
    let (first, second) = (half(&values[..16]), half(&values[16..]));
    for i in 0..8 {
        let byte = |j: usize| (values[i * 4 + j] as u32 & 255) << (8 * j);
        to[i] = f32::from_bits(byte(0) | byte(1) | byte(2) | byte(3));
    }
    let scale = most / 127.0;
    to[SCALE] = scale;
    to[SUM] = scale * (first + second) as f32;
    to[START] = integer(-SHIFT * (first + second));
    to[HALF_START] = integer(-SHIFT * first);
}

/// An integer in a word of floats.
#[inline(always)]
fn integer(value: i32) -> f32 {
    f32::from_bits(value as u32)
}

/// A word as the integer that it is.
#[inline(always)]
fn word(words: &Words, at: usize) -> i32 {
    words[at].to_bits() as i32
}

#[cfg(test)]
mod tests;
