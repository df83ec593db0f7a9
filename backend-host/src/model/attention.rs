//! Causal attention of a step's tokens, divided among all threads, over pages in any order.
//!
//! What a token sees is cut into spans at fixed positions, whatever the step. Each span is attended to on its
//! own, by whichever thread is free; then the spans of a token are merged in order. So the result depends on
//! the token's own past alone, and one long decode uses every thread.

use rayon::prelude::*;

use super::{
    dot::vectors,
    kv::{Brain, Eight, Half, KvPool},
    linear::Processor,
    span::{QUERIES, Query, SPAN, Span, UNSEEN, Weight, attend},
    step::Row,
    vector::exp,
};
use plimsoll_core::{
    policy::plimsoll::KvFormat,
    tape::own::{DecoderShape, Sequence},
};

/// Spans that are attended to before they are merged, at least.
const UNITS: usize = 64;
/// Multiplications that are worth a second thread.
const GRAIN: usize = 1 << 18;

/// Consecutive new tokens of one sequence.
#[derive(Clone, Copy, Debug)]
struct Tile {
    row: usize,
    rows: usize,
}

/// Room for spans that are not merged yet; taken once.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Tokens of a tile.
    rows: usize,
    /// Heads and weights of one tile over one span for one key head.
    unit: (usize, usize),
    tiles: Vec<Tile>,
    heads: Vec<f32>,
    weights: Vec<Weight>,
    /// By row of a wave and query head: merged so far.
    merged: Vec<Weight>,
}

impl Scratch {
    /// For steps of up to `tokens` tokens.
    pub(super) fn new(shape: &DecoderShape, tokens: usize, threads: usize) -> Self {
        let Room { rows, units, unit } = Room::new(shape, threads);
        Self {
            rows,
            unit,
            tiles: Vec::with_capacity(tokens),
            heads: touched(units * unit.0, 0.0),
            weights: touched(units * unit.1, UNSEEN),
            merged: touched(units * unit.1, UNSEEN),
        }
    }

    /// Bytes that it will hold.
    pub(super) fn planned(shape: &DecoderShape, tokens: usize, threads: usize) -> u64 {
        let Room { units, unit, .. } = Room::new(shape, threads);
        let weights = 2 * units * unit.1 * size_of::<Weight>();
        (units * unit.0 * 4 + weights + tokens * size_of::<Tile>()) as u64
    }

    /// Bytes that it holds.
    pub(super) const fn bytes(&self) -> u64 {
        let weights = (self.weights.capacity() + self.merged.capacity()) * size_of::<Weight>();
        (self.heads.capacity() * 4 + weights + self.tiles.capacity() * size_of::<Tile>()) as u64
    }

    /// Cuts a step's tokens into tiles.
    pub(super) fn lay_out(&mut self, sequences: &[Sequence<'_>]) {
        self.tiles.clear();
        let mut row = 0;
        for sequence in sequences {
            let end = row + sequence.tokens.len();
            while row < end {
                let rows = self.rows.min(end - row);
                self.tiles.push(Tile { row, rows });
                row += rows;
            }
        }
    }
}

/// Sizes of the scratch.
struct Room {
    rows: usize,
    units: usize,
    unit: (usize, usize),
}

impl Room {
    fn new(shape: &DecoderShape, threads: usize) -> Self {
        let group = (shape.q_heads / shape.kv_heads) as usize;
        let rows = (QUERIES / group).max(1);
        let units = UNITS.max(8 * threads).max(shape.kv_heads as usize);
        let unit = (rows * group * shape.head_dim as usize, rows * group);
        Self { rows, units, unit }
    }
}

/// Written to, so that its pages are there.
fn touched<T: Copy>(count: usize, value: T) -> Vec<T> {
    let mut values = Vec::with_capacity(count);
    values.resize(count, value);
    values
}

/// One layer's attention.
#[derive(Clone, Copy)]
pub(super) struct Attend<'a> {
    pub(super) kv: &'a KvPool,
    pub(super) layer: usize,
    /// Positions that a token sees, itself included.
    pub(super) window: Option<usize>,
    pub(super) shape: &'a DecoderShape,
    pub(super) processor: Processor,
    pub(super) rows: &'a [Row],
    pub(super) sequences: &'a [Sequence<'a>],
    /// Rows that begin with the queries, and their width.
    pub(super) from: (&'a [f32], usize),
}

impl Attend<'_> {
    /// `to` has the query heads of each row.
    pub(super) fn run(self, scratch: &mut Scratch, to: &mut [f32]) {
        let Scratch { unit, tiles, heads, weights, merged, .. } = scratch;
        let (kv_heads, q_heads) = (self.shape.kv_heads as usize, self.shape.q_heads as usize);
        let width = q_heads * self.shape.head_dim as usize;
        let units = weights.len() / unit.1.max(1);
        let serial = self.work() < GRAIN;
        for tiles in tiles.chunks((units / kv_heads).max(1)) {
            let (Some(first), Some(last)) = (tiles.first(), tiles.last()) else { continue };
            let end = last.row + last.rows;
            let to = &mut to[first.row * width..end * width];
            let merged = &mut merged[..(end - first.row) * q_heads];
            merged.fill(UNSEEN);
            let pairs = tiles.len() * kv_heads;
            let spans = tiles.iter().map(|tile| self.spans(*tile).1).max().unwrap_or(0);
            let most = (units / pairs).clamp(1, spans.max(1));
            for start in (0..spans).step_by(most) {
                let wave = Wave { tiles, start, count: most.min(spans - start), unit: *unit };
                let count = pairs * wave.count;
                let heads = &mut heads[..count * unit.0];
                let weights = &mut weights[..count * unit.1];
                wave.attend(self, serial, heads, weights);
                wave.merge(self, serial, (heads, weights), (to, merged));
            }
        }
    }

    /// Multiplications of the step, about.
    fn work(&self) -> usize {
        let most = self.window.unwrap_or(usize::MAX);
        let seen: usize = self.rows.iter().map(|row| most.min(row.position as usize + 1)).sum();
        seen.saturating_mul(2 * self.shape.q_width() as usize)
    }

    /// First and end of what a row sees.
    fn seen(&self, row: usize) -> (usize, usize) {
        let end = self.rows[row].position as usize + 1;
        (self.window.map_or(0, |window| end.saturating_sub(window)), end)
    }

    /// First span that a tile sees, and how many.
    fn spans(&self, tile: Tile) -> (usize, usize) {
        let (from, _) = self.seen(tile.row);
        let (_, to) = self.seen(tile.row + tile.rows - 1);
        (from / SPAN, to.div_ceil(SPAN) - from / SPAN)
    }
}

/// Some tiles, all key heads, and some spans from each tile's first.
#[derive(Clone, Copy)]
struct Wave<'a> {
    tiles: &'a [Tile],
    start: usize,
    count: usize,
    unit: (usize, usize),
}

impl Wave<'_> {
    /// Each tile, head and span on its own.
    fn attend(self, all: Attend<'_>, serial: bool, heads: &mut [f32], weights: &mut [Weight]) {
        let arch = all.processor.arch;
        let one = |(index, (heads, weights)): (usize, (&mut [f32], &mut [Weight]))| {
            vectors(
                arch,
                #[inline(always)]
                || self.one(all, index, heads, weights),
            );
        };
        let (heads_of, weights_of) = self.unit;
        if serial {
            let both = heads.chunks_mut(heads_of).zip(weights.chunks_mut(weights_of));
            both.enumerate().for_each(one);
        } else {
            let both = heads.par_chunks_mut(heads_of).zip(weights.par_chunks_mut(weights_of));
            both.enumerate().for_each(one);
        }
    }

    #[inline(always)]
    fn one(self, all: Attend<'_>, index: usize, heads: &mut [f32], weights: &mut [Weight]) {
        let (pair, span) = (index / self.count, self.start + index % self.count);
        let (kv_heads, head_dim) = (all.shape.kv_heads as usize, all.shape.head_dim as usize);
        let (tile, head) = (self.tiles[pair / kv_heads], pair % kv_heads);
        let (first, spans) = all.spans(tile);
        if span >= spans {
            weights.fill(UNSEEN);
            return;
        }
        let sequence = all.rows[tile.row].sequence as usize;
        let span = Span {
            kv: all.kv.head(all.layer, head),
            table: all.sequences.get(sequence).map_or(&[], |s| s.table),
            start: (first + span) * SPAN,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            tile: all.processor.tile,
        };
        let group = all.shape.q_heads as usize / kv_heads;
        let query = |index: usize| {
            let row = tile.row + index / group;
            let at = row * all.from.1 + (head * group + index % group) * head_dim;
            let (from, to) = all.seen(row);
            let inside = |position: usize| position.saturating_sub(span.start).min(SPAN);
            Query { values: &all.from.0[at..at + head_dim], from: inside(from), to: inside(to) }
        };
        let count = tile.rows * group;
        for first in (0..count).step_by(QUERIES) {
            let some = QUERIES.min(count - first);
            let mut queries = [Query::default(); QUERIES];
            for (i, to) in queries[..some].iter_mut().enumerate() {
                *to = query(first + i);
            }
            let queries = &queries[..some];
            let out = &mut heads[first * head_dim..(first + some) * head_dim];
            let weights = &mut weights[first..first + some];
            match all.kv.cell().format {
                KvFormat::F32 => attend::<f32>(span, queries, out, weights),
                KvFormat::F16 => attend::<Half>(span, queries, out, weights),
                KvFormat::Bf16 => attend::<Brain>(span, queries, out, weights),
                KvFormat::Fp8E4m3 => attend::<Eight>(span, queries, out, weights),
            }
        }
    }

    /// Adds the spans to what each row has, in order; after a row's last span the sum is made whole.
    fn merge(
        self,
        all: Attend<'_>,
        serial: bool,
        (heads, weights): (&[f32], &[Weight]),
        (to, merged): (&mut [f32], &mut [Weight]),
    ) {
        let (q_heads, arch) = (all.shape.q_heads as usize, all.processor.arch);
        let width = q_heads * all.shape.head_dim as usize;
        let first = self.tiles.first().map_or(0, |tile| tile.row);
        let row = |(row, (to, merged)): (usize, (&mut [f32], &mut [Weight]))| {
            vectors(
                arch,
                #[inline(always)]
                || self.row(all, first + row, (heads, weights), (to, merged)),
            );
        };
        if serial {
            let both = to.chunks_mut(width).zip(merged.chunks_mut(q_heads));
            both.enumerate().for_each(row);
        } else {
            let both = to.par_chunks_mut(width).zip(merged.par_chunks_mut(q_heads));
            both.enumerate().for_each(row);
        }
    }

    #[inline(always)]
    fn row(
        self,
        all: Attend<'_>,
        row: usize,
        (heads, weights): (&[f32], &[Weight]),
        (to, merged): (&mut [f32], &mut [Weight]),
    ) {
        let (kv_heads, head_dim) = (all.shape.kv_heads as usize, all.shape.head_dim as usize);
        let group = all.shape.q_heads as usize / kv_heads;
        let at = self.tiles.partition_point(|tile| tile.row + tile.rows <= row);
        let (index, tile) = (at, self.tiles[at]);
        let (first, spans) = all.spans(tile);
        let end = all.seen(row).1.div_ceil(SPAN) - first;
        let here = self.start..spans.min(self.start + self.count);
        let both = to.chunks_exact_mut(head_dim).zip(merged);
        for (q, (to, merged)) in both.enumerate() {
            let pair = index * kv_heads + q / group;
            let query = (row - tile.row) * group + q % group;
            for span in here.clone() {
                let unit = pair * self.count + span - self.start;
                let at = unit * self.unit.0 + query * head_dim;
                let weight = weights[unit * self.unit.1 + query];
                join((to, merged), (&heads[at..at + head_dim], weight));
                if span + 1 == end {
                    let scale = 1.0 / merged[1];
                    to.iter_mut().for_each(|value| *value *= scale);
                }
            }
        }
    }
}

/// Adds a span to those before it.
#[inline(always)]
fn join((to, merged): (&mut [f32], &mut Weight), (heads, weight): (&[f32], Weight)) {
    if weight[0] == UNSEEN[0] {
        return;
    }
    if merged[0] == UNSEEN[0] {
        to.copy_from_slice(heads);
        *merged = weight;
        return;
    }
    let highest = merged[0].max(weight[0]);
    let (before, new) = (exp(merged[0] - highest), exp(weight[0] - highest));
    *merged = [highest, weight[1].mul_add(new, merged[1] * before)];
    for (to, value) in to.iter_mut().zip(heads) {
        *to = value.mul_add(new, *to * before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Outputs, dot::Tile as Width};
    use plimsoll_core::{policy::plimsoll::KvCell, tape::own::LayerShape};
    use proptest::prelude::*;

    const LAYER: usize = 1;

    fn shape((kv_heads, group, half): (u64, u64, u64)) -> DecoderShape {
        DecoderShape {
            vocab: 2,
            hidden: 8,
            layers: vec![LayerShape { intermediate: 1, window: None }; 2],
            q_heads: kv_heads * group,
            kv_heads,
            head_dim: 2 * half,
            norm_eps: 1e-5,
            rope: vec![1.0; half as usize],
            tied: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            context: 1 << 20,
        }
    }

    /// Something between -2 and 2 that looks like nothing.
    fn noise(seed: u64) -> f32 {
        let bits = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 22) as f32
            - 2.0
    }

    fn vector(seed: u64, width: usize) -> Vec<f32> {
        (0..width as u64).map(|i| noise(seed * 65_537 + i)).collect()
    }

    /// Keys and values of a position; what is not seen by anyone yet is no number.
    fn pool(cell: KvCell, positions: usize, table: &[u32]) -> KvPool {
        let width = (cell.kv_heads * cell.head_dim) as usize;
        let size = cell.page_tokens as usize;
        let mut pool = KvPool::new(cell, table.len()).unwrap();
        for position in 0..table.len() * size {
            let (mut keys, mut values) = (vec![f32::NAN; width], vec![f32::NAN; width]);
            if position < positions {
                keys = vector(2 * position as u64, width);
                values = vector(2 * position as u64 + 1, width);
            }
            let slot = (table[position / size], position % size);
            assert!(pool.store(LAYER, slot, &keys, &values));
        }
        pool
    }

    struct Case {
        shape: DecoderShape,
        pool: KvPool,
        table: Vec<u32>,
        window: Option<usize>,
        tile: Width,
    }

    impl Case {
        /// Heads of the positions from `before` on, as one step.
        fn heads(&self, before: usize, count: usize, threads: usize) -> Vec<f32> {
            let width = self.shape.q_width() as usize;
            let from: Vec<f32> = (before..before + count)
                .flat_map(|position| vector(1_000_000 + position as u64, width + 3))
                .collect();
            let rows: Vec<Row> = (before..before + count)
                .map(|position| Row { token: 0, position: position as u32, sequence: 0 })
                .collect();
            let tokens = vec![0; count];
            let (table, outputs) = (&self.table[..], Outputs::None);
            let sequences = [Sequence { tokens: &tokens, table, before, outputs }];
            let mut scratch = Scratch::new(&self.shape, count, threads);
            scratch.lay_out(&sequences);
            let mut to = vec![f32::NAN; count * width];
            let attend = Attend {
                kv: &self.pool,
                layer: LAYER,
                window: self.window,
                shape: &self.shape,
                processor: Processor { arch: fearless_simd::Level::new(), tile: self.tile },
                rows: &rows,
                sequences: &sequences,
                from: (&from, width + 3),
            };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| attend.run(&mut scratch, &mut to));
            to
        }

        /// The same in double precision, head by head.
        fn plain(&self, position: usize) -> Vec<f64> {
            let (dim, kv_heads) = (self.shape.head_dim as usize, self.shape.kv_heads as usize);
            let group = self.shape.q_heads as usize / kv_heads;
            let queries = vector(1_000_000 + position as u64, group * kv_heads * dim);
            let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let mut out = Vec::new();
            for (head, query) in queries.chunks(dim).enumerate() {
                let at = head / group * dim;
                let score = |seen: usize| {
                    let key = &vector(2 * seen as u64, kv_heads * dim)[at..at + dim];
                    let dot: f64 =
                        query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    (dot / (dim as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = (first..=position).map(score).collect();
                let sum: f64 = weights.iter().sum();
                let mut head = vec![0.0; dim];
                for (seen, weight) in (first..).zip(&weights) {
                    let value = &vector(2 * seen as u64 + 1, kv_heads * dim)[at..at + dim];
                    for (to, value) in head.iter_mut().zip(value) {
                        *to += f64::from(*value) * weight / sum;
                    }
                }
                out.extend(head);
            }
            out
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Over spans, waves, windows and pages: near what it should be, and the same bits in any way.
        #[test]
        fn attention_is_right_and_one(
            heads in (1_u64..4, 1_u64..6, prop::sample::select(vec![3_u64, 8, 16, 32])),
            (before, count) in (0_usize..1500, 1_usize..40),
            page in prop::sample::select(vec![1_u64, 7, 16, 100]),
            window in prop::option::of(1_usize..700),
            format in prop::sample::select(KvFormat::ALL.to_vec()),
            threads in 1_usize..4,
            cut in 0_usize..40,
        ) {
            let shape = shape(heads);
            let cell = KvCell::new(&shape, format, page).unwrap();
            let positions = before + count;
            let pages = positions.div_ceil(page as usize) as u32;
            let table: Vec<u32> = (0..pages).rev().collect();
            let pool = pool(cell, positions, &table);
            let mut case = Case { shape, pool, table, window, tile: Width::Wide };
            let whole = case.heads(before, count, threads);
            let near = match format {
                KvFormat::F32 => 2e-5,
                KvFormat::F16 => 4e-3,
                KvFormat::Bf16 => 4e-2,
                KvFormat::Fp8E4m3 => 0.4,
            };
            let width = case.shape.q_width() as usize;
            for at in [0, count / 2, count - 1] {
                let plain = case.plain(before + at);
                for (a, b) in whole[at * width..(at + 1) * width].iter().zip(plain) {
                    prop_assert!((f64::from(*a) - b).abs() < near, "{a} {b}");
                }
            }
            let cut = cut.min(count - 1);
            case.tile = Width::Narrow;
            let mut parts = if cut > 0 { case.heads(before, cut, 1) } else { Vec::new() };
            parts.extend(case.heads(before + cut, count - cut, 1));
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&whole), bits(&parts));
        }
    }
}
