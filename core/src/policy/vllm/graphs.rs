//! Memory of CUDA graphs: the engine's own estimate, and a prior for when nothing was measured.

use crate::{
    figure::{Estimate, Tag, Why},
    units::{Bytes, GIB, MIB},
};

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
    first + rest(modes) + encoder
}

/// The estimate of the second model runner (0.33): piecewise, encoder and speculator graphs
/// measured whole, full graphs extrapolated.
#[must_use]
pub fn estimate_v2(full: ModeDeltas, measured_whole: Bytes) -> Bytes {
    full.first + rest(&[full]) + measured_whole
}

fn rest(modes: &[ModeDeltas]) -> Bytes {
    modes
        .iter()
        .map(|m| Bytes(m.graphs.saturating_sub(1).saturating_mul(m.second.0.max(MIB))))
        .sum()
}

/// Above its middle a graph estimate has been wrong by this factor at worst.
const PRIOR_FACTOR: f64 = 2.7;

/// What graphs really take when nothing was measured: a fit on public logs, wide on purpose.
///
/// 0.29 GiB + 0.36 MiB × sizes × layers (the second term × 1.5 above one rank). Typical error a
/// factor of 1.6; the upper end is 2.7 times the middle, the lower end 1 / 2.7 of the second term
/// alone, since runs with few sizes do not show the first. No graph takes nothing.
#[must_use]
pub fn prior(capture_sizes: u64, layers: u64, tensor_parallel_size: u64) -> (Estimate, Why) {
    let why = Why::new(
        Tag::Calibrated,
        "0.29 GiB + 0.36 MiB * sizes * layers (* 1.5 for tensor parallelism), within a factor 2.7",
        "fit on fifteen public start-up logs of vLLM 0.7 to 0.2x",
    )
    .with("sizes", capture_sizes)
    .with("layers", layers)
    .with("tensor_parallel_size", tensor_parallel_size);
    if capture_sizes == 0 {
        return (Estimate::ZERO, why);
    }
    let scale = if tensor_parallel_size > 1 { 1.5 } else { 1.0 };
    let graphs = 0.36 * MIB as f64 * capture_sizes as f64 * layers as f64 * scale;
    let mid = 0.29 * GIB as f64 + graphs;
    let bytes = |x: f64| Bytes(x.round() as u64);
    (Estimate::new(bytes(graphs / PRIOR_FACTOR), bytes(mid), bytes(mid * PRIOR_FACTOR)), why)
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

    #[test]
    fn the_prior_holds_every_measured_row() {
        // (sizes, layers, tp, GiB measured), from public logs of vLLM 0.7.4 to 0.2x:
        // vllm-project/vllm#14286, #16570, #15664, noonghunna/club-3090#1087 and others.
        let rows = [
            (67, 34, 1, 0.65),
            (67, 32, 1, 2.02),
            (67, 48, 2, 2.37),
            (67, 94, 4, 3.45),
            (67, 48, 1, 1.28),
            (67, 36, 1, 0.68),
            (67, 36, 1, 0.54),
            (7, 64, 4, 0.53),
            (35, 64, 4, 2.37),
            (67, 64, 4, 2.04),
            (67, 80, 4, 2.65),
            (35, 80, 1, 3.34),
            (3, 64, 2, 0.09),
            (3, 64, 1, 0.46),
            (3, 64, 1, 0.04),
        ];
        for (sizes, layers, tp, gib) in rows {
            let (estimate, _) = prior(sizes, layers, tp);
            let real = Bytes::from_gib_f64(gib);
            assert!(estimate.low <= real && real <= estimate.high, "{gib}: {estimate:?}");
        }
        assert_eq!(prior(0, 64, 1).0, Estimate::ZERO);
    }
}
