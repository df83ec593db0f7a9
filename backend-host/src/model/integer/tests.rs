//! All kernels that this processor has against sums that are worked out here from the file's values.

use fearless_simd::Level;
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{Effect, Extent, Matrix},
};
use proptest::prelude::*;

use super::{
    super::{
        held::{Held, Keep, Values},
        linear::{Processor, Stored},
    },
    *,
};

const ENCODINGS: [Encoding; 5] =
    [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0, Encoding::Q4K, Encoding::Q6K];

/// Bytes of a matrix whose scales are halves near 0.02.
fn matrix(encoding: Encoding, rows: usize, columns: usize, noise: &[u8]) -> Matrix {
    let (elements, size) = encoding.block();
    let blocks = rows * columns / elements;
    let mut bytes: Vec<u8> = noise.iter().copied().cycle().take(blocks * size).collect();
    for block in bytes.chunks_mut(size) {
        let halves: &[usize] = match encoding {
            Encoding::Q4_1 | Encoding::Q4K => &[0, 2],
            Encoding::Q6K => &[208],
            _ => &[0],
        };
        for at in halves {
            block[at + 1] = block[at + 1] & 0x80 | 0x25;
        }
    }
    Matrix { extent: Extent { rows: rows as u64, columns: columns as u64 }, encoding, bytes }
}

type Kernel = fn(Integers<'_>, &mut [Out<'_>]);

fn kernels() -> Vec<(&'static str, Kernel)> {
    let mut out: Vec<(&'static str, Kernel)> = vec![("plain", |job, out| plain::run(job, out))];
    #[cfg(target_arch = "x86_64")]
    {
        if Level::new().as_avx2().is_some() {
            out.push(("AVX2", |job, out| avx2::run(Level::new().as_avx2().unwrap(), job, out)));
        }
        if Level::new().as_avx512().is_some() {
            let run: Kernel = |job, out| avx512::run(Level::new().as_avx512().unwrap(), job, out);
            out.push(("AVX-512", run));
        }
    }
    out
}

fn products(kernel: Kernel, held: &Held, x: &[f32], tokens: usize) -> Vec<f32> {
    let Values::Panels(panels) = &held.values else { panic!("not packed") };
    let mut out = vec![f32::NAN; tokens * held.rows];
    let mut outs: Vec<Out<'_>> = out.chunks_mut(held.rows).collect();
    let stored = Stored { bias: None, effect: Effect::Store };
    let rows = &(0..held.rows);
    kernel(Integers { panels, columns: held.columns, rows, x, stored }, &mut outs);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn kernels_agree_to_the_bit_and_are_right(
        encoding in 0..ENCODINGS.len(),
        (rows, blocks, tokens) in (1_usize..40, 1_usize..4, 1_usize..17),
        noise in prop::collection::vec(any::<u8>(), 997),
        inputs in prop::collection::vec(-3.0_f32..3.0, 1013),
    ) {
        let encoding = ENCODINGS[encoding];
        let columns = blocks * encoding.block().0;
        let matrix = matrix(encoding, rows, columns, &noise);
        let held = Held::new(&matrix, Keep::Int8);
        let x: Vec<f32> = inputs.iter().copied().cycle().take(tokens * columns).collect();
        let mut rounded = vec![0.0; tokens * columns / BLOCK * WORDS];
        round(Processor::new(Level::new()), &x, &mut rounded);
        let first = products(kernels()[0].1, &held, &rounded, tokens);
        for (name, kernel) in kernels() {
            let found = products(kernel, &held, &rounded, tokens);
            let same = found.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert!(same, "{name}, {encoding:?}");
        }
        let mut weights = vec![0.0; columns];
        for row in 0..rows {
            held.row(row, &mut weights);
            for token in 0..tokens {
                let x = &x[token * columns..(token + 1) * columns];
                let exact: f64 = x.iter().zip(&weights).map(|(a, b)| f64::from(a * b)).sum();
                // Half a step of the input's rounding at each weight.
                let steps = x.chunks(BLOCK).zip(weights.chunks(BLOCK)).map(|(x, weights)| {
                    let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    most / 254.0 * weights.iter().map(|w| w.abs()).sum::<f32>()
                });
                let allowed = f64::from(steps.sum::<f32>()) * 1.001 + 1e-4;
                let apart = (f64::from(first[token * rows + row]) - exact).abs();
                prop_assert!(apart <= allowed, "{encoding:?}: {apart}, allowed {allowed}");
            }
        }
    }
}

#[test]
fn rounding_by_hand() {
    let mut x = [0.0; BLOCK];
    (x[0], x[5], x[20]) = (-2.0, 1.0, 0.5);
    let mut words = [f32::NAN; WORDS];
    round(Processor::new(Level::new()), &x, &mut words);
    assert_eq!(word(&words, 0).to_le_bytes(), [129, 0, 0, 0]);
    // 63.5 and 31.75: ties go to the even neighbour.
    assert_eq!(word(&words, 1).to_le_bytes(), [0, 64, 0, 0]);
    assert_eq!(word(&words, 5).to_le_bytes(), [32, 0, 0, 0]);
    assert_eq!(words[SCALE], 2.0 / 127.0);
    assert_eq!(words[SUM], 2.0 / 127.0 * -31.0);
    assert_eq!((word(&words, START), word(&words, HALF_START)), (128 * 31, 128 * 63));
    round(Processor::new(Level::new()), &[0.0; BLOCK], &mut words);
    assert_eq!(words.map(f32::to_bits), [0; WORDS]);
}
