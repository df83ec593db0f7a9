//! How a matrix is stored: bits of an element, scales, zero points; and what that comes to.

use super::geometry::Dtype;

/// Where the scales of a quantised matrix are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// None.
    None,
    /// One for the matrix.
    Tensor {
        /// Bytes of one scale.
        bytes: u64,
    },
    /// One a row (output channel).
    Row {
        /// Bytes of one scale.
        bytes: u64,
    },
    /// One for `size` neighbours of a row; a rest counts as a whole group.
    Group {
        /// Elements.
        size: u64,
        /// Bytes of one scale.
        bytes: u64,
    },
    /// One for a tile; rests count as whole tiles.
    Block {
        /// Rows of a tile.
        rows: u64,
        /// Columns of a tile.
        cols: u64,
        /// Bytes of one scale.
        bytes: u64,
    },
}

/// Storage of one kind of matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Storage {
    /// Name as printed.
    pub name: &'static str,
    /// Bits of one element.
    pub bits: u64,
    /// Its scales.
    pub scales: Scales,
    /// Bits of the zero point that goes with each scale; 0 for none.
    pub zero_bits: u64,
}

impl Storage {
    /// Unquantised.
    #[must_use]
    pub const fn plain(dtype: Dtype) -> Self {
        let name = match dtype {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::Fp8E4m3 => "fp8_e4m3",
            Dtype::Fp8E5m2 => "fp8_e5m2",
            Dtype::I8 => "int8",
        };
        Self { name, bits: dtype.size() * 8, scales: Scales::None, zero_bits: 0 }
    }

    /// FP8 with one float32 scale for the matrix.
    pub const FP8_TENSOR: Self =
        Self { name: "fp8", bits: 8, scales: Scales::Tensor { bytes: 4 }, zero_bits: 0 };

    /// FP8 with one float32 scale a row.
    pub const FP8_ROW: Self =
        Self { name: "fp8 per channel", bits: 8, scales: Scales::Row { bytes: 4 }, zero_bits: 0 };

    /// INT8 with one float32 scale a row.
    pub const INT8_ROW: Self =
        Self { name: "int8", bits: 8, scales: Scales::Row { bytes: 4 }, zero_bits: 0 };

    /// OCP MXFP4: 32 elements share one byte of exponent.
    pub const MXFP4: Self =
        Self { name: "mxfp4", bits: 4, scales: Scales::Group { size: 32, bytes: 1 }, zero_bits: 0 };

    /// OCP MXFP8.
    pub const MXFP8: Self =
        Self { name: "mxfp8", bits: 8, scales: Scales::Group { size: 32, bytes: 1 }, zero_bits: 0 };

    /// NVFP4: 16 elements share one FP8 scale (and the matrix a float32, not counted).
    pub const NVFP4: Self =
        Self { name: "nvfp4", bits: 4, scales: Scales::Group { size: 16, bytes: 1 }, zero_bits: 0 };

    /// bitsandbytes 4 bit: 64 elements share one float32 once loaded.
    pub const BNB4: Self = Self {
        name: "bitsandbytes 4 bit",
        bits: 4,
        scales: Scales::Group { size: 64, bytes: 4 },
        zero_bits: 0,
    };

    /// FP8 in tiles with a float32 scale each.
    #[must_use]
    pub const fn fp8_block(rows: u64, cols: u64) -> Self {
        let scales = Scales::Block { rows, cols, bytes: 4 };
        Self { name: "fp8 block", bits: 8, scales, zero_bits: 0 }
    }

    /// Integers of `bits` with a 16-bit scale for `group` elements (0: a row) and, when
    /// `zero_bits` is not 0, a zero point for each.
    #[must_use]
    pub const fn int_group(bits: u64, group: u64, zero_bits: u64) -> Self {
        let name = match bits {
            2 => "int2 group",
            3 => "int3 group",
            4 => "int4 group",
            8 => "int8 group",
            _ => "int group",
        };
        let scales = match group {
            0 => Scales::Row { bytes: 2 },
            size => Scales::Group { size, bytes: 2 },
        };
        Self { name, bits, scales, zero_bits }
    }

    /// Bytes of a matrix of `rows` outputs and `cols` inputs: elements, scales and zero points,
    /// elements rounded up to a whole byte.
    #[must_use]
    pub fn bytes(&self, rows: u64, cols: u64) -> u128 {
        let (wide_rows, wide_cols) = (u128::from(rows), u128::from(cols));
        let (count, each) = match self.scales {
            Scales::None => (0, 0),
            Scales::Tensor { bytes } => (1, bytes),
            Scales::Row { bytes } => (wide_rows, bytes),
            Scales::Group { size, bytes } => {
                (wide_rows * u128::from(cols.div_ceil(size.max(1))), bytes)
            }
            Scales::Block { rows: r, cols: c, bytes } => {
                let tiles =
                    u128::from(rows.div_ceil(r.max(1))) * u128::from(cols.div_ceil(c.max(1)));
                (tiles, bytes)
            }
        };
        let elements = (wide_rows * wide_cols * u128::from(self.bits)).div_ceil(8);
        elements + count * u128::from(each) + (count * u128::from(self.zero_bits)).div_ceil(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_by_hand() {
        assert_eq!(Storage::plain(Dtype::Bf16).bytes(3, 5), 30);
        // 129 x 257 tiles of 128: 2 x 3 scales.
        assert_eq!(Storage::fp8_block(128, 128).bytes(129, 257), 129 * 257 + 6 * 4);
        assert_eq!(Storage::int_group(4, 128, 4).bytes(8, 256), 8 * 128 + 16 * 2 + 8);
        assert_eq!(Storage::MXFP4.bytes(2, 64), 64 + 4);
        assert_eq!(Storage::NVFP4.bytes(2, 64), 64 + 8);
        assert_eq!(Storage::BNB4.bytes(1, 64), 32 + 4);
        assert_eq!(Storage::FP8_ROW.bytes(4, 4), 16 + 16);
    }
}
