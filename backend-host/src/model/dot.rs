//! The kernel of all projections: rows of a matrix times rows of tokens.
//!
//! Each product is summed in sixteen lanes along the row, then the lanes pairwise: one order for every
//! tile, so the tile may be chosen by the processor. Quantised rows are decoded 32 values at a time.
#![allow(clippy::needless_range_loop, reason = "constant ranges over arrays become whole vectors")]

use std::ops::Range;

use fearless_simd::{Level, Simd};
use plimsoll_core::model::encoding::{self, GROUP, bf16_to_f32};

use super::{
    held::{Held, Values},
    linear::{Out, Processor, Stored},
};

pub(super) const LANES: usize = 16;
pub(super) type Lanes = [f32; LANES];

/// Rows of `matrix` times the tokens' rows in `x`.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) matrix: &'a Held,
    pub(super) rows: &'a Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) stored: Stored<'a>,
}

/// Runs a closure, itself `#[inline(always)]`, compiled for the processor's vectors.
#[inline(always)]
#[allow(
    clippy::redundant_closure,
    reason = "what is called by reference is not inlined, and gets no vectors"
)]
pub(super) fn vectors(arch: Level, mut run: impl FnMut()) {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        if let Some(token) = arch.as_avx512() {
            return token.vectorize(
                #[inline(always)]
                || run(),
            );
        }
        if let Some(token) = arch.as_avx2() {
            return token.vectorize(
                #[inline(always)]
                || run(),
            );
        }
    }
    let _ = arch;
    run();
}

/// How many rows and tokens a tile has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tile {
    /// 32 vectors of 16 lanes.
    Wide,
    /// Fewer or narrower ones.
    Narrow,
}

impl Tile {
    pub(super) fn of(level: Level) -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        if level.as_avx512().is_some() {
            return Self::Wide;
        }
        let _ = level;
        Self::Narrow
    }
}

/// A matrix whose rows are decoded by groups of 32 values.
trait Groups: Copy {
    /// Values `32 * group ..` of a row of `columns`.
    fn group(self, row: usize, columns: usize, group: usize, out: &mut [f32; GROUP]);
    /// Values `from..columns` of a row, fewer than 32; the rest of `out` is left as it is.
    fn rest(self, row: usize, columns: usize, from: usize, out: &mut [f32; GROUP]);
}

impl Groups for &[f32] {
    #[inline(always)]
    fn group(self, row: usize, columns: usize, group: usize, out: &mut [f32; GROUP]) {
        let at = row * columns + group * GROUP;
        if let Some(values) = self.get(at..).and_then(|rest| rest.first_chunk()) {
            *out = *values;
        }
    }

    #[inline(always)]
    fn rest(self, row: usize, columns: usize, from: usize, out: &mut [f32; GROUP]) {
        for (to, value) in out.iter_mut().zip(&self[row * columns + from..(row + 1) * columns]) {
            *to = *value;
        }
    }
}

impl Groups for &[u16] {
    #[inline(always)]
    fn group(self, row: usize, columns: usize, group: usize, out: &mut [f32; GROUP]) {
        let at = row * columns + group * GROUP;
        if let Some(values) = self.get(at..).and_then(|rest| rest.first_chunk::<GROUP>()) {
            for i in 0..GROUP {
                out[i] = bf16_to_f32(values[i]);
            }
        }
    }

    #[inline(always)]
    fn rest(self, row: usize, columns: usize, from: usize, out: &mut [f32; GROUP]) {
        for (to, value) in out.iter_mut().zip(&self[row * columns + from..(row + 1) * columns]) {
            *to = bf16_to_f32(*value);
        }
    }
}

macro_rules! small_blocks {
    ($size:literal, $decode:path) => {
        impl Groups for &[[u8; $size]] {
            #[inline(always)]
            fn group(self, row: usize, columns: usize, group: usize, out: &mut [f32; GROUP]) {
                if let Some(block) = self.get(row * (columns / GROUP) + group) {
                    $decode(block, out);
                }
            }

            // Rows end at the end of a block.
            #[inline(always)]
            fn rest(self, _: usize, _: usize, _: usize, _: &mut [f32; GROUP]) {}
        }
    };
}

small_blocks!(34, encoding::q8_0);
small_blocks!(18, encoding::q4_0);
small_blocks!(20, encoding::q4_1);

macro_rules! large_blocks {
    ($size:literal, $decode:path) => {
        impl Groups for &[[u8; $size]] {
            #[inline(always)]
            fn group(self, row: usize, columns: usize, group: usize, out: &mut [f32; GROUP]) {
                if let Some(block) = self.get(row * (columns / 256) + group / 8) {
                    $decode(block, group % 8, out);
                }
            }

            #[inline(always)]
            fn rest(self, _: usize, _: usize, _: usize, _: &mut [f32; GROUP]) {}
        }
    };
}

large_blocks!(144, encoding::q4_k);
large_blocks!(210, encoding::q6_k);

impl Product<'_> {
    /// Computes it with the processor's vectors; `out` has the rows of each token. Nothing for matrices
    /// that are not made for floats.
    pub(super) fn run(self, processor: Processor, out: &mut [Out<'_>]) {
        match &self.matrix.values {
            Values::F32(v) => self.with(processor, v.as_slice(), out),
            Values::Bf16(v) => self.with(processor, v.as_slice(), out),
            Values::Q8_0(v) => self.with(processor, v.as_slice(), out),
            Values::Q4_0(v) => self.with(processor, v.as_slice(), out),
            Values::Q4_1(v) => self.with(processor, v.as_slice(), out),
            Values::Q4K(v) => self.with(processor, v.as_slice(), out),
            Values::Q6K(v) => self.with(processor, v.as_slice(), out),
            Values::Panels(_) => {}
        }
    }

    fn with<G: Groups>(self, processor: Processor, groups: G, out: &mut [Out<'_>]) {
        let Product { matrix, rows, x, stored } = self;
        let job =
            Job { groups, columns: matrix.columns, rows: (rows.start, rows.len()), x, stored };
        match (processor.tile, out.len()) {
            (_, 1) => vectors(
                processor.arch,
                #[inline(always)]
                || job.all::<4, 1>(out),
            ),
            (Tile::Wide, _) => vectors(
                processor.arch,
                #[inline(always)]
                || job.all::<4, 4>(out),
            ),
            (Tile::Narrow, _) => vectors(
                processor.arch,
                #[inline(always)]
                || job.all::<2, 2>(out),
            ),
        }
    }
}

#[derive(Clone, Copy)]
struct Job<'a, G> {
    groups: G,
    columns: usize,
    /// The first, and how many.
    rows: (usize, usize),
    x: &'a [f32],
    stored: Stored<'a>,
}

impl<G: Groups> Job<'_, G> {
    #[inline(always)]
    fn all<const R: usize, const T: usize>(self, out: &mut [Out<'_>]) {
        let rows = self.rows.1;
        let mut row = 0;
        while row + R <= rows {
            self.some::<R, T>(row, out);
            row += R;
        }
        while row < rows {
            self.some::<1, T>(row, out);
            row += 1;
        }
    }

    #[inline(always)]
    fn some<const R: usize, const T: usize>(self, row: usize, out: &mut [Out<'_>]) {
        let tokens = out.len();
        let mut token = 0;
        while token + T <= tokens {
            self.tile::<R, T>(row, token, &mut out[token..token + T]);
            token += T;
        }
        while token < tokens {
            self.tile::<R, 1>(row, token, &mut out[token..=token]);
            token += 1;
        }
    }

    #[inline(always)]
    fn tile<const R: usize, const T: usize>(self, row: usize, token: usize, out: &mut [Out<'_>]) {
        let columns = self.columns;
        let mut sums = [[[0.0_f32; LANES]; T]; R];
        let mut weights = [[0.0_f32; GROUP]; R];
        let inputs: [&[f32]; T] =
            std::array::from_fn(|t| &self.x[(token + t) * columns..(token + t + 1) * columns]);
        let first = self.rows.0 + row;
        for group in 0..columns / GROUP {
            for r in 0..R {
                self.groups.group(first + r, columns, group, &mut weights[r]);
            }
            for t in 0..T {
                let Some(input) = inputs[t].get(group * GROUP..).and_then(|i| i.first_chunk())
                else {
                    continue;
                };
                for r in 0..R {
                    step(&mut sums[r][t], &weights[r], input);
                }
            }
        }
        let from = columns / GROUP * GROUP;
        if from < columns {
            for r in 0..R {
                let mut weight = [0.0; GROUP];
                self.groups.rest(first + r, columns, from, &mut weight);
                for t in 0..T {
                    let mut input = [0.0; GROUP];
                    for (to, value) in input.iter_mut().zip(&inputs[t][from..]) {
                        *to = *value;
                    }
                    step(&mut sums[r][t], &weight, &input);
                }
            }
        }
        for t in 0..T {
            let values: [f32; R] = std::array::from_fn(|r| sum(&sums[r][t]));
            self.stored.put(&mut out[t][row..row + R], &values, first);
        }
    }
}

#[inline(always)]
fn step(sum: &mut Lanes, weight: &[f32; GROUP], input: &[f32; GROUP]) {
    for i in 0..LANES {
        sum[i] = weight[i].mul_add(input[i], sum[i]);
    }
    for i in 0..LANES {
        sum[i] = weight[LANES + i].mul_add(input[LANES + i], sum[i]);
    }
}

/// The lanes pairwise: 8 apart, 4, 2, 1.
#[inline(always)]
pub(super) fn sum(lanes: &Lanes) -> f32 {
    let mut eight = [0.0_f32; 8];
    for i in 0..8 {
        eight[i] = lanes[i] + lanes[i + 8];
    }
    let mut four = [0.0_f32; 4];
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Two vectors of one length.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] = a.mul_add(*b, lanes[i]);
    }
    sum(&lanes)
}
