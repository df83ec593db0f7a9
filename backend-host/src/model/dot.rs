//! The kernel of all projections: rows of a matrix times rows of tokens.
//!
//! Each product is summed in sixteen lanes along the row, then the lanes pairwise: one order for every
//! tile, so the tile may be chosen by the processor. Quantised rows are decoded 32 values at a time.
#![allow(clippy::needless_range_loop, reason = "constant ranges over arrays become whole vectors")]

use std::ops::Range;

use plimsoll_core::model::encoding::{self, GROUP, bf16_to_f32};

use super::held::{Held, Values};

pub(super) const LANES: usize = 16;
pub(super) type Lanes = [f32; LANES];

/// Rows of `matrix` times the tokens' rows in `x`; `out` has the tokens of each row side by side.
pub(super) struct Product<'a> {
    pub(super) matrix: &'a Held,
    pub(super) rows: Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) tokens: usize,
    pub(super) out: &'a mut [f32],
}

/// What runs under the processor's vectors. Called by reference: the detour by which a closure is called
/// once is not inlined, and what is not inlined does not get the vectors.
struct Vectors<F>(F);

impl<F: FnMut()> pulp::WithSimd for Vectors<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, _: S) {
        (self.0)();
    }
}

/// Runs a closure, itself `#[inline(always)]`, compiled for the processor's vectors.
#[inline(always)]
pub(super) fn vectors(arch: pulp::Arch, run: impl FnMut()) {
    arch.dispatch(Vectors(run));
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
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx512f") {
            return Self::Wide;
        }
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
    /// Computes it with the processor's vectors.
    pub(super) fn run(self, arch: pulp::Arch, tile: Tile) {
        match &self.matrix.values {
            Values::F32(v) => self.with(arch, tile, v.as_slice()),
            Values::Bf16(v) => self.with(arch, tile, v.as_slice()),
            Values::Q8_0(v) => self.with(arch, tile, v.as_slice()),
            Values::Q4_0(v) => self.with(arch, tile, v.as_slice()),
            Values::Q4_1(v) => self.with(arch, tile, v.as_slice()),
            Values::Q4K(v) => self.with(arch, tile, v.as_slice()),
            Values::Q6K(v) => self.with(arch, tile, v.as_slice()),
        }
    }

    fn with<G: Groups>(self, arch: pulp::Arch, tile: Tile, groups: G) {
        let Product { matrix, rows, x, tokens, out } = self;
        let columns = matrix.columns;
        let job = Job { groups, columns, first: rows.start, x, tokens };
        match (tile, tokens) {
            (_, 1) => vectors(
                arch,
                #[inline(always)]
                || job.all::<4, 1>(out),
            ),
            (Tile::Wide, _) => vectors(
                arch,
                #[inline(always)]
                || job.all::<4, 4>(out),
            ),
            (Tile::Narrow, _) => vectors(
                arch,
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
    first: usize,
    x: &'a [f32],
    tokens: usize,
}

impl<G: Groups> Job<'_, G> {
    #[inline(always)]
    fn all<const R: usize, const T: usize>(self, out: &mut [f32]) {
        let rows = out.len() / self.tokens.max(1);
        let mut row = 0;
        while row + R <= rows {
            self.rows::<R, T>(row, out);
            row += R;
        }
        while row < rows {
            self.rows::<1, T>(row, out);
            row += 1;
        }
    }

    #[inline(always)]
    fn rows<const R: usize, const T: usize>(self, row: usize, out: &mut [f32]) {
        let mut token = 0;
        while token + T <= self.tokens {
            self.tile::<R, T>(row, token, out);
            token += T;
        }
        while token < self.tokens {
            self.tile::<R, 1>(row, token, out);
            token += 1;
        }
    }

    #[inline(always)]
    fn tile<const R: usize, const T: usize>(self, row: usize, token: usize, out: &mut [f32]) {
        let columns = self.columns;
        let mut sums = [[[0.0_f32; LANES]; T]; R];
        let mut weights = [[0.0_f32; GROUP]; R];
        let inputs: [&[f32]; T] =
            std::array::from_fn(|t| &self.x[(token + t) * columns..(token + t + 1) * columns]);
        for group in 0..columns / GROUP {
            for r in 0..R {
                self.groups.group(self.first + row + r, columns, group, &mut weights[r]);
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
                self.groups.rest(self.first + row + r, columns, from, &mut weight);
                for t in 0..T {
                    let mut input = [0.0; GROUP];
                    for (to, value) in input.iter_mut().zip(&inputs[t][from..]) {
                        *to = *value;
                    }
                    step(&mut sums[r][t], &weight, &input);
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                out[(row + r) * self.tokens + token + t] = sum(&sums[r][t]);
            }
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
