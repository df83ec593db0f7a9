//! Memory of CUDA graphs: the engine's own estimate from what it measures. What they take when
//! nothing was measured stands in [`crate::estimate::graphs`].

use crate::units::{Bytes, MIB};

/// Deltas of free memory that the engine measures for one graph mode (FULL, PIECEWISE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeDeltas {
    /// Graphs of this mode.
    pub graphs: u64,
    /// Drop of free memory at the largest size.
    pub first: Bytes,
    /// Drop at the second largest; 0 when there is only one.
    pub second: Bytes,
}

/// The engine's estimate (first model runner, 0.18+): the largest first delta over modes, plus for
/// each mode its other graphs at the second delta, 1 MiB at least each, plus the encoder's graphs.
///
/// Source: vLLM 0.18 to 0.33 `GPUModelRunner.profile_cudagraph_memory`.
#[must_use]
pub fn estimate(modes: &[ModeDeltas], encoder: Bytes) -> Bytes {
    let first = modes.iter().map(|m| m.first).max().unwrap_or(Bytes::ZERO);
    first.saturating_add(rest(modes)).saturating_add(encoder)
}

/// The estimate of the second model runner (0.33): piecewise, encoder and speculator graphs
/// measured whole, full graphs extrapolated.
#[must_use]
pub fn estimate_v2(full: ModeDeltas, measured_whole: Bytes) -> Bytes {
    full.first.saturating_add(rest(&[full])).saturating_add(measured_whole)
}

fn rest(modes: &[ModeDeltas]) -> Bytes {
    modes
        .iter()
        .map(|m| Bytes(m.graphs.saturating_sub(1).saturating_mul(m.second.0.max(MIB))))
        .fold(Bytes::ZERO, Bytes::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_delta_counts_once_and_the_second_for_the_rest() {
        let full = ModeDeltas { graphs: 35, first: Bytes::mib(200), second: Bytes::mib(4) };
        let piecewise = ModeDeltas { graphs: 51, first: Bytes::mib(300), second: Bytes::ZERO };
        // 300 + 34 * 4 + 50 * 1 (floor of 1 MiB) + 10.
        assert_eq!(estimate(&[full, piecewise], Bytes::mib(10)), Bytes::mib(496));
        assert_eq!(estimate_v2(full, Bytes::mib(90)), Bytes::mib(200 + 34 * 4 + 90));
        assert_eq!(estimate(&[], Bytes::ZERO), Bytes::ZERO);
        let one = ModeDeltas { graphs: 1, first: Bytes::mib(7), second: Bytes::ZERO };
        assert_eq!(estimate(&[one], Bytes::ZERO), Bytes::mib(7));
    }
}
