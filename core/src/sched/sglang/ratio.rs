//! The new-token ratio: which part of its limit a running request is expected to use.

/// `INIT`: `SGLANG_INIT_NEW_TOKEN_RATIO`.
const INIT: f64 = 0.7;
/// `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`.
const MIN_FACTOR: f64 = 0.14;
/// `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`.
const DECAY_STEPS: f64 = 600.0;
/// `SGLANG_RETRACT_DECODE_STEPS`: tokens that each kept request is granted after a retraction.
pub(super) const RETRACT_STEPS: u64 = 20;

/// The ratio, in the engine's order of operations: it is decremented, never computed anew.
///
/// Source: SGLang `Scheduler.init_chunked_prefill`, `NewTokenRatioTracker` (0.5.23).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NewTokenRatio {
    init: f64,
    min: f64,
    decay: f64,
    now: f64,
}

impl NewTokenRatio {
    /// Of a server with this `--schedule-conservativeness`.
    #[must_use]
    pub fn new(conservativeness: f64) -> Self {
        let init = (INIT * conservativeness).min(1.0);
        let min = (init * MIN_FACTOR).min(1.0);
        Self { init, min, decay: (init - min) / DECAY_STEPS, now: init }
    }

    /// Its value.
    #[must_use]
    pub const fn now(&self) -> f64 {
        self.now
    }

    /// An idle server begins anew.
    pub const fn reset(&mut self) {
        self.now = self.init;
    }

    /// After a decode step that had room.
    pub fn decay(&mut self) {
        self.now = (self.now - self.decay).max(self.min);
    }

    /// With the value that a retraction left, for who follows a scheduler from outside.
    #[must_use]
    pub const fn at(self, now: f64) -> Self {
        Self { now, ..self }
    }

    /// After `steps` such steps: each subtracts anew, until the floor is reached.
    pub fn decay_by(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.now <= self.min {
                break;
            }
            self.decay();
        }
    }

    /// After a retraction: what the kept requests used so far, and a little more, of their limits.
    pub(super) fn estimate(&mut self, outputs: i64, kept: i64, limits: i64) {
        let steps = RETRACT_STEPS as i64;
        let expected = outputs.saturating_add(steps.saturating_mul(kept));
        self.now = (expected as f64 / limits.saturating_add(1) as f64).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_falls_to_its_floor_and_starts_again() {
        let mut ratio = NewTokenRatio::new(1.0);
        assert_eq!(ratio.now().to_string(), "0.7");
        ratio.decay();
        assert_eq!(ratio.now().to_string(), "0.6989966666666666");
        (0..700).for_each(|_| ratio.decay());
        assert_eq!(ratio.now().to_string(), "0.098");
        ratio.estimate(100, 4, 1999);
        assert_eq!(ratio.now().to_string(), "0.09");
        ratio.reset();
        assert_eq!(ratio.now().to_string(), "0.7");
        assert_eq!(NewTokenRatio::new(5.0).now().to_string(), "1");
    }
}
