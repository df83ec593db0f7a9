//! How the elements of a tensor are stored, and what they are as float32: plain floats and ggml's
//! blocks, decoded value by value as ggml does.
//!
//! Source of the block layouts: ggml `ggml-common.h` and `ggml-quants.c` (`dequantize_row_*`).

/// Storage of the elements of a matrix's row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Encoding {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 signed bytes and a scale.
    Q8_0,
    /// 32 nibbles around 8 and a scale.
    Q4_0,
    /// 32 nibbles, a scale and a minimum.
    Q4_1,
    /// 256 nibbles; a 6-bit scale and minimum for each 32.
    Q4K,
    /// 256 values of 6 bits; a signed scale for each 16.
    Q6K,
}

/// Elements that are decoded at a time; every block is a multiple of it.
pub const GROUP: usize = 32;

/// All encodings.
pub const ENCODINGS: [Encoding; 8] = [
    Encoding::F32,
    Encoding::F16,
    Encoding::Bf16,
    Encoding::Q8_0,
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q4K,
    Encoding::Q6K,
];

impl Encoding {
    /// Name in GGUF and safetensors headers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// The encoding of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ENCODINGS.into_iter().find(|e| e.name() == name)
    }

    /// Elements of a block, and its bytes.
    #[must_use]
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of a row of `columns`; `None` when it does not end at the end of a block or is too long.
    #[must_use]
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let (elements, bytes) = self.block();
        if columns.is_multiple_of(elements) {
            (columns / elements).checked_mul(bytes)
        } else {
            None
        }
    }

    /// Decodes a whole number of blocks. What has no partner in the other slice is left as it is.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
            Self::Bf16 => each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
            Self::Q8_0 => blocks(bytes, out, |b: &[u8; 34], _, to| q8_0(b, to)),
            Self::Q4_0 => blocks(bytes, out, |b: &[u8; 18], _, to| q4_0(b, to)),
            Self::Q4_1 => blocks(bytes, out, |b: &[u8; 20], _, to| q4_1(b, to)),
            Self::Q4K => blocks(bytes, out, q4_k),
            Self::Q6K => blocks(bytes, out, q6_k),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (to, from) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = value(*from);
    }
}

/// Blocks of `N` bytes, each decoded in groups of 32 elements.
fn blocks<const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    group: impl Fn(&[u8; N], usize, &mut [f32; GROUP]),
) {
    let groups = out.as_chunks_mut::<GROUP>().0;
    let blocks = bytes.as_chunks::<N>().0;
    let each = if N > 100 { 8 } else { 1 };
    for (to, block) in groups.chunks_mut(each).zip(blocks) {
        for (index, to) in to.iter_mut().enumerate() {
            group(block, index, to);
        }
    }
}

#[inline(always)]
fn half_at<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// A Q8_0 block.
#[inline(always)]
pub fn q8_0(block: &[u8; 34], out: &mut [f32; GROUP]) {
    let scale = half_at(block, 0);
    for (i, to) in out.iter_mut().enumerate() {
        *to = f32::from(block[2 + i] as i8) * scale;
    }
}

/// A Q4_0 block.
#[inline(always)]
pub fn q4_0(block: &[u8; 18], out: &mut [f32; GROUP]) {
    let scale = half_at(block, 0);
    for i in 0..16 {
        let byte = block[2 + i];
        out[i] = f32::from((byte & 15) as i8 - 8) * scale;
        out[16 + i] = f32::from((byte >> 4) as i8 - 8) * scale;
    }
}

/// A Q4_1 block.
#[inline(always)]
pub fn q4_1(block: &[u8; 20], out: &mut [f32; GROUP]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    for i in 0..16 {
        let byte = block[4 + i];
        out[i] = f32::from(byte & 15) * scale + least;
        out[16 + i] = f32::from(byte >> 4) * scale + least;
    }
}

/// Group `group` (of 8) of a Q4_K block: its half scales, 12 bytes of 6-bit scales and minima, nibbles.
#[inline(always)]
pub fn q4_k(block: &[u8; 144], group: usize, out: &mut [f32; GROUP]) {
    let group = group & 7;
    let packed = |i: usize| block[4 + i];
    let (scale, least) = if group < 4 {
        (packed(group) & 63, packed(group + 4) & 63)
    } else {
        let low = packed(group + 4);
        let (a, b) = (packed(group - 4) >> 6, packed(group) >> 6);
        ((low & 15) | (a << 4), (low >> 4) | (b << 4))
    };
    let scale = half_at(block, 0) * f32::from(scale);
    let least = half_at(block, 2) * f32::from(least);
    let from = 16 + (group / 2) * 32;
    let shift = (group & 1) * 4;
    for (i, to) in out.iter_mut().enumerate() {
        *to = scale * f32::from((block[from + i] >> shift) & 15) - least;
    }
}

/// Group `group` (of 8) of a Q6_K block: low nibbles, high pairs of bits, 16 signed scales, a half scale.
#[inline(always)]
pub fn q6_k(block: &[u8; 210], group: usize, out: &mut [f32; GROUP]) {
    let group = group & 7;
    let scale = half_at(block, 208);
    // Halves of 128 elements; within one, four groups of 32 share 64 low bytes and 32 high ones.
    let (half, part) = (group / 4, group & 3);
    let low = half * 64 + (part & 1) * 32;
    let low_shift = (part / 2) * 4;
    let high = 128 + half * 32;
    for (i, to) in out.iter_mut().enumerate() {
        let nibble = (block[low + i] >> low_shift) & 15;
        let bits = (block[high + i] >> (part * 2)) & 3;
        let value = (nibble | (bits << 4)) as i8 - 32;
        let own = block[192 + half * 8 + part * 2 + i / 16] as i8;
        *to = scale * f32::from(own) * f32::from(value);
    }
}

/// bfloat16 is the upper half of a float32.
#[inline(always)]
#[must_use]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest bfloat16, ties to even; not-a-number stays one.
#[inline(always)]
#[must_use]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 64;
    }
    let odd = (bits >> 16) & 1;
    (bits.wrapping_add(0x7fff + odd) >> 16) as u16
}

/// The nearest 16-bit float, ties to even; beyond ±65504 the largest of that sign. What is no number
/// stays none.
#[inline(always)]
#[must_use]
pub const fn f32_to_f16(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // 65520 is the first that would round to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7bff };
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: added to 0.5, whose last bit is worth 2^-24, which is that of a subnormal half.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rounded = magnitude + 0xfff + odd - (112 << 23);
    sign | (rounded >> 13) as u16
}

/// A 16-bit float, exactly. No branch: it stands in the innermost loops.
#[inline(always)]
#[must_use]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = (bits & 0x7fff) as u32;
    // The exponent's bias is 15 there and 127 here: times 2^112. Subnormals come out exact too.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = 0x7f80_0000 | (magnitude << 13);
    let value = if magnitude < 0x7c00 { scaled.to_bits() } else { special };
    f32::from_bits(sign | value)
}

/// The nearest float8 of 4 exponent and 3 mantissa bits (the even one of two); beyond ±448 the largest of
/// that sign.
///
/// Source: the OCP's 8-bit floating point specification, E4M3: bias 7, no infinities, one NaN a sign.
#[must_use]
pub const fn f32_to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let size = value.abs();
    if size >= E4M3_MAX {
        return sign | 0x7e;
    }
    // Subnormals are multiples of 2^-9: adding 2^14 rounds to one, in float32's own way.
    if size < 0.015_625 {
        let rounded = size + 16384.0;
        return sign | (rounded.to_bits() - 16384.0_f32.to_bits()) as u8;
    }
    let bits = size.to_bits();
    let rounded = bits + 0x0007_ffff + (bits >> 20 & 1);
    let small = (rounded >> 20) - (120 << 3);
    sign | if small > 0x7e { 0x7e } else { small as u8 }
}

/// Largest float8 of 4 exponent and 3 mantissa bits.
const E4M3_MAX: f32 = 448.0;

/// A float8 of 4 exponent and 3 mantissa bits, exactly.
#[must_use]
pub const fn e4m3_to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = ((bits >> 3 & 15) as u32, (bits & 7) as u32);
    let size = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_blocks() {
        for encoding in ENCODINGS {
            assert_eq!(Encoding::named(encoding.name()), Some(encoding));
        }
        assert_eq!(Encoding::Q4_1.row_bytes(576), Some(360));
        assert_eq!(Encoding::Q4K.row_bytes(576), None);
    }

    #[test]
    fn halves_by_hand() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x0400, 6.103_515_6e-5),
            (0x8000, -0.0),
        ] {
            assert_eq!(f16_to_f32(bits).to_bits(), f32::to_bits(value));
        }
        assert!(f16_to_f32(0x7c00).is_infinite() && f16_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn halves_come_back_and_round_to_the_nearest_even() {
        for bits in (0..0x7c00_u16).chain(0x8000..0xfc00) {
            assert_eq!(f32_to_f16(f16_to_f32(bits)), bits);
            // Half way to the next in magnitude, and a bit to each side.
            let (a, b) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            if b.is_finite() {
                let middle = f32::midpoint(a, b).to_bits();
                assert_eq!(f32_to_f16(f32::from_bits(middle)), bits + (bits & 1));
                assert_eq!(f32_to_f16(f32::from_bits(middle - 1)), bits);
                assert_eq!(f32_to_f16(f32::from_bits(middle + 1)), bits + 1);
            }
        }
        assert_eq!([65519.9, 65520.0, 1e30, f32::INFINITY].map(f32_to_f16), [0x7bff; 4]);
        assert_eq!(f32_to_f16(-1e9), 0xfbff);
        assert!(f16_to_f32(f32_to_f16(f32::NAN)).is_nan());
    }

    #[test]
    fn bfloat16_rounds_to_the_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn float8_to_the_nearest() {
        assert_eq!(
            [0x00, 0x01, 0x08, 0x38, 0x7e].map(e4m3_to_f32),
            [0.0, 0.001_953_125, 0.015_625, 1.0, 448.0]
        );
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(f32_to_e4m3(f32::NAN)).is_nan());
        for bits in 0..0x7e_u8 {
            let (a, b) = (e4m3_to_f32(bits), e4m3_to_f32(bits + 1));
            assert_eq!((f32_to_e4m3(a), f32_to_e4m3(-a)), (bits, bits | 0x80));
            let middle = f32::midpoint(a, b);
            assert_eq!(f32_to_e4m3(middle), bits + (bits & 1), "{bits}");
            assert_eq!(f32_to_e4m3(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(f32_to_e4m3(f32::from_bits(middle.to_bits() + 1)), bits + 1);
        }
        assert_eq!([448.0, 463.0, 500.0, 1e30, f32::INFINITY].map(f32_to_e4m3), [0x7e; 5]);
    }
}
