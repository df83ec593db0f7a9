//! Quantised matrices as the integer kernels read them: sixteen rows side by side, 32 columns at a time, so
//! that one vector holds four values of every row and its 32-bit lanes are the rows' sums.

use plimsoll_core::model::encoding::{Encoding, f16_to_f32};

/// Rows of a panel.
pub(super) const ROWS: usize = 16;
/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Columns of a line: four bytes for each row.
const QUAD: usize = 4;
/// What is added to signed values, so that they are bytes from 0 on.
pub(super) const SHIFT: i32 = 128;

/// Four bytes of each row: a vector.
pub(super) type Line = [u8; ROWS * QUAD];

/// A scale as it is kept: a half where the file has one, a float where it is a product of two.
pub(super) trait Scale: Copy + Default + Send + Sync + 'static {
    /// Its value.
    fn value(self) -> f32;
    /// Keeps a value that the file has in this form.
    fn keep(half: u16, value: f32) -> Self;
    /// All rows' scales in the form that they have.
    fn view(scales: &[Self; ROWS]) -> Scales<'_>;
}

/// Scales of a block.
#[derive(Clone, Copy)]
pub(super) enum Scales<'a> {
    Half(&'a [u16; ROWS]),
    Single(&'a [f32; ROWS]),
}

impl Scale for u16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f16_to_f32(self)
    }

    fn keep(half: u16, _: f32) -> Self {
        half
    }

    #[inline(always)]
    fn view(scales: &[Self; ROWS]) -> Scales<'_> {
        Scales::Half(scales)
    }
}

impl Scale for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }

    fn keep(_: u16, value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn view(scales: &[Self; ROWS]) -> Scales<'_> {
        Scales::Single(scales)
    }
}

/// Values 0 to 15 with a scale and a least value a row. Low nibbles are columns 0 to 15, high ones the rest.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C, align(64))]
pub(super) struct Nibbles<S> {
    pub(super) lines: [Line; 4],
    pub(super) scales: [S; ROWS],
    pub(super) least: [S; ROWS],
}

/// Signed values plus 128, with a scale for each `1 / K` of a block.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C, align(32))]
pub(super) struct Bytes<S, const K: usize> {
    pub(super) lines: [Line; 8],
    pub(super) scales: [[S; ROWS]; K],
}

/// A matrix: the blocks of the first panel from left to right, then those of the next. Rows that fill up the
/// last panel are zero.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Panels {
    /// Q4_1.
    Nibbles(Vec<Nibbles<u16>>),
    /// Q4_0, whose least value is -8 scales, and Q4_K.
    FineNibbles(Vec<Nibbles<f32>>),
    /// Q8_0.
    Bytes(Vec<Bytes<u16, 1>>),
    /// Q6_K.
    FineBytes(Vec<Bytes<f32, 2>>),
}

/// One row's part of a block, from a file.
struct Piece {
    values: [i32; BLOCK],
    scales: [(u16, f32); 2],
    least: (u16, f32),
}

impl Panels {
    /// Packs rows of blocks; `None` for encodings without.
    pub(super) fn new(encoding: Encoding, columns: usize, bytes: &[u8]) -> Option<Self> {
        let row = encoding.row_bytes(columns).filter(|bytes| *bytes > 0)?;
        let rows: Vec<&[u8]> = bytes.chunks_exact(row).collect();
        let blocks = columns / BLOCK;
        Some(match encoding {
            Encoding::Q4_0 => Self::FineNibbles(nibbles(&rows, blocks, q4_0)),
            Encoding::Q4_1 => Self::Nibbles(nibbles(&rows, blocks, q4_1)),
            Encoding::Q4K => Self::FineNibbles(nibbles(&rows, blocks, q4_k)),
            Encoding::Q8_0 => Self::Bytes(eights(&rows, blocks, q8_0)),
            Encoding::Q6K => Self::FineBytes(eights(&rows, blocks, q6_k)),
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => return None,
        })
    }

    /// Bytes of the blocks of a matrix; `None` for encodings without.
    pub(super) const fn planned(encoding: Encoding, rows: u64, columns: u64) -> Option<u64> {
        let block = match encoding {
            Encoding::Q4_0 | Encoding::Q4K => size_of::<Nibbles<f32>>(),
            Encoding::Q4_1 => size_of::<Nibbles<u16>>(),
            Encoding::Q8_0 => size_of::<Bytes<u16, 1>>(),
            Encoding::Q6K => size_of::<Bytes<f32, 2>>(),
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => return None,
        };
        let blocks = rows.div_ceil(ROWS as u64).saturating_mul(columns / BLOCK as u64);
        Some(blocks.saturating_mul(block as u64))
    }

    /// Bytes of its blocks.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Nibbles(v) => size_of_val(v.as_slice()),
            Self::FineNibbles(v) => size_of_val(v.as_slice()),
            Self::Bytes(v) => size_of_val(v.as_slice()),
            Self::FineBytes(v) => size_of_val(v.as_slice()),
        }
    }

    /// One row as float32: the values that the file has.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let (groups, _) = out.as_chunks_mut::<BLOCK>();
        let (first, lane) = (row / ROWS * groups.len(), row % ROWS);
        for (i, to) in groups.iter_mut().enumerate() {
            match self {
                Self::Nibbles(v) => v[first + i].row(lane, to),
                Self::FineNibbles(v) => v[first + i].row(lane, to),
                Self::Bytes(v) => v[first + i].row(lane, to),
                Self::FineBytes(v) => v[first + i].row(lane, to),
            }
        }
    }
}

/// Blocks of all panels, each made of the pieces of sixteen rows.
fn pack<T: Copy>(
    rows: &[&[u8]],
    blocks: usize,
    (piece, zero): (impl Fn(&[u8], usize) -> Piece, T),
    put: impl Fn(&mut T, usize, &Piece),
) -> Vec<T> {
    let mut out = vec![zero; rows.len().div_ceil(ROWS) * blocks];
    for (panel, rows) in out.chunks_mut(blocks.max(1)).zip(rows.chunks(ROWS)) {
        for (i, to) in panel.iter_mut().enumerate() {
            for (lane, row) in rows.iter().enumerate() {
                put(to, lane, &piece(row, i));
            }
        }
    }
    out
}

fn nibbles<S: Scale>(
    rows: &[&[u8]],
    blocks: usize,
    piece: impl Fn(&[u8], usize) -> Piece,
) -> Vec<Nibbles<S>> {
    let none = [S::default(); ROWS];
    let zero = Nibbles { lines: [[0; 64]; 4], scales: none, least: none };
    pack(rows, blocks, (piece, zero), |to, lane, piece| {
        for (column, value) in piece.values.iter().enumerate() {
            let (line, shift) = (column % 16 / QUAD, column / 16 * 4);
            to.lines[line][lane * QUAD + column % QUAD] |= (*value as u8) << shift;
        }
        to.scales[lane] = S::keep(piece.scales[0].0, piece.scales[0].1);
        to.least[lane] = S::keep(piece.least.0, piece.least.1);
    })
}

fn eights<S: Scale, const K: usize>(
    rows: &[&[u8]],
    blocks: usize,
    piece: impl Fn(&[u8], usize) -> Piece,
) -> Vec<Bytes<S, K>> {
    let zero = Bytes { lines: [[SHIFT as u8; 64]; 8], scales: [[S::default(); ROWS]; K] };
    pack(rows, blocks, (piece, zero), |to, lane, piece| {
        for (column, value) in piece.values.iter().enumerate() {
            let byte = (*value + SHIFT) as u8;
            to.lines[column / QUAD][lane * QUAD + column % QUAD] = byte;
        }
        for (to, from) in to.scales.iter_mut().zip(piece.scales) {
            to[lane] = S::keep(from.0, from.1);
        }
    })
}

impl<S: Scale> Nibbles<S> {
    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        let (scale, least) = (self.scales[lane].value(), self.least[lane].value());
        for (column, to) in out.iter_mut().enumerate() {
            let byte = self.lines[column % 16 / QUAD][lane * QUAD + column % QUAD];
            let value = (byte >> (column / 16 * 4)) & 15;
            *to = f32::from(value) * scale + least;
        }
    }
}

impl<S: Scale, const K: usize> Bytes<S, K> {
    fn row(&self, lane: usize, out: &mut [f32; BLOCK]) {
        for (column, to) in out.iter_mut().enumerate() {
            let byte = self.lines[column / QUAD][lane * QUAD + column % QUAD];
            let scale = self.scales[column * K / BLOCK][lane].value();
            *to = (i32::from(byte) - SHIFT) as f32 * scale;
        }
    }
}

fn half(bytes: &[u8], at: usize) -> (u16, f32) {
    let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    (bits, f16_to_f32(bits))
}

/// The nibbles of 16 bytes: low ones first.
fn both(bytes: &[u8]) -> [i32; BLOCK] {
    std::array::from_fn(|i| i32::from(bytes[i % 16] >> (i / 16 * 4)) & 15)
}

fn q4_0(row: &[u8], block: usize) -> Piece {
    let bytes = &row[block * 18..];
    let scale = half(bytes, 0);
    Piece { values: both(&bytes[2..]), scales: [scale; 2], least: (0, scale.1 * -8.0) }
}

fn q4_1(row: &[u8], block: usize) -> Piece {
    let bytes = &row[block * 20..];
    let (scale, least) = (half(bytes, 0), half(bytes, 2));
    Piece { values: both(&bytes[4..]), scales: [scale; 2], least }
}

fn q8_0(row: &[u8], block: usize) -> Piece {
    let bytes = &row[block * 34..];
    let values = std::array::from_fn(|i| i32::from(bytes[2 + i] as i8));
    Piece { values, scales: [half(bytes, 0); 2], least: (0, 0.0) }
}

fn q4_k(row: &[u8], block: usize) -> Piece {
    let (bytes, group) = (&row[block / 8 * 144..][..144], block % 8);
    let packed = &bytes[4..16];
    let (scale, least) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let (scale, least) = (packed[group - 4] >> 6, packed[group] >> 6);
        ((packed[group + 4] & 15) | (scale << 4), (packed[group + 4] >> 4) | (least << 4))
    };
    let from = &bytes[16 + group / 2 * 32..];
    let values = std::array::from_fn(|i| i32::from(from[i] >> (group % 2 * 4)) & 15);
    let scale = half(bytes, 0).1 * f32::from(scale);
    let least = -(half(bytes, 2).1 * f32::from(least));
    Piece { values, scales: [(0, scale); 2], least: (0, least) }
}

fn q6_k(row: &[u8], block: usize) -> Piece {
    let (bytes, group) = (&row[block / 8 * 210..][..210], block % 8);
    let (side, part) = (group / 4, group % 4);
    let (low, high) = (&bytes[side * 64 + part % 2 * 32..], &bytes[128 + side * 32..]);
    let values = std::array::from_fn(|i| {
        let nibble = (low[i] >> (part / 2 * 4)) & 15;
        i32::from(nibble | (((high[i] >> (part * 2)) & 3) << 4)) - 32
    });
    let own = |i: usize| f32::from(bytes[192 + side * 8 + part * 2 + i] as i8);
    let scale = half(bytes, 208).1;
    Piece { values, scales: [(0, scale * own(0)), (0, scale * own(1))], least: (0, 0.0) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENCODINGS: [Encoding; 5] =
        [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0, Encoding::Q4K, Encoding::Q6K];

    proptest! {
        #[test]
        fn rows_are_those_of_the_file(
            encoding in 0..ENCODINGS.len(), rows in 1_usize..40,
            bytes in prop::collection::vec(any::<u8>(), 40 * 2 * 210),
        ) {
            let encoding = ENCODINGS[encoding];
            let columns = encoding.block().0 * 2;
            let row = encoding.row_bytes(columns).unwrap();
            let panels = Panels::new(encoding, columns, &bytes[..rows * row]).unwrap();
            for (i, bytes) in bytes.chunks(row).take(rows).enumerate() {
                let (mut expected, mut found) = (vec![0.0; columns], vec![0.0; columns]);
                encoding.decode(bytes, &mut expected);
                panels.row(i, &mut found);
                for (a, b) in expected.iter().zip(&found) {
                    // A scale that is not finite has no values: only a damaged file has one.
                    prop_assert!(a == b || !a.is_finite(), "{encoding:?}: {a} {b}");
                }
            }
        }
    }
}
