//! How what is left moves with the fraction: a straight line, so its limits have a closed form.

use crate::{figure::Estimate, units::Bytes};

/// What is left after graph capture as a function of the fraction `f`:
/// `left(f) = base - f * scale - outside`.
///
/// SGLang: `base = scale =` free before loading, for the pool gets what is missing to `f * base`
/// whatever the weights are. vLLM: `base` is free at start, `scale` the total, for the fraction is of
/// the total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadLine {
    /// Free before anything that the fraction covers is taken.
    pub base: Estimate,
    /// What the fraction is a fraction of.
    pub scale: Estimate,
    /// Taken outside the fraction: request table, free lists, graphs, workspaces.
    pub outside: Estimate,
    /// What the fraction covers before the pool: weights, and for vLLM the profiled rest.
    pub covered: Estimate,
    /// What the heaviest step still needs when the server is ready.
    pub need: Estimate,
}

/// Fractions between which a start has a pool and survives its heaviest step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// Below it there is no pool: best value.
    pub floor: f64,
    /// Above it the heaviest step does not fit: best value.
    pub ceiling: f64,
    /// Ceiling when every uncertain figure falls the wrong way.
    pub ceiling_sure: f64,
    /// Floor when every uncertain figure falls the wrong way.
    pub floor_sure: f64,
}

impl Window {
    /// No fraction has a pool and survives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.floor >= self.ceiling
    }
}

impl LoadLine {
    /// What is left after graphs at fraction `f`, best value; negative when over the line.
    #[must_use]
    pub fn left_at(&self, f: f64) -> f64 {
        signed(self.base.mid) - f * signed(self.scale.mid) - signed(self.outside.mid)
    }

    /// What is left, with its interval: base and outside are independent of each other, so their
    /// half-widths add as squares; amounts below zero are cut off at zero.
    #[must_use]
    pub fn left_estimate(&self, f: f64) -> Estimate {
        // Base and scale are one reading where they are equal: they move together.
        let (base, scale) = if self.base == self.scale { (1.0 - f, 0.0) } else { (1.0, f) };
        let mid = self.left_at(f);
        let down =
            squares([base * below(self.base), scale * above(self.scale), above(self.outside)]);
        let up = squares([base * above(self.base), scale * below(self.scale), below(self.outside)]);
        let bytes = |left: f64| Bytes(left.round().max(0.0) as u64);
        Estimate::new(bytes(mid - down), bytes(mid), bytes(mid + up))
    }

    /// The feasible window.
    #[must_use]
    pub fn window(&self) -> Window {
        let fraction = |base: Bytes, scale: Bytes, taken: f64| {
            if scale == Bytes::ZERO { 0.0 } else { (signed(base) - taken) / signed(scale) }
        };
        let taken = |outside: Bytes, need: Bytes| signed(outside) + signed(need);
        let floor = |covered: Bytes, scale: Bytes| {
            if scale == Bytes::ZERO { 1.0 } else { signed(covered) / signed(scale) }
        };
        let spread = squares([above(self.outside), above(self.need)]);
        let sure = taken(self.outside.mid, self.need.mid) + spread;
        Window {
            floor: floor(self.covered.mid, self.scale.mid),
            floor_sure: floor(self.covered.high, self.scale.low),
            ceiling: fraction(
                self.base.mid,
                self.scale.mid,
                taken(self.outside.mid, self.need.mid),
            ),
            ceiling_sure: fraction(self.base.low, self.scale.low.max(self.base.low), sure),
        }
    }
}

fn below(estimate: Estimate) -> f64 {
    estimate.mid.0.abs_diff(estimate.low.0) as f64
}

fn above(estimate: Estimate) -> f64 {
    estimate.high.0.abs_diff(estimate.mid.0) as f64
}

fn squares<const N: usize>(parts: [f64; N]) -> f64 {
    parts.iter().map(|part| part * part).sum::<f64>().sqrt()
}

fn signed(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The founding case: back-solved free memory, 0.82 GiB left at 0.93, a chunk of 1.49 GiB.
    pub(crate) fn kimi() -> LoadLine {
        let gib = |x: f64| Estimate::exact(Bytes::from_gib_f64(x));
        let free = gib(94.0367);
        let outside = gib(94.0367 * 0.07 - 0.82);
        LoadLine { base: free, scale: free, outside, covered: gib(72.328), need: gib(1.49) }
    }

    #[test]
    fn what_is_left_follows_the_founding_case() {
        let line = kimi();
        let gib = |f: f64| line.left_at(f) / (1u64 << 30) as f64;
        assert!((gib(0.88) - 5.52).abs() < 0.005, "{}", gib(0.88));
        assert!((gib(0.85) - 8.34).abs() < 0.005, "{}", gib(0.85));
        let window = line.window();
        assert!((window.floor - 0.7691).abs() < 1e-4);
        assert!((window.ceiling - 0.9229).abs() < 1e-4);
        assert!(!window.is_empty());
    }
}
