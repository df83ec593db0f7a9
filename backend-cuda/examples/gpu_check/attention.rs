//! A pool of keys and values on the card and in doubles, and what attention over it gives.

use super::bench::{Bench, Float, narrow, step, text, wide, worst};
use plimsoll_backend_cuda::{
    device::Buffer,
    kernels::{
        Attention, DecodeAttention, Heads, Kernels, KvFloat, Pages, PrefillAttention, RopeStore,
        Tile,
    },
};
use plimsoll_core::model::encoding::{e4m3_to_f32, f32_to_e4m3};

/// One shape of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) float: Float,
    pub(crate) kv: KvFloat,
    pub(crate) queries: u32,
    pub(crate) kv_heads: u32,
    pub(crate) width: u32,
    pub(crate) page_tokens: u32,
    pub(crate) window: u32,
    /// Layers of a page; the last one is used.
    pub(crate) layers: u32,
}

impl Case {
    /// Width of the kernels' template.
    pub(crate) const fn template(&self) -> u32 {
        match self.width {
            0..=64 => 64,
            65..=128 => 128,
            _ => 256,
        }
    }

    const fn heads(&self) -> Heads {
        Heads { queries: self.queries, kv: self.kv_heads, width: self.width }
    }

    const fn kv_bytes(&self) -> u64 {
        match self.kv {
            KvFloat::Same => 2,
            KvFloat::Fp8 => 1,
        }
    }

    /// Bytes of a page, with some beside it that nobody may touch.
    const fn page_bytes(&self) -> u64 {
        let token = 2 * self.layers * self.kv_heads * self.width;
        (token as u64 * self.page_tokens as u64 * self.kv_bytes()).next_multiple_of(256) + 256
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }
}

/// New tokens of a sequence: those that exist before, and how many are new.
pub(crate) type Lengths = [(usize, usize)];

/// Rows of a step with everything that kernels read of them.
pub(crate) struct Laid {
    case: Case,
    rows: Vec<(usize, usize)>,
    positions: Buffer,
    sequences: Buffer,
    table_start: Buffer,
    tables: Buffer,
    pool: Buffer,
    pages: Vec<Vec<u32>>,
    total_pages: u32,
}

impl Laid {
    /// Sequences over scattered pages; `padding` rows follow.
    pub(crate) fn new(
        bench: &mut Bench,
        case: Case,
        lengths: &Lengths,
        padding: usize,
    ) -> Result<Self, String> {
        let size = case.page_tokens as usize;
        let counts: Vec<usize> = lengths.iter().map(|(a, b)| (a + b).div_ceil(size)).collect();
        let total = counts.iter().sum::<usize>() as u32 + 3;
        let mut free: Vec<u32> = (0..total).collect();
        for i in (1..free.len()).rev() {
            let other = bench.bits() as usize % (i + 1);
            free.swap(i, other);
        }
        let pages: Vec<Vec<u32>> =
            counts.iter().map(|count| free.split_off(free.len() - count)).collect();
        let (mut starts, mut tables) = (Vec::new(), Vec::new());
        for own in &pages {
            starts.push(tables.len() as i32);
            tables.extend(own.iter().map(|page| *page as i32));
        }
        let rows: Vec<(usize, usize)> = lengths
            .iter()
            .enumerate()
            .flat_map(|(s, (before, new))| (*before..before + new).map(move |p| (s, p)))
            .collect();
        let mut positions: Vec<i32> = rows.iter().map(|(_, p)| *p as i32).collect();
        let mut sequences: Vec<i32> = rows.iter().map(|(s, _)| *s as i32).collect();
        positions.extend(vec![-1; padding]);
        sequences.extend(vec![0; padding]);
        Ok(Self {
            case,
            rows,
            positions: bench.up(&positions)?,
            sequences: bench.up(&sequences)?,
            table_start: bench.up(&starts)?,
            tables: bench.up(&tables)?,
            pool: bench.room::<u8>((case.page_bytes() * u64::from(total)) as usize)?,
            pages,
            total_pages: total,
        })
    }

    fn pages(&self) -> Pages {
        Pages {
            pool: self.pool.pointer(),
            page_bytes: self.case.page_bytes(),
            page_tokens: self.case.page_tokens,
            table_start: self.table_start.pointer(),
            tables: self.tables.pointer(),
        }
    }

    /// Where in the pool, in elements, a head's key of a position lies; its value lies `side` further.
    fn place(&self, sequence: usize, position: usize, head: usize) -> (usize, usize) {
        let case = &self.case;
        let (size, width) = (case.page_tokens as usize, case.width as usize);
        let page = self.pages[sequence][position / size] as u64;
        let start = (page * case.page_bytes() / case.kv_bytes()) as usize;
        let layer = case.layers as usize - 1;
        let block = (layer * case.kv_heads as usize + head) * 2 * size * width;
        (start + block + position % size * width, size * width)
    }

    /// The pool's elements as the kernels will read them.
    fn pool_values(&self, bench: &Bench) -> Result<Vec<f32>, String> {
        Ok(match self.case.kv {
            KvFloat::Same => wide(self.case.float, &bench.down::<u16>(self.pool.pointer())?),
            KvFloat::Fp8 => {
                let bytes = bench.down::<u8>(self.pool.pointer())?;
                bytes.iter().map(|b| e4m3_to_f32(*b)).collect()
            }
        })
    }

    /// Fills every page: keys and values for the positions that exist before.
    fn fill(&self, bench: &mut Bench) -> Result<(), String> {
        let elements =
            (self.case.page_bytes() * u64::from(self.total_pages) / self.case.kv_bytes()) as usize;
        let values = bench.values(elements, 1.0);
        let filled = match self.case.kv {
            KvFloat::Same => bench.up(&narrow(self.case.float, &values))?,
            KvFloat::Fp8 => {
                bench.up(&values.iter().map(|v| f32_to_e4m3(*v)).collect::<Vec<u8>>())?
            }
        };
        bench.stream.copy_within(self.pool.pointer(), filled.pointer()).map_err(text)?;
        bench.stream.synchronize().map_err(text)
    }

    /// Queries of all rows, padding included.
    fn queries(&self, bench: &mut Bench, padding: usize) -> Result<(Vec<f32>, Buffer), String> {
        let width = self.case.heads().row() as usize;
        let bits = narrow(self.case.float, &bench.values((self.rows.len() + padding) * width, 2.0));
        Ok((wide(self.case.float, &bits), bench.up(&bits)?))
    }

    /// Attention of every row in doubles; zeros for padding.
    fn wanted(&self, pool: &[f32], qkv: &[f32], padding: usize) -> Vec<f64> {
        let case = &self.case;
        let (width, group) = (case.width as usize, (case.queries / case.kv_heads) as usize);
        let mut out = Vec::new();
        for (row, (sequence, position)) in self.rows.iter().enumerate() {
            let from = match case.window as usize {
                0 => 0,
                window => (position + 1).saturating_sub(window),
            };
            for head in 0..case.queries as usize {
                let start = row * case.heads().row() as usize + head * width;
                let query = &qkv[start..start + width];
                let places = (from..=*position).map(|p| self.place(*sequence, p, head / group));
                out.extend(mixed(pool, query, places, f64::from(case.scale())));
            }
        }
        out.extend(vec![0.0; padding * case.queries as usize * width]);
        out
    }

    fn attention(&self, out: &Buffer, qkv: &Buffer) -> Attention {
        Attention {
            out: out.pointer(),
            qkv: qkv.pointer(),
            layer: self.case.layers - 1,
            window: self.case.window,
            scale: self.case.scale(),
        }
    }

    fn compare(
        &self,
        bench: &Bench,
        out: &Buffer,
        (qkv, padding): (&[f32], usize),
    ) -> Result<f64, String> {
        let got = wide(self.case.float, &bench.down::<u16>(out.pointer())?);
        let want = self.wanted(&self.pool_values(bench)?, qkv, padding);
        // Weights of the values are rounded to the model's numbers before the tensor cores sum them.
        let near = step(self.case.float);
        worst(&got, &want, 2.0 * near, near)
    }
}

/// Softmax of the scores over values, for one query.
fn mixed(
    pool: &[f32],
    query: &[f32],
    places: impl Iterator<Item = (usize, usize)> + Clone,
    scale: f64,
) -> Vec<f64> {
    let width = query.len();
    let score = |(at, _): (usize, usize)| {
        let products = query.iter().zip(&pool[at..at + width]);
        products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale
    };
    let scores: Vec<f64> = places.clone().map(score).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
    let mut out = vec![0.0; width];
    for ((at, side), score) in places.zip(&scores) {
        let weight = (score - most).exp() / sum;
        for (to, value) in out.iter_mut().zip(&pool[at + side..at + side + width]) {
            *to += weight * f64::from(*value);
        }
    }
    out
}

/// Rows of single tokens, in `splits` parts.
pub(crate) fn decode(
    bench: &mut Bench,
    case: Case,
    lengths: &[usize],
    splits: u32,
) -> Result<f64, String> {
    let padding = 2;
    let lengths: Vec<(usize, usize)> = lengths.iter().map(|length| (*length, 1)).collect();
    let laid = Laid::new(bench, case, &lengths, padding)?;
    laid.fill(bench)?;
    let (values, qkv) = laid.queries(bench, padding)?;
    let rows = (lengths.len() + padding) as u32;
    let out = bench.room::<u16>((rows * case.queries * case.width) as usize)?;
    let partial = Kernels::partial_bytes(&case.heads(), rows, splits);
    let partial = bench.room::<u8>(partial as usize)?;
    let kernels = bench.kernels(case.float, case.template(), case.kv)?;
    let of = DecodeAttention {
        attention: laid.attention(&out, &qkv),
        partial: partial.pointer(),
        positions: laid.positions.pointer(),
        sequences: laid.sequences.pointer(),
        rows,
        splits,
    };
    kernels.decode_attention(&bench.stream, (&case.heads(), &laid.pages()), &of).map_err(text)?;
    laid.compare(bench, &out, (&values, padding))
}

/// Chunks of prompts.
pub(crate) fn prefill(bench: &mut Bench, case: Case, lengths: &Lengths) -> Result<f64, String> {
    let laid = Laid::new(bench, case, lengths, 0)?;
    laid.fill(bench)?;
    let (values, qkv) = laid.queries(bench, 0)?;
    let mut tiles = vec![Tile::default()];
    let mut first = 0;
    for (sequence, (before, new)) in lengths.iter().enumerate() {
        for at in (0..*new).step_by(64) {
            tiles.push(Tile {
                row: (first + at) as i32,
                rows: (new - at).min(64) as i32,
                sequence: sequence as i32,
                position: (before + at) as i32,
            });
        }
        first += new;
    }
    let out = bench.room::<u16>(laid.rows.len() * (case.queries * case.width) as usize)?;
    let kernels = bench.kernels(case.float, case.template(), case.kv)?;
    let places = bench.up(&tiles)?;
    let of = PrefillAttention {
        attention: laid.attention(&out, &qkv),
        tiles: places.pointer(),
        count: tiles.len() as u32,
    };
    kernels.prefill_attention(&bench.stream, (&case.heads(), &laid.pages()), &of).map_err(text)?;
    laid.compare(bench, &out, (&values, 0))
}

/// Rotation of queries and keys, and their way into the pool.
pub(crate) fn rope_store(bench: &mut Bench, case: Case, lengths: &Lengths) -> Result<f64, String> {
    let padding = 1;
    let laid = Laid::new(bench, case, lengths, padding)?;
    laid.fill(bench)?;
    let (values, qkv) = laid.queries(bench, padding)?;
    let before = laid.pool_values(bench)?;
    let (half, row) = (case.width as usize / 2, case.heads().row() as usize);
    let longest = lengths.iter().map(|(a, b)| a + b).max().unwrap_or(1);
    let angles: Vec<f64> = (0..longest * half).map(|_| bench.unit() * 6.0).collect();
    let cos: Vec<f32> = angles.iter().map(|a| a.cos() as f32).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin() as f32).collect();
    let (on_cos, on_sin) = (bench.up(&cos)?, bench.up(&sin)?);
    let of = RopeStore {
        qkv: qkv.pointer(),
        positions: laid.positions.pointer(),
        sequences: laid.sequences.pointer(),
        cos: on_cos.pointer(),
        sin: on_sin.pointer(),
        layer: case.layers - 1,
        rows: (laid.rows.len() + padding) as u32,
    };
    let kernels = bench.kernels(case.float, case.template(), case.kv)?;
    kernels.rope_store(&bench.stream, (&case.heads(), &laid.pages()), &of).map_err(text)?;
    let rotated = wide(case.float, &bench.down::<u16>(qkv.pointer())?);
    let after = laid.pool_values(bench)?;
    // A rotated value, in doubles.
    let turn = |index: usize, position: usize, i: usize| {
        let at = position * half + i % half;
        let (c, s) = (f64::from(cos[at]), f64::from(sin[at]));
        let own = f64::from(values[index]);
        if i < half {
            own * c - f64::from(values[index + half]) * s
        } else {
            own * c + f64::from(values[index - half]) * s
        }
    };
    let near = step(case.float);
    let mut most = 0.0_f64;
    let mut wanted = before;
    for (r, (sequence, position)) in laid.rows.iter().enumerate() {
        for head in 0..case.queries as usize {
            let start = r * row + head * case.width as usize;
            let got = &rotated[start..start + case.width as usize];
            let want: Vec<f64> =
                (0..case.width as usize).map(|i| turn(start + i, *position, i)).collect();
            most = most.max(worst(got, &want, near, 1e-5)?);
        }
        for head in 0..case.kv_heads as usize {
            let (at, side) = laid.place(*sequence, *position, head);
            let key = r * row + (case.queries as usize + head) * case.width as usize;
            let value = key + (case.kv_heads * case.width) as usize;
            for i in 0..case.width as usize {
                wanted[at + i] = turn(key + i, *position, i) as f32;
                wanted[at + side + i] = values[value + i];
            }
        }
    }
    let near = if case.kv == KvFloat::Fp8 { 1.0 / 8.0 } else { near };
    // What no row names is as it was; some of it is no number.
    let pairs = after.iter().zip(&wanted).filter(|(_, want)| !want.is_nan());
    let (got, want): (Vec<f32>, Vec<f64>) = pairs.map(|(a, b)| (*a, f64::from(*b))).unzip();
    Ok(most.max(worst(&got, &want, near, 2e-3)?))
}
