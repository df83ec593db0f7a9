//! Rows of a block of the expert kernels: they decide how far token lists, and with TMA the GEMM
//! buffers, are padded.

use super::setup::{BlockTable, Code, Tma};

/// Rows of a block, and whether the second GEMM loads by TMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) rows: u64,
    pub(super) tma: Tma,
}

/// Line of a tuned table: tokens, rows of a block, TMA in the second GEMM.
type Line = (u64, u64, Tma);

/// A tuned table: experts, intermediate width of one rank, lines.
type Table = (u64, u64, &'static [Line]);

/// SGLang's 16-bit tables for the H100 (`fused_moe_triton/configs`, `BLOCK_SIZE_M` and `USE_TMA`),
/// equal lines at the ends merged. Recordings confirm 192 at 256 and 4096 tokens, 768 at 16,
/// 256, 2048, 8192 and 70,000, and 7168 at 8192.
const H100: &[Table] = &[
    (
        128,
        192,
        &[
            (128, 16, Tma::Off),
            (256, 32, Tma::Off),
            (512, 64, Tma::Off),
            (1024, 64, Tma::Off),
            (1536, 128, Tma::Off),
            (2048, 64, Tma::Off),
            (3072, 128, Tma::Off),
            (4096, 128, Tma::Off),
        ],
    ),
    (
        128,
        384,
        &[
            (128, 16, Tma::Off),
            (256, 32, Tma::Off),
            (512, 64, Tma::Off),
            (1024, 64, Tma::Off),
            (1536, 128, Tma::Off),
            (4096, 128, Tma::Off),
        ],
    ),
    (
        128,
        768,
        &[
            (128, 16, Tma::Off),
            (256, 32, Tma::Off),
            (512, 64, Tma::Off),
            (1024, 64, Tma::Off),
            (1536, 128, Tma::Off),
            (3072, 128, Tma::Off),
            (4096, 128, Tma::On),
        ],
    ),
    (
        8,
        7168,
        &[
            (1, 16, Tma::Off),
            (2, 64, Tma::Off),
            (4, 16, Tma::Off),
            (8, 32, Tma::Off),
            (16, 64, Tma::Off),
            (24, 16, Tma::Off),
            (32, 64, Tma::Off),
            (128, 64, Tma::Off),
            (256, 128, Tma::Off),
            (4096, 128, Tma::Off),
        ],
    ),
];

/// Rows of a Triton block for `tokens` in one pass.
///
/// Source: SGLang `fused_moe_triton_config.try_get_optimal_moe_config` (the table's line nearest to
/// the number of tokens) and `get_default_config` (16-bit: 16 rows while there are no more tokens
/// than experts, else 64; FP8 blocks: 64); vLLM `fused_moe.get_default_config`.
pub(super) fn triton(
    table: BlockTable,
    code: Code,
    fp8: Fp8,
    (experts, width): (u64, u64),
    tokens: u64,
) -> Block {
    let off = |rows| Block { rows, tma: Tma::Off };
    let block = match (table, code, fp8) {
        (BlockTable::Fixed { rows, tma }, ..) => Block { rows: rows.max(1), tma },
        (_, Code::Vllm019, _) => off(vllm_default(tokens)),
        (_, _, Fp8::Blocks) => off(64),
        (BlockTable::H100, ..) => {
            tuned(experts, width, tokens).unwrap_or_else(|| off(default_rows(experts, tokens)))
        }
        (BlockTable::Default, ..) => off(default_rows(experts, tokens)),
    };
    if code == Code::Sglang0523 { block } else { off(block.rows) }
}

/// Element type of the expert weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fp8 {
    /// 16-bit.
    No,
    /// FP8 by blocks of 128 × 128.
    Blocks,
}

fn tuned(experts: u64, width: u64, tokens: u64) -> Option<Block> {
    let (.., lines) = H100.iter().find(|(e, w, _)| (*e, *w) == (experts, width))?;
    let (_, rows, tma) = lines.iter().min_by_key(|(line, ..)| line.abs_diff(tokens))?;
    Some(Block { rows: *rows, tma: *tma })
}

const fn default_rows(experts: u64, tokens: u64) -> u64 {
    if tokens <= experts { 16 } else { 64 }
}

/// vLLM's default for 16-bit experts; recorded at 8192 tokens only, the smaller ones are general
/// knowledge and move the sorted lists alone.
const fn vllm_default(tokens: u64) -> u64 {
    match tokens {
        0..=32 => 16,
        33..=96 => 32,
        97..=512 => 64,
        _ => 128,
    }
}

/// Rows of a Marlin block: the first of 8, 16, 32, 48, 64 that the mean expert fills to less than
/// nine tenths. Source: SGLang `fused_marlin_moe.fused_marlin_moe`.
pub(super) fn marlin(experts: u64, top_k: u64, tokens: u64) -> u64 {
    let pairs = tokens.saturating_mul(top_k);
    [8, 16, 32, 48]
        .into_iter()
        // pairs / experts / rows < 0.9
        .find(|rows| pairs.saturating_mul(10) < experts.saturating_mul(*rows).saturating_mul(9))
        .unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marlin_blocks_grow_with_the_load_of_an_expert() {
        let rows = |tokens| marlin(384, 8, tokens);
        assert_eq!([150, 512, 1024, 2048, 4096].map(rows), [8, 16, 32, 48, 64]);
    }

    #[test]
    fn nearest_line_and_default() {
        let rows =
            |code, width, tokens| triton(BlockTable::H100, code, Fp8::No, (128, width), tokens);
        assert_eq!(rows(Code::Sglang0523, 768, 70_000), Block { rows: 128, tma: Tma::On });
        assert_eq!(rows(Code::Sglang0508, 768, 70_000), Block { rows: 128, tma: Tma::Off });
        assert_eq!(rows(Code::Sglang0523, 96, 100).rows, 16);
        assert_eq!(rows(Code::Sglang0523, 96, 200).rows, 64);
    }
}
