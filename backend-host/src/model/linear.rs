//! A projection of the tape on all threads.

use plimsoll_core::tape::own::Effect;
use rayon::prelude::*;

use super::{
    dot::{Product, Tile},
    held::Held,
};

/// Multiplications that are worth a task of their own.
const GRAIN: usize = 1 << 17;
/// Rows of a task are a multiple of this: whole tiles.
const ROWS: usize = 8;

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
    fn list(&self) -> impl Iterator<Item = (usize, Part<'a>)> {
        let parts = self.parts.into_iter().flatten();
        parts.scan(0, |at, part| {
            let start = *at;
            *at += part.matrix.rows;
            Some((start, part))
        })
    }

    fn rows(&self) -> usize {
        self.parts.iter().flatten().map(|p| p.matrix.rows).sum()
    }

    fn columns(&self) -> usize {
        self.parts.iter().flatten().map(|p| p.matrix.columns).next().unwrap_or(0)
    }
}

/// The processor's vectors.
#[derive(Clone, Copy)]
pub(super) struct Processor {
    pub(super) arch: pulp::Arch,
    pub(super) tile: Tile,
}

/// `to` becomes, or grows by, the rows of `from` times the matrices' transposes. `product` is as large as
/// `to`: there the tokens of each output stand side by side.
pub(super) fn linear(
    processor: Processor,
    parts: Parts<'_>,
    from: &[f32],
    product: &mut [f32],
    (to, effect): (&mut [f32], Effect),
) {
    let (rows, columns) = (parts.rows(), parts.columns());
    let tokens = to.len() / rows.max(1);
    let task = Task { processor, parts, from, tokens };
    let grain = (GRAIN / (columns * tokens).max(1)).next_multiple_of(ROWS).max(ROWS);
    task.split(0, product, grain);
    let product: &[f32] = product;
    let store = |token: usize, to: &mut [f32]| {
        for (start, part) in parts.list() {
            let to = &mut to[start..start + part.matrix.rows];
            finish(to, &product[start * tokens..], (token, tokens), part.bias, effect);
        }
    };
    if tokens * rows < GRAIN {
        to.chunks_mut(rows).enumerate().for_each(|(token, to)| store(token, to));
    } else {
        to.par_chunks_mut(rows).enumerate().for_each(|(token, to)| store(token, to));
    }
}

fn finish(
    to: &mut [f32],
    product: &[f32],
    (token, tokens): (usize, usize),
    bias: Option<&[f32]>,
    effect: Effect,
) {
    for (i, to) in to.iter_mut().enumerate() {
        let mut value = product[i * tokens + token];
        if let Some(bias) = bias {
            value += bias[i];
        }
        match effect {
            Effect::Store => *to = value,
            Effect::Add => *to += value,
        }
    }
}

#[derive(Clone, Copy)]
struct Task<'a> {
    processor: Processor,
    parts: Parts<'a>,
    from: &'a [f32],
    tokens: usize,
}

impl Task<'_> {
    /// Halves the rows until a part is small enough.
    fn split(self, first: usize, out: &mut [f32], grain: usize) {
        let rows = out.len() / self.tokens.max(1);
        if rows <= grain {
            return self.leaf(first, out);
        }
        let left = (rows / 2).next_multiple_of(ROWS).min(rows);
        let (a, b) = out.split_at_mut(left * self.tokens);
        rayon::join(|| self.split(first, a, grain), || self.split(first + left, b, grain));
    }

    fn leaf(self, first: usize, out: &mut [f32]) {
        let end = first + out.len() / self.tokens.max(1);
        for (start, part) in self.parts.list() {
            let (from, to) = (first.max(start), end.min(start + part.matrix.rows));
            if from >= to {
                continue;
            }
            let out = &mut out[(from - first) * self.tokens..(to - first) * self.tokens];
            let (x, tokens) = (self.from, self.tokens);
            let rows = from - start..to - start;
            let product = Product { matrix: part.matrix, rows, x, tokens, out };
            product.run(self.processor.arch, self.processor.tile);
        }
    }
}
