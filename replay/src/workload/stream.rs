//! Named streams of random numbers: the same on every platform, and each independent of all others.
//!
//! A stream's key is a hash of the scenario's seed, the group's name and the purpose, so that adding a
//! group or a draw for another purpose moves nothing. The transforms use integers, IEEE operations that
//! round correctly everywhere (add, multiply, divide, square root), and the `libm` crate in pure Rust for
//! `log` and `exp`: the platform's own library may differ in the last bit.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng as _, SeedableRng as _},
};
use sha2::{Digest as _, Sha256};

/// A stream of random numbers for one purpose of one group.
#[derive(Clone, Debug)]
pub struct Stream {
    rng: ChaCha8Rng,
    /// The second normal number of a pair.
    spare: Option<f64>,
}

impl Stream {
    /// The stream of a scenario's seed, a group's name and a purpose.
    #[must_use]
    pub fn named(seed: u64, group: &str, purpose: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"plimsoll.workload/1");
        hash.update(seed.to_le_bytes());
        for text in [group, purpose] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        Self { rng: ChaCha8Rng::from_seed(hash.finalize().into()), spare: None }
    }

    /// A number below `n`, each equally likely; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        // Numbers under 2^64 mod n are drawn again, so that every remainder has as many.
        let reject = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.rng.next_u64()) * u128::from(n);
            if wide as u64 >= reject {
                return (wide >> 64) as u64;
            }
        }
    }

    /// A number between 0 and 1, neither of them: the middle of one of 2^52 equal parts.
    pub fn unit(&mut self) -> f64 {
        const PART: f64 = 1.0 / (1_u64 << 52) as f64;
        ((self.rng.next_u64() >> 12) as f64 + 0.5) * PART
    }

    /// A normal number of mean 0 and deviation 1, by Marsaglia's polar method (SIAM Review 6, 1964).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let scale = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }

    /// An exponential number of mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }

    /// A gamma number of this shape and scale 1, by Marsaglia and Tsang (ACM TOMS 26, 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::exp(libm::log(self.unit()) / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(n: u32, mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..n).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let square = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / f64::from(n);
        (mean, square)
    }

    #[test]
    fn streams_have_the_moments_of_their_laws() {
        let mut stream = Stream::named(1, "group", "test");
        let near = |(mean, square): (f64, f64), m: f64, v: f64| {
            assert!((mean - m).abs() < 0.02 * m.abs().max(1.0), "mean {mean}, not {m}");
            assert!((square - v).abs() < 0.05 * v, "variance {square}, not {v}");
        };
        near(mean(100_000, || stream.normal()), 0.0, 1.0);
        near(mean(100_000, || stream.exponential()), 1.0, 1.0);
        near(mean(100_000, || stream.gamma(4.0)), 4.0, 4.0);
        near(mean(100_000, || stream.gamma(0.5)), 0.5, 0.5);
        near(mean(100_000, || stream.below(6) as f64), 2.5, 35.0 / 12.0);
    }

    #[test]
    fn a_stream_depends_on_all_three_parts_and_on_nothing_else() {
        let first = |seed, group, purpose| Stream::named(seed, group, purpose).below(u64::MAX);
        let base = first(1, "a", "b");
        assert_eq!(base, first(1, "a", "b"));
        for other in
            [first(2, "a", "b"), first(1, "ab", ""), first(1, "", "ab"), first(1, "a", "c")]
        {
            assert_ne!(base, other);
        }
    }

    /// Bits that a change of method, of key or of a library would move.
    #[test]
    fn the_numbers_are_frozen() {
        let mut stream = Stream::named(1, "group", "frozen");
        let bits = [
            stream.below(1 << 40),
            stream.unit().to_bits(),
            stream.normal().to_bits(),
            stream.exponential().to_bits(),
            stream.gamma(2.5).to_bits(),
            stream.gamma(0.25).to_bits(),
        ];
        let frozen = [
            1_040_085_163_129,
            4_599_942_808_065_562_866,
            13_814_162_247_933_888_738,
            4_607_358_224_891_541_390,
            4_616_447_274_340_236_610,
            4_585_468_809_110_342_765,
        ];
        assert_eq!(bits, frozen);
    }
}
