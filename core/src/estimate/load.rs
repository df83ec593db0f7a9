//! What loading leaves behind beyond the weights themselves: copies that the engine makes, the allocator's
//! rounding, code loaded on the way, adapters.

use super::shape::{ShapeInputs, U, narrow};
use super::{Engine, Figure, gib};
use crate::figure::{Tag, Why};
use crate::units::Bytes;

/// What happens to the checkpoint's tensors while they load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WeightForm {
    /// Kept as they are (16-bit, FP8, FP4 in the checkpoint's layout).
    AsStored,
    /// Repacked for another kernel (Marlin: AWQ, GPTQ, W4A16, MXFP4).
    Repacked,
    /// Quantised while they load (`--quantization fp8` on a 16-bit checkpoint).
    Online,
}

/// What the extra depends on.
#[derive(Clone, Copy, Debug)]
pub struct LoadInputs<'a> {
    /// Engine.
    pub engine: Engine,
    /// Numbers of the model.
    pub shape: &'a ShapeInputs,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Treatment of the weights.
    pub form: WeightForm,
    /// LoRA buffers of the rank, when the caller has computed them.
    pub lora: Bytes,
}

/// Extra bytes between the start of loading and the sizing of the pool, beyond the weights of the rank.
///
/// Residuals (printed usage − weight bytes), SGLang: +0.20 (7B, 3090), +0.11 (30B, MI355X), +0.24 (32B, tp 4, twice),
/// +0.12 (30B FP8), and +0.4 for Kimi-K2.5 in INT4 over its absorbed copies; vLLM: 0.00 to 0.06 in six logs.
#[must_use]
pub fn load_extra(inputs: &LoadInputs<'_>) -> Vec<Figure> {
    let mut parts = vec![rounding_and_code(inputs.engine, inputs.form)];
    if let Some(copies) = absorbed_copies(inputs) {
        parts.push(copies);
    }
    if inputs.lora > Bytes::ZERO {
        parts.push(Figure::computed(inputs.lora.0, "LoRA buffers", "given"));
    }
    parts
}

fn rounding_and_code(engine: Engine, form: WeightForm) -> Figure {
    let (value, seen) = match (engine, form) {
        (Engine::Sglang, WeightForm::AsStored) => {
            (gib(0.05, 0.17, 0.33), "five public SGLang logs: +0.11 to +0.24 GiB")
        }
        (Engine::Sglang, WeightForm::Repacked) => {
            (gib(0.05, 0.33, 0.80), "Kimi-K2.5 on RTX PRO 6000: about +0.4 GiB")
        }
        (Engine::Vllm, WeightForm::AsStored) => {
            (gib(0.0, 0.02, 0.08), "six public vLLM logs: 0.00 to +0.06 GiB")
        }
        (Engine::Vllm, WeightForm::Repacked) => (gib(0.0, 0.10, 0.50), "no exact reading"),
        (_, WeightForm::Online) => (gib(0.0, 0.25, 1.00), "no exact reading"),
    };
    let tag = if form == WeightForm::AsStored { Tag::Calibrated } else { Tag::Assumed };
    Figure {
        value,
        why: Why::new(tag, "allocator rounding, code and tables made while loading", seen),
    }
}

/// MLA: the key and value halves of `kv_b_proj` are copied for the absorbed form, layers × H·(nope + v) × `kv_lora` × 2 B.
fn absorbed_copies(inputs: &LoadInputs<'_>) -> Option<Figure> {
    let mla = inputs.shape.rank(inputs.tp).mla?;
    let layers = u128::from(inputs.shape.layers);
    let bytes = U * layers * mla.heads * (mla.nope + mla.v) * mla.kv_lora;
    let rule = "layers × H·(nope + v) × kv_lora × 2 B, the absorbed copies of kv_b_proj";
    Some(
        Figure::computed(
            narrow(bytes),
            rule,
            "SGLang and vLLM, processing of MLA weights after loading",
        )
        .with("layers", inputs.shape.layers)
        .with("tp", inputs.tp),
    )
}
