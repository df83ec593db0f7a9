//! A projection of the tape on all threads: its output is cut by tokens into pieces of at most 32, and these
//! by rows. How it is cut changes no sum.

use std::ops::Range;

use fearless_simd::Level;
use plimsoll_core::tape::own::Effect;
use rayon::prelude::*;

use super::{
    dot::{Product, Tile},
    held::{Held, Values},
    integer::{self, Integers, WORDS},
    panels::{BLOCK, ROWS},
};

/// Multiplications that are worth a task of their own.
const GRAIN: usize = 1 << 16;
/// Tokens of a piece.
const TOKENS: usize = 32;
/// Values of an input that are worth a second thread to be rounded.
const SERIAL: usize = 1 << 14;

/// Some rows of one token's output.
pub(super) type Out<'a> = &'a mut [f32];

/// Matrices that stand under each other: at most queries, keys and values.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) parts: [Option<Part<'a>>; 3],
}

#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) matrix: &'a Held,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Parts<'a> {
    /// Each with its first row and its first panel.
    fn list(&self) -> impl Iterator<Item = (usize, usize, Part<'a>)> {
        self.parts.into_iter().flatten().scan((0, 0), |(row, panel), part| {
            let first = (*row, *panel, part);
            *row += part.matrix.rows;
            *panel += panels(part);
            Some(first)
        })
    }

    fn rows(&self) -> usize {
        self.parts.iter().flatten().map(|p| p.matrix.rows).sum()
    }

    fn panels(&self) -> usize {
        self.parts.iter().flatten().map(|p| panels(*p)).sum()
    }

    fn columns(&self) -> usize {
        self.parts.iter().flatten().map(|p| p.matrix.columns).next().unwrap_or(0)
    }

    /// The first row of a panel, counted through all parts.
    fn row(&self, panel: usize) -> usize {
        let inside = |(row, first, part): (usize, usize, Part<'_>)| {
            let rows = panel.checked_sub(first)? * ROWS;
            Some(row + rows.min(part.matrix.rows))
        };
        self.list().filter_map(inside).last().unwrap_or(0)
    }
}

fn panels(part: Part<'_>) -> usize {
    part.matrix.rows.div_ceil(ROWS)
}

/// The processor's vectors.
#[derive(Clone, Copy)]
pub(super) struct Processor {
    pub(super) arch: Level,
    pub(super) tile: Tile,
}

impl Processor {
    pub(super) fn new(arch: Level) -> Self {
        Self { arch, tile: Tile::of(arch) }
    }
}

/// How the products of a matrix get into the output.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    /// Of all rows of the matrix.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) effect: Effect,
}

impl Stored<'_> {
    /// Stores values of the rows from `row` on, as many as `to` has.
    #[inline(always)]
    pub(super) fn put<const N: usize>(self, to: &mut [f32], values: &[f32; N], row: usize) {
        let mut values = *values;
        if let Some(bias) = self.bias {
            for (value, bias) in values.iter_mut().zip(&bias[row..]) {
                *value += bias;
            }
        }
        if self.effect == Effect::Add {
            for (value, to) in values.iter_mut().zip(to.iter()) {
                *value += to;
            }
        }
        match to.first_chunk_mut::<N>() {
            Some(to) => *to = values,
            None => to.copy_from_slice(&values[..to.len()]),
        }
    }
}

/// `to` becomes, or grows by, the rows of `from` times the matrices' transposes. `rounded` has room for the
/// input in 8 bits where a matrix is made for that.
pub(super) fn linear(
    processor: Processor,
    parts: Parts<'_>,
    from: &[f32],
    rounded: &mut [f32],
    (to, effect): (&mut [f32], Effect),
) {
    let (rows, columns) = (parts.rows(), parts.columns());
    let tokens = to.len() / rows.max(1);
    let integers = parts.list().any(|(_, _, part)| matches!(part.matrix.values, Values::Panels(_)));
    let rounded: &[f32] = if integers {
        round(processor, from, columns, rounded);
        rounded
    } else {
        &[]
    };
    let pieces = rayon::current_num_threads() * 2;
    let grain = (rows * columns * tokens / pieces).max(GRAIN);
    Task { processor, parts: &parts, from, rounded, effect, tokens, grain }.by_tokens(to);
}

fn round(processor: Processor, from: &[f32], columns: usize, to: &mut [f32]) {
    let words = columns / BLOCK * WORDS;
    let rows = from.chunks(columns);
    if from.len() < SERIAL {
        rows.zip(to.chunks_mut(words)).for_each(|(from, to)| integer::round(processor, from, to));
    } else {
        let rows = from.par_chunks(columns).zip(to.par_chunks_mut(words));
        rows.for_each(|(from, to)| integer::round(processor, from, to));
    }
}

#[derive(Clone, Copy)]
struct Task<'a> {
    processor: Processor,
    parts: &'a Parts<'a>,
    from: &'a [f32],
    rounded: &'a [f32],
    effect: Effect,
    tokens: usize,
    /// Multiplications of a piece.
    grain: usize,
}

impl Task<'_> {
    /// Halves the tokens until they fit a piece.
    fn by_tokens(self, to: &mut [f32]) {
        if self.tokens <= TOKENS {
            let mut rows = to.chunks_exact_mut(self.parts.rows().max(1));
            let mut outs: [Out<'_>; TOKENS] = std::array::from_fn(|_| Out::default());
            outs.iter_mut().zip(&mut rows).for_each(|(out, row)| *out = row);
            return self.by_rows(0..self.parts.panels(), outs);
        }
        let left = (self.tokens / 2).next_multiple_of(8);
        let halves = |values: &'_ [f32]| values.len() / self.tokens * left;
        let (from, rounded) = (halves(self.from), halves(self.rounded));
        let (from, rounded) = (self.from.split_at(from), self.rounded.split_at(rounded));
        let (a, b) = to.split_at_mut(left * self.parts.rows());
        let first = Self { from: from.0, rounded: rounded.0, tokens: left, ..self };
        let tokens = self.tokens - left;
        let second = Self { from: from.1, rounded: rounded.1, tokens, ..self };
        rayon::join(|| first.by_tokens(a), || second.by_tokens(b));
    }

    /// Halves the rows, by whole panels, until a piece is small enough. `outs` are these panels' outputs of
    /// each token.
    fn by_rows(self, panels: Range<usize>, mut outs: [Out<'_>; TOKENS]) {
        let rows = self.parts.row(panels.end) - self.parts.row(panels.start);
        if panels.len() < 2 || rows * self.parts.columns() * self.tokens <= self.grain {
            return self.leaf(panels, &mut outs[..self.tokens]);
        }
        let middle = panels.start + panels.len() / 2;
        let left = self.parts.row(middle) - self.parts.row(panels.start);
        let mut second: [Out<'_>; TOKENS] = std::array::from_fn(|_| Out::default());
        for (out, second) in outs.iter_mut().zip(&mut second).take(self.tokens) {
            (*out, *second) = std::mem::take(out).split_at_mut(left);
        }
        rayon::join(
            || self.by_rows(panels.start..middle, outs),
            || self.by_rows(middle..panels.end, second),
        );
    }

    fn leaf(self, panels: Range<usize>, outs: &mut [Out<'_>]) {
        for (_, first, part) in self.parts.list() {
            let rows = |panel: usize| (panel.saturating_sub(first) * ROWS).min(part.matrix.rows);
            let rows = rows(panels.start)..rows(panels.end);
            if rows.is_empty() {
                continue;
            }
            let stored = Stored { bias: part.bias, effect: self.effect };
            let mut own: [Out<'_>; TOKENS] = std::array::from_fn(|_| Out::default());
            for (out, own) in outs.iter_mut().zip(&mut own) {
                (*own, *out) = std::mem::take(out).split_at_mut(rows.len());
            }
            let own = &mut own[..self.tokens];
            match &part.matrix.values {
                Values::Panels(panels) => {
                    let columns = part.matrix.columns;
                    let x = self.rounded;
                    let product = Integers { panels, columns, rows: &rows, x, stored };
                    product.run(self.processor, own);
                }
                _ => {
                    let (matrix, rows, x) = (part.matrix, &rows, self.from);
                    Product { matrix, rows, x, stored }.run(self.processor, own);
                }
            }
        }
    }
}
