//! Weights as they are held in RAM.

use plimsoll_core::{
    model::encoding::{Encoding, bf16_to_f32, f32_to_bf16},
    tape::own::{Matrix, Workspace},
};

use super::{
    integer::WORDS,
    panels::{BLOCK, Panels},
};

/// How matrices are kept; vectors are float32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// As stored: float32, bfloat16 and ggml's blocks; float16 becomes float32, of the same values.
    AsStored,
    /// float32: the same values in more memory.
    F32,
    /// bfloat16: half of that, rounded.
    Bf16,
    /// ggml's blocks in another order, for products of integers: what a projection reads is rounded to 8
    /// bits, with a scale for each 32 values. Other matrices as stored.
    Int8,
}

impl Keep {
    /// Name, as in the flag `--precision`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsStored => "float32",
            Self::F32 => "float32-unpacked",
            Self::Bf16 => "bfloat16",
            Self::Int8 => "int8",
        }
    }

    /// What a projection needs beside its output.
    #[must_use]
    pub const fn workspace(self) -> Workspace {
        match self {
            Self::Int8 => Workspace::Input { of: BLOCK as u64, values: WORDS as u64 },
            Self::AsStored | Self::F32 | Self::Bf16 => Workspace::None,
        }
    }
}

/// A matrix, rows one after the other.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Held {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Values,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Values {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Q8_0(Vec<[u8; 34]>),
    Q4_0(Vec<[u8; 18]>),
    Q4_1(Vec<[u8; 20]>),
    Q4K(Vec<[u8; 144]>),
    Q6K(Vec<[u8; 210]>),
    /// For products of integers.
    Panels(Panels),
}

fn blocks<const N: usize>(bytes: &[u8]) -> Vec<[u8; N]> {
    bytes.as_chunks::<N>().0.to_vec()
}

impl Held {
    pub(super) fn new(matrix: &Matrix, keep: Keep) -> Self {
        let (rows, columns) = (matrix.extent.rows as usize, matrix.extent.columns as usize);
        let bytes = &matrix.bytes;
        let floats = || {
            let mut out = vec![0.0; rows * columns];
            matrix.encoding.decode(bytes, &mut out);
            out
        };
        if keep == Keep::Int8
            && let Some(panels) = Panels::new(matrix.encoding, columns, bytes)
        {
            return Self { rows, columns, values: Values::Panels(panels) };
        }
        let values = match (keep, matrix.encoding) {
            (Keep::Bf16 | Keep::AsStored | Keep::Int8, Encoding::Bf16) => Values::Bf16(
                bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect(),
            ),
            (Keep::Bf16, _) => Values::Bf16(floats().into_iter().map(f32_to_bf16).collect()),
            (Keep::F32, _) | (_, Encoding::F32 | Encoding::F16) => Values::F32(floats()),
            (_, Encoding::Q8_0) => Values::Q8_0(blocks(bytes)),
            (_, Encoding::Q4_0) => Values::Q4_0(blocks(bytes)),
            (_, Encoding::Q4_1) => Values::Q4_1(blocks(bytes)),
            (_, Encoding::Q4K) => Values::Q4K(blocks(bytes)),
            (_, Encoding::Q6K) => Values::Q6K(blocks(bytes)),
        };
        Self { rows, columns, values }
    }

    /// Bytes of its values.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match &self.values {
            Values::F32(v) => size_of_val(v.as_slice()),
            Values::Bf16(v) => size_of_val(v.as_slice()),
            Values::Q8_0(v) => size_of_val(v.as_slice()),
            Values::Q4_0(v) => size_of_val(v.as_slice()),
            Values::Q4_1(v) => size_of_val(v.as_slice()),
            Values::Q4K(v) => size_of_val(v.as_slice()),
            Values::Q6K(v) => size_of_val(v.as_slice()),
            Values::Panels(panels) => panels.bytes(),
        };
        bytes as u64
    }

    /// One row as float32; `out` is as long as a row.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let columns = self.columns;
        let (start, end) = (row * columns, (row + 1) * columns);
        match &self.values {
            Values::F32(v) => out.copy_from_slice(&v[start..end]),
            Values::Bf16(v) => {
                for (to, from) in out.iter_mut().zip(&v[start..end]) {
                    *to = bf16_to_f32(*from);
                }
            }
            Values::Q8_0(v) => Encoding::Q8_0.decode(v[start / 32..end / 32].as_flattened(), out),
            Values::Q4_0(v) => Encoding::Q4_0.decode(v[start / 32..end / 32].as_flattened(), out),
            Values::Q4_1(v) => Encoding::Q4_1.decode(v[start / 32..end / 32].as_flattened(), out),
            Values::Q4K(v) => Encoding::Q4K.decode(v[start / 256..end / 256].as_flattened(), out),
            Values::Q6K(v) => Encoding::Q6K.decode(v[start / 256..end / 256].as_flattened(), out),
            Values::Panels(panels) => panels.row(row, out),
        }
    }
}
