//! After the layers: logits, input logprobs, sampling. Not divided by tensor parallelism once gathered.

use super::Figure;
use super::shape::{Rank, ShapeInputs, U, narrow, wide};
use crate::figure::{Estimate, Tag};
use crate::policy::sglang::version::Version;
use crate::units::Bytes;

const SOURCE: &str = "SGLang 0.5.8 and 0.5.23 logits processor and sampler, recorded allocations";

/// Logits of `rows` rows while the final hidden states of the step live: bf16 and its fp32 copy, or the
/// gather of the shards.
pub(crate) fn decode_logits(rank: &Rank, rows: u128, tokens: u128) -> Figure {
    let hidden = U * tokens * rank.h;
    let copy = rows * rank.v * 6;
    let gather = if rank.tp > 1 { rows * rank.v * 4 + rows * rank.v * 2 / rank.tp } else { 0 };
    let rule = "rows·V·6 + 2·T·h; tp > 1 at the gather: rows·V·(4 + 2/tp) + 2·T·h";
    Figure::computed(narrow(copy.max(gather) + hidden), rule, SOURCE)
}

/// Whether SGLang's 0.5.8 chunking of input logprobs was switched on
/// (`SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogprobChunks {
    /// The release's default: none in 0.5.8, 2048 rows in 0.5.23.
    Default,
    /// 2048 rows in 0.5.8.
    On,
}

/// Input logprobs of `rows` prompt tokens of a chunk of `tokens` (`tokens` = the rows to go through layers).
///
/// Between 0.5.8 and 0.5.23 the default is not known; the larger is the mid, the interval covers both.
#[must_use]
pub fn input_logprobs(
    shape: &ShapeInputs,
    version: Version,
    chunks: LogprobChunks,
    rows: u64,
    tokens: u64,
) -> Figure {
    const CHUNK: u128 = 2048;
    let (rows, hidden) = (wide(rows), 2 * U * wide(tokens) * wide(shape.hidden));
    let vocab = wide(shape.vocab);
    let whole = narrow(8 * rows * vocab + hidden);
    let chunked = narrow(8 * rows.min(CHUNK) * vocab + hidden);
    // Three fp32 copies and one bf16 of a chunk are alive in the older chunked form.
    let chunked_old = narrow(14 * rows.min(CHUNK) * vocab + hidden).min(whole);
    let figure = |bytes, rule: &str| Figure::computed(bytes, rule, SOURCE);
    let figure = if version >= Version::new(0, 5, 23) {
        figure(chunked, "8·min(rows, 2048)·V + 2·2·T·h")
    } else if chunks == LogprobChunks::On {
        figure(chunked_old, "14·min(rows, 2048)·V + 2·2·T·h")
    } else if version <= Version::new(0, 5, 8) {
        figure(whole, "8·rows·V + 2·2·T·h")
    } else {
        let mut figure =
            figure(whole, "8·rows·V + 2·2·T·h, or by 2048 rows: release of the change unknown");
        figure.value = Estimate::new(Bytes(chunked), Bytes(whole), Bytes(whole));
        figure.why.tag = Tag::Assumed;
        figure
    };
    figure.with("rows", rows).with("vocab", shape.vocab)
}

/// What the sampler is asked for; the largest over the requests of a batch decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sampling {
    /// Greedy.
    Greedy,
    /// Greedy with output logprobs.
    GreedyLogprob,
    /// Temperature only.
    Temperature,
    /// Temperature with output logprobs.
    TemperatureLogprob,
    /// top-k or top-p through FlashInfer.
    TopKTopP,
    /// top-p with output logprobs.
    TopPLogprob,
    /// min-p (with or without top-k, top-p).
    MinP,
    /// The PyTorch backend: `torch.sort` over the vocabulary.
    TorchSort,
}

/// Sampler buffers on top of the fp32 logits (which exist before).
///
/// Sorting costs 32 bytes an element for 128 rows and more (two of its requests were seen in logs, that
/// all are alive together is general knowledge); below 128 rows about 44, unconfirmed.
#[must_use]
pub fn sampler(shape: &ShapeInputs, version: Version, sampling: Sampling, rows: u64) -> Figure {
    let element = wide(rows) * wide(shape.vocab);
    let explicit = version >= Version::new(0, 5, 23);
    let (low, high) = match (sampling, explicit) {
        (Sampling::Greedy, _) => (0, 0),
        (Sampling::GreedyLogprob | Sampling::TopKTopP, _) => (4, 4),
        (Sampling::Temperature, false) => (4, 8), // multinomial's own exponentials are inside torch
        (Sampling::Temperature, true) | (Sampling::TemperatureLogprob | Sampling::MinP, _) => {
            (8, 8)
        }
        (Sampling::TopPLogprob, false) => (8, 8),
        (Sampling::TopPLogprob, true) => (4, 4),
        (Sampling::TorchSort, _) if rows >= 128 => (32, 32),
        (Sampling::TorchSort, _) => (32, 44),
    };
    let mut figure = Figure::computed(0, format!("{high}·rows·V"), SOURCE);
    let bytes = |per: u128| Bytes(narrow(per * element));
    figure.value = Estimate::new(bytes(low), bytes(high), bytes(high));
    if sampling == Sampling::TorchSort || low != high {
        figure.why.tag = Tag::Calibrated;
    }
    figure.with("rows", rows).with("vocab", shape.vocab)
}
