//! Memory that a start takes for a while: copies beside the weights while they load, and what kernels
//! under tuning try out. Assumed where no start prints it; a measured figure replaces it.

use super::Figure;
use super::activation::{self, Phase, RunInputs, Step};
use super::moe::MoeKernel;
use super::shape::{Rank, ShapeInputs, narrow};
use crate::figure::{Estimate, Tag, Why};
use crate::units::Bytes;

/// What loading does to a checkpoint's tensors on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conversion {
    /// Tensors are copied from the host into their place.
    Copied,
    /// Quantised tensors of so many bits are written anew in a kernel's layout (Marlin and alike), one
    /// after the other.
    Repacked {
        /// Bits of a weight.
        bits: u64,
    },
    /// 8-bit tensors are widened to 16 bits and quantised again for other scales, one after the other.
    Requantised,
    /// All weights are there in 16 bits before the first is quantised to 8.
    QuantisedAfterLoad,
}

const LOAD_SOURCE: &str =
    "SGLang loaders, process_weights_after_loading; public reports of load peaks";

/// Most that is held beside the weights while they load, on one of `tp` ranks.
///
/// One tensor at a time: the new one beside the old. What torch keeps of it in its cache is given back
/// before the next reading. The high end is 0.55 of the weights: SGLang 0.5.12 held 5.29 GiB beside
/// 7.62 GiB of repacked AWQ weights (public log of Devstral-24B on two RTX 3090).
#[must_use]
pub fn load_scratch(
    shape: &ShapeInputs,
    tp: u64,
    conversion: Conversion,
    weights: Bytes,
) -> Figure {
    let rank = shape.rank(tp);
    let tensor = largest_tensor(&rank);
    let (bytes, rule) = match conversion {
        Conversion::Copied => {
            return Figure::none("tensors are copied into their place", LOAD_SOURCE);
        }
        Conversion::Repacked { bits } => {
            (tensor * u128::from(bits.min(16)) / 8, "the largest quantised tensor once more")
        }
        Conversion::Requantised => (tensor * 3, "the largest tensor in 16 and in 8 bits"),
        Conversion::QuantisedAfterLoad => {
            (linear_elements(shape, &rank), "8 bits an element: 16 until all is loaded")
        }
    };
    let mid = Bytes(narrow(bytes));
    let high = mid.max(Bytes(weights.0 / 20 * 11));
    let why = Why::new(Tag::Assumed, rule, LOAD_SOURCE).with("tp", tp);
    Figure { value: Estimate::new(Bytes::ZERO, mid, high), why }
}

/// Elements of the largest linear tensor of one rank: gate and up of all experts, or of one dense MLP.
fn largest_tensor(rank: &Rank) -> u128 {
    let experts = rank.moe.map_or(0, |moe| moe.e * 2 * moe.m * rank.h);
    experts.max(2 * rank.i * rank.h)
}

/// Elements of the linear tensors of one rank, embeddings aside.
fn linear_elements(shape: &ShapeInputs, rank: &Rank) -> u128 {
    let attention = match rank.mla {
        None => rank.h * (2 * rank.q + 2 * rank.kv),
        Some(mla) => {
            rank.h * (mla.lat + mla.heads * mla.v) + mla.kv_lora * mla.heads * (mla.nope + mla.v)
        }
    };
    let mlp = rank.moe.map_or(3 * rank.h * rank.i, |moe| 3 * rank.h * (moe.e * moe.m + moe.shared));
    u128::from(shape.layers.min(1 << 12)) * (attention + mlp)
}

/// Most that a public report saw tuning and capture take for a while.
const AUTOTUNE_MOST: Bytes = Bytes::gib(40);

/// What the expert kernels under tuning take for a while: one pass of `tokens` tokens with their
/// workspace. Reports have 25 to 40 GB with wide expert parallelism, the interval's high end.
///
/// Source: SGLang `kernel_warmup` (a pass of as many one-token requests as the request table has, or
/// of the largest captured batch from 0.5.23); sizes as [`MoeKernel::Flashinfer`].
#[must_use]
pub fn autotune_scratch(shape: &ShapeInputs, run: &RunInputs, tokens: u64) -> Figure {
    let source = "SGLang kernel_warmup, FlashInfer autotuner";
    let run = RunInputs { moe_kernel: MoeKernel::Flashinfer, ..*run };
    let step = Step { phase: Phase::Decode, tokens, prefix_tokens: 0, logits_rows: tokens };
    let peak = activation::peak(shape, &run, &step).map_or(Bytes::ZERO, |p| p.figure.value.mid);
    let why = Why::new(Tag::Assumed, "one pass under tuning with its workspace", source);
    let value = Estimate { low: peak, mid: peak, high: AUTOTUNE_MOST.max(peak) };
    Figure { value, why: why.with("tokens", tokens) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::moe::SharedExperts;
    use crate::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm};
    use crate::policy::sglang::version::Version;
    use crate::units::GIB;

    fn kimi() -> ShapeInputs {
        ShapeInputs {
            hidden: 7168,
            attention: AttentionShape::Gqa { q_heads: 64, kv_heads: 8, head_dim: 128 },
            dense_intermediate: 18_432,
            moe: Some(MoeShape {
                experts: 384,
                top_k: 8,
                intermediate: 2048,
                shared_intermediate: 2048,
            }),
            vocab: 163_840,
            layers: 61,
            mlp_names: MlpNames::Kept,
            qk_norm: QkNorm::Absent,
        }
    }

    #[test]
    fn repacking_holds_one_tensor_twice_and_tp_divides_it() {
        let scratch =
            |tp, conversion| load_scratch(&kimi(), tp, conversion, Bytes::gib(70)).value.mid.0;
        let four = Conversion::Repacked { bits: 4 };
        assert_eq!(scratch(8, four), 384 * 2 * 256 * 7168 / 2);
        assert_eq!(scratch(4, four), 2 * scratch(8, four));
        assert_eq!(scratch(8, Conversion::Copied), 0);
        assert_eq!(scratch(8, Conversion::Requantised), 6 * scratch(8, four));
        // A trillion parameters on eight ranks: about 125 GB in 8 bits.
        let online = scratch(8, Conversion::QuantisedAfterLoad) / GIB;
        assert!((110..130).contains(&online), "{online}");
    }

    #[test]
    fn tuning_grows_with_the_tokens_of_its_pass() {
        let run = RunInputs {
            version: Version::new(0, 5, 23),
            tp: 8,
            moe_kernel: MoeKernel::Triton,
            shared_experts: SharedExperts::Separate,
            tma_block_rows: None,
            mla_prefix: activation::MlaPrefix::OneShot,
        };
        let scratch = |tokens| autotune_scratch(&kimi(), &run, tokens).value;
        assert!(scratch(2048).mid > scratch(512).mid);
        assert_eq!(scratch(512).high, AUTOTUNE_MOST);
        // T·k·(3h + 4m) bytes of workspace at least.
        assert!(scratch(2048).mid.0 > 2048 * 8 * (3 * 7168 + 4 * 256));
    }
}
