//! The kernels with AVX-512 and its dot products of bytes.
#![allow(clippy::needless_range_loop, reason = "one index for several arrays, unrolled")]

use std::arch::x86_64::*;

use fearless_simd::{Avx512, f32x16, prelude::*, u8x64, u16x16};

use super::{
    super::{
        linear::Out,
        panels::{Bytes, Line, Nibbles, Panels, ROWS, Scale, Scales},
    },
    HALF_START, Integers, SCALE, START, SUM, Sums, Words, word,
};

fearless_simd::kernel!(
    pub(super) fn run(token: Avx512, job: Integers<'_>, out: &mut [Out<'_>]) -> () {
        all(token, job, out);
    }
);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn all(token: Avx512, job: Integers<'_>, out: &mut [Out<'_>]) {
    macro_rules! tiles {
        ($blocks:expr, $tile:ident) => {
            job.tiles(
                $blocks,
                out,
                |blocks, x| $tile(token, blocks, x),
                |blocks, x| $tile(token, blocks, x),
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn line(token: Avx512, line: &Line) -> __m512i {
    let bytes: u8x64<Avx512> = (*line).simd_into(token);
    bytes.into()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn scales<S: Scale>(token: Avx512, scales: &[S; ROWS]) -> __m512 {
    match S::view(scales) {
        Scales::Half(halves) => {
            let halves: u16x16<Avx512> = (*halves).simd_into(token);
            _mm512_cvtph_ps(halves.into())
        }
        Scales::Single(floats) => {
            let floats: f32x16<Avx512> = (*floats).simd_into(token);
            floats.into()
        }
    }
}

/// A word of a token in all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn each(words: &Words, at: usize) -> __m512i {
    _mm512_set1_epi32(word(words, at))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn sums<const T: usize>(token: Avx512, vectors: [__m512; T]) -> [Sums; T] {
    let mut out = [[0.0; ROWS]; T];
    for t in 0..T {
        let floats: f32x16<Avx512> = vectors[t].simd_into(token);
        out[t] = floats.into();
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn nibbles<S: Scale, const T: usize>(
    token: Avx512,
    blocks: &[Nibbles<S>],
    x: [&[Words]; T],
) -> [Sums; T] {
    let mask = _mm512_set1_epi8(15);
    let mut out = [_mm512_setzero_ps(); T];
    let mut inputs = x;
    for input in &mut inputs {
        *input = &input[..blocks.len()];
    }
    let x = inputs;
    for (b, block) in blocks.iter().enumerate() {
        let mut products = [_mm512_setzero_si512(); T];
        for i in 0..4 {
            let both = line(token, &block.lines[i]);
            let low = _mm512_and_si512(both, mask);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
            for t in 0..T {
                let words = &x[t][b];
                products[t] = _mm512_dpbusd_epi32(products[t], low, each(words, i));
                products[t] = _mm512_dpbusd_epi32(products[t], high, each(words, i + 4));
            }
        }
        let (scale, least) = (scales(token, &block.scales), scales(token, &block.least));
        for t in 0..T {
            let words = &x[t][b];
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(words[SCALE]));
            out[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t]), scale, out[t]);
            out[t] = _mm512_fmadd_ps(least, _mm512_set1_ps(words[SUM]), out[t]);
        }
    }
    sums(token, out)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
fn bytes<S: Scale, const K: usize, const T: usize>(
    token: Avx512,
    blocks: &[Bytes<S, K>],
    x: [&[Words]; T],
) -> [Sums; T] {
    let mut out = [_mm512_setzero_ps(); T];
    let mut inputs = x;
    for input in &mut inputs {
        *input = &input[..blocks.len()];
    }
    let x = inputs;
    for (b, block) in blocks.iter().enumerate() {
        for k in 0..K {
            let mut products = [_mm512_setzero_si512(); T];
            for t in 0..T {
                let words = &x[t][b];
                let (all, first) = (each(words, START), each(words, HALF_START));
                products[t] = match (K, k) {
                    (1, _) => all,
                    (_, 0) => first,
                    _ => _mm512_sub_epi32(all, first),
                };
            }
            for i in k * 8 / K..(k + 1) * 8 / K {
                let bytes = line(token, &block.lines[i]);
                for t in 0..T {
                    products[t] = _mm512_dpbusd_epi32(products[t], bytes, each(&x[t][b], i));
                }
            }
            let scale = scales(token, &block.scales[k]);
            for t in 0..T {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x[t][b][SCALE]));
                out[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t]), scale, out[t]);
            }
        }
    }
    sums(token, out)
}
