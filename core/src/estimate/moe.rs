//! Buffers of mixture-of-experts kernels, by kernel and SGLang release. At tp ≥ 4 the term `top_k·hidden`,
//! which tensor parallelism does not divide, rules.

use super::activation::{Amount, RunInputs, kept_latent};
use super::shape::{MoeRank, Rank, U, narrow, wide};

/// Kernel that runs the experts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MoeKernel {
    /// Triton, 16-bit or weight-only quantised by tensor.
    Triton,
    /// Triton, FP8 with 128 × 128 blocks.
    TritonFp8Block,
    /// Marlin (AWQ, GPTQ, W4A16, MXFP4).
    Marlin,
    /// SGLang's CUTLASS, FP8 blocks.
    CutlassFp8Block,
    /// FlashInfer CUTLASS or TRT-LLM.
    Flashinfer,
    /// DeepGEMM, contiguous layout.
    DeepGemm,
    /// DeepGEMM masked behind DeepEP low latency: does not depend on the tokens.
    DeepEpMasked {
        /// Experts on this rank.
        local_experts: u64,
        /// Rows for each expert: ranks × dispatch limit (128).
        rows: u64,
    },
}

/// How shared experts run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SharedExperts {
    /// There are none.
    Absent,
    /// As one more routed expert (SGLang 0.5.8, DeepSeek on NVIDIA with a 16-bit or FP8 Triton kernel).
    Fused,
    /// Before the routed ones; their output lives through the layer.
    Separate,
}

/// Generation of the Triton expert code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoeBuffers {
    /// One cache for the first and last GEMM, chunks of 65,536 tokens (0.5.8).
    Shared,
    /// Three buffers alive together, no chunks (0.5.23).
    Separate,
}

/// Tokens of one pass of the Triton kernel in 0.5.8.
const CHUNK: u128 = 65_536;

/// Bytes live at the peak of one MoE layer, the layer's own streams included.
pub(crate) fn moe_bytes(
    rank: &Rank,
    moe: &MoeRank,
    run: &RunInputs,
    form: MoeBuffers,
    tokens: u128,
) -> Amount {
    let separate = run.shared_experts == SharedExperts::Separate || fused_elsewhere(run, form);
    let shared = if separate { rank.h } else { 0 };
    let outer = U * tokens * (3 * rank.h + shared + kept_latent(rank, form));
    let k = match (run.shared_experts, form) {
        (SharedExperts::Fused, MoeBuffers::Shared) => moe.k + 1,
        _ => moe.k,
    };
    let small = small_buffers(rank, moe, form, tokens, k);
    let (inner, rule) = match run.moe_kernel {
        MoeKernel::Triton => triton(rank, moe, run, form, tokens, k),
        MoeKernel::TritonFp8Block => triton_fp8(rank, moe, form, tokens, k),
        MoeKernel::Marlin => (
            U * tokens * (k * (moe.m.saturating_mul(2).max(rank.h) + moe.m) + rank.h),
            "2·T·(4h [+ h shared] [+ latent] + k·(max(2m, h) + m))",
        ),
        MoeKernel::CutlassFp8Block => {
            (tokens * k * (3 * rank.h + 7 * moe.m), "2·T·3h + T·k·(3h + 7m)")
        }
        MoeKernel::Flashinfer => {
            (tokens * k * (3 * rank.h + 4 * moe.m), "2·T·3h + T·k·(3h + 4m), one workspace")
        }
        MoeKernel::DeepGemm => (deep_gemm(rank, moe, tokens, k), "2·T·3h + about 2h·(T·k + T)"),
        MoeKernel::DeepEpMasked { local_experts, rows } => (
            wide(local_experts) * wide(rows) * (3 * rank.h + 5 * moe.m),
            "2·T·3h + local experts × rows × (3h + 5m)",
        ),
    };
    (outer + inner + small, rule)
}

/// 0.5.23 no longer fuses the shared expert.
fn fused_elsewhere(run: &RunInputs, form: MoeBuffers) -> bool {
    run.shared_experts == SharedExperts::Fused && form == MoeBuffers::Separate
}

/// Router logits (2 bytes; 4 in DeepSeek of 0.5.23), expert weights and ids.
fn small_buffers(rank: &Rank, moe: &MoeRank, form: MoeBuffers, tokens: u128, k: u128) -> u128 {
    let router = if rank.mla.is_some() && form == MoeBuffers::Separate { 4 } else { 2 };
    tokens * moe.e * router + 8 * tokens * k
}

fn triton(
    rank: &Rank,
    moe: &MoeRank,
    run: &RunInputs,
    form: MoeBuffers,
    tokens: u128,
    k: u128,
) -> Amount {
    let (h, m) = (rank.h, moe.m);
    match form {
        MoeBuffers::Shared => {
            let pass = tokens.min(CHUNK);
            // The activation of the first pass is still bound when the second makes its own.
            let second = (tokens - pass) * k * m;
            let bytes = U * (pass * k * ((2 * m).max(h) + m) + second);
            (bytes, "2·[T·(3h [+ latent]) + min(T, 65536)·k·(max(2m, h) + m)]")
        }
        MoeBuffers::Separate => {
            let rows = padded_rows(moe, run.tma_block_rows, tokens, k);
            let bytes = U * (3 * rows * m + tokens * k * h);
            (bytes, "2·[T·3h [+ T·h shared] + 3·R·m + T·k·h], R = T·k padded to TMA blocks")
        }
    }
}

fn padded_rows(moe: &MoeRank, block: Option<u64>, tokens: u128, k: u128) -> u128 {
    let rows = tokens * k;
    block.map_or(rows, |block| rows + rows.min(moe.e + 1) * wide(block).saturating_sub(1))
}

fn triton_fp8(rank: &Rank, moe: &MoeRank, form: MoeBuffers, tokens: u128, k: u128) -> Amount {
    let (h, m) = (rank.h, moe.m);
    match form {
        MoeBuffers::Shared => {
            let scales = tokens * h.div_ceil(128) * 4;
            let bytes = U * tokens * k * ((2 * m).max(h) + m) + tokens * h + scales;
            (bytes, "2·T·(3h [+ latent]) + 2·T·k·(max(2m, h) + m) + 1.03·T·h")
        }
        MoeBuffers::Separate => {
            let bytes = U * tokens * k * (3 * m + h) + tokens * k * m + U * tokens * h;
            (bytes, "2·T·3h + 2·T·k·(3m + h) + T·k·m + 2·T·h")
        }
    }
}

fn deep_gemm(rank: &Rank, moe: &MoeRank, tokens: u128, k: u128) -> u128 {
    let (rows, h, m) = (tokens * k, rank.h, moe.m);
    let gemm1 = rows * (h + 4 * m);
    let gemm2 = rows * (m + 2 * h);
    gemm1.max(rows * 6 * m).max(gemm2).max(2 * h * (rows + tokens))
}

/// Bytes of the experts alone, with their input and output outside (for comparison with recordings).
#[must_use]
pub fn experts_alone(
    shape: &super::shape::ShapeInputs,
    run: &RunInputs,
    form: MoeBuffers,
    tokens: u64,
) -> Option<u64> {
    let rank = shape.rank(run.tp);
    let moe = rank.moe?;
    let (bytes, _) = match run.moe_kernel {
        MoeKernel::TritonFp8Block => triton_fp8(&rank, &moe, form, wide(tokens), moe.k),
        _ => triton(&rank, &moe, run, form, wide(tokens), moe.k),
    };
    Some(narrow(bytes))
}
