//! A step of a model family without a recorded tape: its closed-form peak as one buffer.

use super::buffers::{
    PEAK_ABSORBED, PEAK_ATTENTION, PEAK_DENSE, PEAK_EXPERTS, PEAK_LOGITS, PEAK_PREFIX_KEYS,
    PEAK_PREFIX_OUTPUT,
};
use super::event::Tape;
use super::recorder::Recorder;
use crate::estimate::activation::Instant;
use crate::units::Bytes;

/// `bytes` taken at once and given back, under the name of the instant that they are the peak of
/// ([`crate::estimate::activation::peak`]). The sum is right where the formula is; as one request it
/// finds no room in gaps that the engine's smaller ones would fill, so it errs on the careful side.
#[must_use]
pub fn one_buffer(bytes: Bytes, instant: Instant) -> Tape {
    let buffer = match instant {
        Instant::DenseMlp => PEAK_DENSE,
        Instant::Moe => PEAK_EXPERTS,
        Instant::Attention => PEAK_ATTENTION,
        Instant::MlaPrefixKeys => PEAK_PREFIX_KEYS,
        Instant::MlaPrefixOutput => PEAK_PREFIX_OUTPUT,
        Instant::MlaAbsorbed => PEAK_ABSORBED,
        Instant::Logits => PEAK_LOGITS,
    };
    let mut rec = Recorder::default();
    let id = rec.alloc(buffer, 1, &[bytes.0]);
    rec.release([id]);
    rec.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_its_instant_and_leaves_nothing() {
        let tape = one_buffer(Bytes(1000), Instant::Moe);
        assert_eq!(tape.peak().bytes, Bytes(1024));
        assert_eq!(tape.largest().unwrap().name.to_string(), "experts");
        assert!(tape.live_after(1).is_empty());
    }
}
