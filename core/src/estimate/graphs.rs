//! What CUDA graph capture leaves allocated. A prior only: fitted on two dozen public logs, with a
//! wide interval; the printed figure of a real start replaces it.

use super::{Engine, Figure, gib};
use crate::figure::{Estimate, Tag, Why};
use crate::policy::sglang::version::Version;

/// Whether a draft model or head is captured too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Speculation {
    /// No.
    Absent,
    /// Yes: draft and verification have graphs of their own.
    Present,
}

/// Kind of layers, as far as the number of kernels in a graph goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LayerKind {
    /// Dense attention and MLP.
    Dense,
    /// Experts or linear attention: more kernels a layer.
    MoeOrHybrid,
}

/// What the decode capture depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeGraphs {
    /// Engine.
    pub engine: Engine,
    /// Release.
    pub version: Version,
    /// Number of captured batch sizes; 0 when capture is off.
    pub sizes: u64,
    /// Layers of the model.
    pub layers: u64,
    /// Kind of layers.
    pub kind: LayerKind,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Draft.
    pub speculation: Speculation,
}

/// Memory of the decode graphs: 0.04 GiB + c × (captured sizes × layers).
///
/// c in MiB: SGLang 0.28; vLLM 0.27 (tp 1 dense), 0.40 (tp 1 experts or hybrid), 0.55 (tp > 1). The interval is
/// × 0.45 … 2.1 (SGLang 0.6 … 2.1), up to × 4.5 for vLLM before 0.9 and with speculation: it holds all 21 usable
/// rows of `cudagraph-memory.csv`.
#[must_use]
pub fn decode_graphs(inputs: &DecodeGraphs) -> Figure {
    if inputs.sizes == 0 || inputs.layers == 0 {
        return Figure::none("no graph is captured", "rule");
    }
    let per = match (inputs.engine, inputs.tp, inputs.kind) {
        (Engine::Sglang, ..) => 0.28,
        (Engine::Vllm, 0..=1, LayerKind::Dense) => 0.27,
        (Engine::Vllm, 0..=1, LayerKind::MoeOrHybrid) => 0.40,
        (Engine::Vllm, ..) => 0.55,
    };
    let units = inputs.sizes as f64 * inputs.layers as f64;
    let mid = 0.04 + per * units / 1024.0;
    let early = inputs.engine == Engine::Vllm && inputs.version < Version::new(0, 9, 0);
    let loose = early || inputs.speculation == Speculation::Present;
    let low = if inputs.engine == Engine::Sglang { 0.6 } else { 0.40 };
    let high = if loose { 5.2 } else { 2.1 };
    let why = Why::new(
        Tag::Calibrated,
        format!("0.04 GiB + {per} MiB × sizes × layers, × {low} to {high}"),
        "fitted on public capture logs",
    );
    Figure { value: gib(low * mid, mid, high * mid), why }
        .with("sizes", inputs.sizes)
        .with("layers", inputs.layers)
        .with("tp", inputs.tp)
}

/// Memory of SGLang's prefill graphs (piecewise or breakable): the layer peak of the largest captured
/// token count lives in the shared pool, and more stays in it.
///
/// One clean reading: Qwen3-30B-A3B FP8, 8192 tokens, 1.71 GiB kept against a layer peak of 0.70; so × 2.4, and
/// × 1 … 3.4 as the interval.
#[must_use]
pub fn prefill_graphs(layer_peak: Estimate) -> Figure {
    let why = Why::new(
        Tag::Assumed,
        "layer peak of the largest captured size × 2.4 (1 to 3.4)",
        "one public SGLang log (0.5.23 line, Qwen3-30B-A3B FP8 on H100)",
    )
    .with("layer peak", layer_peak.mid);
    let value = gib(
        layer_peak.low.as_gib_f64(),
        2.4 * layer_peak.mid.as_gib_f64(),
        3.4 * layer_peak.high.as_gib_f64(),
    );
    Figure { value, why }
}
