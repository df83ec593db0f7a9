//! The kernels with AVX2: products of nibbles and bytes in pairs, which do not overflow 16 bits within a
//! block. Bytes are taken as two nibbles.
#![allow(clippy::needless_range_loop, reason = "one index for several arrays, unrolled")]

use std::arch::x86_64::*;

use fearless_simd::{Avx2, f32x8, prelude::*, u8x32, u16x8};

use super::{
    super::{
        linear::Out,
        panels::{Bytes, Line, Nibbles, Panels, ROWS, Scale, Scales},
    },
    HALF_START, Integers, SCALE, START, SUM, Sums, Words, word,
};

/// Rows of a vector: half a panel.
const SIDE: usize = ROWS / 2;

fearless_simd::kernel!(
    pub(super) fn run(token: Avx2, job: Integers<'_>, out: &mut [Out<'_>]) -> () {
        all(token, job, out);
    }
);

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn all(token: Avx2, job: Integers<'_>, out: &mut [Out<'_>]) {
    macro_rules! tiles {
        ($blocks:expr, $tile:ident) => {
            job.tiles(
                $blocks,
                out,
                |blocks, x| pairs(x, |x| $tile(token, blocks, x)),
                |blocks, x| pairs(x, |x| $tile(token, blocks, x)),
                (|blocks, x| $tile(token, blocks, x), |blocks, x| $tile(token, blocks, x)),
            )
        };
    }
    match job.panels {
        Panels::Nibbles(v) => tiles!(v, nibbles),
        Panels::FineNibbles(v) => tiles!(v, nibbles),
        Panels::Bytes(v) => tiles!(v, bytes),
        Panels::FineBytes(v) => tiles!(v, bytes),
    }
}

/// There are registers for two tokens at a time.
#[inline(always)]
fn pairs<'x, const T: usize>(
    x: [&'x [Words]; T],
    two: impl Fn([&'x [Words]; 2]) -> [Sums; 2],
) -> [Sums; T] {
    let mut out = [[0.0; ROWS]; T];
    for (out, x) in out.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0) {
        *out = two(*x);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn line(token: Avx2, line: &Line, side: usize) -> __m256i {
    let bytes: u8x32<Avx2> = line.as_chunks::<32>().0[side].simd_into(token);
    bytes.into()
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales<S: Scale>(token: Avx2, scales: &[S; ROWS], side: usize) -> __m256 {
    match S::view(scales) {
        Scales::Half(halves) => {
            let halves: u16x8<Avx2> = halves.as_chunks::<SIDE>().0[side].simd_into(token);
            _mm256_cvtph_ps(halves.into())
        }
        Scales::Single(floats) => {
            let floats: f32x8<Avx2> = floats.as_chunks::<SIDE>().0[side].simd_into(token);
            floats.into()
        }
    }
}

/// A word of a token in all lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn each(words: &Words, at: usize) -> __m256i {
    _mm256_set1_epi32(word(words, at))
}

/// Pairs of 16 bits and the products of a line's nibbles with a word's bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(pairs: __m256i, nibbles: __m256i, word: __m256i) -> __m256i {
    _mm256_add_epi16(pairs, _mm256_maddubs_epi16(nibbles, word))
}

/// The rows' sums of pairs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn whole(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn put(token: Avx2, vector: __m256, sums: &mut Sums, side: usize) {
    let floats: f32x8<Avx2> = vector.simd_into(token);
    sums.as_chunks_mut::<SIDE>().0[side] = floats.into();
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles<S: Scale, const T: usize>(
    token: Avx2,
    blocks: &[Nibbles<S>],
    x: [&[Words]; T],
) -> [Sums; T] {
    let mask = _mm256_set1_epi8(15);
    let mut out = [[0.0; ROWS]; T];
    let mut inputs = x;
    for input in &mut inputs {
        *input = &input[..blocks.len()];
    }
    let x = inputs;
    for side in 0..2 {
        let mut floats = [_mm256_setzero_ps(); T];
        for (b, block) in blocks.iter().enumerate() {
            let mut products = [_mm256_setzero_si256(); T];
            for i in 0..4 {
                let both = line(token, &block.lines[i], side);
                let low = _mm256_and_si256(both, mask);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
                for t in 0..T {
                    products[t] = add(products[t], low, each(&x[t][b], i));
                    products[t] = add(products[t], high, each(&x[t][b], i + 4));
                }
            }
            let scale = scales(token, &block.scales, side);
            let least = scales(token, &block.least, side);
            for t in 0..T {
                let words = &x[t][b];
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(words[SCALE]));
                let product = _mm256_cvtepi32_ps(whole(products[t]));
                floats[t] = _mm256_fmadd_ps(product, scale, floats[t]);
                floats[t] = _mm256_fmadd_ps(least, _mm256_set1_ps(words[SUM]), floats[t]);
            }
        }
        for t in 0..T {
            put(token, floats[t], &mut out[t], side);
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes<S: Scale, const K: usize, const T: usize>(
    token: Avx2,
    blocks: &[Bytes<S, K>],
    x: [&[Words]; T],
) -> [Sums; T] {
    let mask = _mm256_set1_epi8(15);
    let mut out = [[0.0; ROWS]; T];
    let mut inputs = x;
    for input in &mut inputs {
        *input = &input[..blocks.len()];
    }
    let x = inputs;
    for side in 0..2 {
        let mut floats = [_mm256_setzero_ps(); T];
        for (b, block) in blocks.iter().enumerate() {
            for k in 0..K {
                let (mut lows, mut highs) =
                    ([_mm256_setzero_si256(); T], [_mm256_setzero_si256(); T]);
                for i in k * 8 / K..(k + 1) * 8 / K {
                    let bytes = line(token, &block.lines[i], side);
                    let low = _mm256_and_si256(bytes, mask);
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
                    for t in 0..T {
                        let word = each(&x[t][b], i);
                        lows[t] = add(lows[t], low, word);
                        highs[t] = add(highs[t], high, word);
                    }
                }
                let scale = scales(token, &block.scales[k], side);
                for t in 0..T {
                    let words = &x[t][b];
                    let (all, first) = (each(words, START), each(words, HALF_START));
                    let start = match (K, k) {
                        (1, _) => all,
                        (_, 0) => first,
                        _ => _mm256_sub_epi32(all, first),
                    };
                    let high = _mm256_slli_epi32::<4>(whole(highs[t]));
                    let sum = _mm256_add_epi32(start, _mm256_add_epi32(whole(lows[t]), high));
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(words[SCALE]));
                    floats[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, floats[t]);
                }
            }
        }
        for t in 0..T {
            put(token, floats[t], &mut out[t], side);
        }
    }
    out
}
