//! Engine tapes: what one forward pass of SGLang or vLLM allocates outside weights and pool, in its
//! order, with explicit lifetimes. Pure allocation, to be played through a caching allocator.
//!
//! Recorded ground truth: the engines' own layer code run without a GPU (`docs/tapes.md`).

mod blocks;
mod buffers;
mod collective;
mod cycle;
mod dense;
mod embedding;
mod event;
mod gqa;
mod indexer;
mod logits;
mod logprobs;
mod metadata;
mod mla;
mod mlx;
mod moe;
mod one_buffer;
pub mod own;
mod recorder;
mod sampler;
mod series;
mod setup;
mod sglang;
#[cfg(test)]
mod tests;
mod vllm;
mod vllm_sampler;

pub use cycle::Cycle;
pub use event::{Buffer, BufferId, Event, Live, Name, Peak, Tape};
pub use indexer::{IndexerCall, IndexerForm, indexer};
pub use logprobs::InputLogprobs;
pub use metadata::{Metadata, StepInputs, metadata};
pub use mlx::{mlx_pass, mlx_request_kv};
pub use one_buffer::one_buffer;
pub use sampler::{Choice, OutputLogprobs, SamplerBatch, penalties, sampler};
pub use setup::{
    BlockTable, Code, Experts, Family, LayerMlp, MarlinReduce, Once, PrefillChunk, Setup,
    TapeError, TapeModel, Tma, mla_prefix,
};
pub use vllm_sampler::vllm_sampler;

use crate::units::Bytes;
use recorder::Recorder;
use setup::{Cx, Phase};

/// One chunk of prompt tokens: embedding, layers, logits of the last row of each request. What is
/// live at the end is the step's result (float32 logits; vLLM: 16-bit and the hidden states).
///
/// With DP attention `tokens` is what the ranks gather. Under CUDA graphs or compilation the layer
/// part lives in a private pool and is paid at startup.
///
/// # Errors
///
/// [`TapeError`]: numbers outside their range, or a family that was not recorded.
pub fn prefill_chunk(
    model: &TapeModel,
    setup: &Setup,
    chunk: &PrefillChunk,
) -> Result<Tape, TapeError> {
    step(model, setup, Phase::Prefill, *chunk)
}

/// One decode step of `requests` running requests: layers and logits, without the sampler.
///
/// # Errors
///
/// As [`prefill_chunk`].
pub fn decode_batch(model: &TapeModel, setup: &Setup, requests: u64) -> Result<Tape, TapeError> {
    let batch = PrefillChunk { tokens: requests, requests, prefix_tokens: 0 };
    step(model, setup, Phase::Decode, batch)
}

/// One decode step while its graph is captured: as [`decode_batch`], but the float32 logits go to a
/// static buffer outside, and the capture's stream has a cuBLAS workspace of `workspace` bytes of its
/// own, which stays.
///
/// # Errors
///
/// As [`prefill_chunk`].
pub fn captured_decode(
    model: &TapeModel,
    setup: &Setup,
    requests: u64,
    workspace: Bytes,
) -> Result<Tape, TapeError> {
    let step = PrefillChunk { tokens: requests, requests, prefix_tokens: 0 };
    let cx = Cx::new(model, setup, Phase::Decode, step)?;
    let mut rec = Recorder::default();
    if workspace > Bytes::ZERO {
        rec.alloc(buffers::CUBLAS_WORKSPACE, 1, &[workspace.0]);
    }
    let hidden = layers(&cx, &mut rec);
    let logits = logits::head(&cx, &mut rec, requests);
    rec.release([hidden, logits]);
    Ok(rec.finish())
}

fn step(
    model: &TapeModel,
    setup: &Setup,
    phase: Phase,
    step: PrefillChunk,
) -> Result<Tape, TapeError> {
    let cx = Cx::new(model, setup, phase, step)?;
    let mut rec = Recorder::default();
    let hidden = layers(&cx, &mut rec);
    logits::last_rows(&cx, &mut rec, hidden);
    Ok(rec.finish())
}

fn layers(cx: &Cx<'_>, rec: &mut Recorder) -> BufferId {
    match cx.setup.code {
        Code::Sglang0508 | Code::Sglang0523 => sglang::layers(cx, rec),
        Code::Vllm019 => vllm::layers(cx, rec),
    }
}

/// Logits of `rows` rows alone, from hidden states that exist: head, gather and float32 copy
/// (vLLM casts in its sampler; the copy has the same size there).
///
/// # Errors
///
/// As [`prefill_chunk`].
pub fn logits(model: &TapeModel, setup: &Setup, rows: u64) -> Result<Tape, TapeError> {
    let step = PrefillChunk { tokens: rows, requests: rows, prefix_tokens: 0 };
    let cx = Cx::new(model, setup, Phase::Decode, step)?;
    let mut rec = Recorder::default();
    let half = logits::head(&cx, &mut rec, rows);
    logits::float32(&cx, &mut rec, rows);
    rec.release([half]);
    Ok(rec.finish())
}

/// A chunk of prompt tokens with input logprobs: layers, then logits and logprobs of the wanted
/// rows.
///
/// # Errors
///
/// As [`prefill_chunk`]; [`TapeError::NotRecorded`] for vLLM; [`TapeError::OutOfRange`] when more
/// rows are wanted than the chunk has, or none.
pub fn input_logprobs(
    model: &TapeModel,
    setup: &Setup,
    chunk: &PrefillChunk,
    want: &InputLogprobs,
) -> Result<Tape, TapeError> {
    if setup.code == Code::Vllm019 {
        return Err(TapeError::NotRecorded { code: setup.code, what: "input logprobs" });
    }
    let cx = Cx::new(model, setup, Phase::Prefill, *chunk)?;
    let (value, max) = (want.rows, chunk.tokens);
    if value == 0 || value > max {
        return Err(TapeError::OutOfRange { field: "logprob rows", value, min: 1, max });
    }
    let mut rec = Recorder::default();
    let hidden = layers(&cx, &mut rec);
    logprobs::after_layers(&cx, &mut rec, hidden, want);
    Ok(rec.finish())
}

/// The experts of one layer alone, with a new output or over the input, as FP8 recordings have it.
///
/// # Errors
///
/// As [`prefill_chunk`]; [`TapeError::NotRecorded`] for a model without experts and for vLLM.
pub fn experts_alone(
    model: &TapeModel,
    setup: &Setup,
    tokens: u64,
    output: ExpertsOutput,
) -> Result<Tape, TapeError> {
    let step = PrefillChunk { tokens, requests: 1, prefix_tokens: 0 };
    let cx = Cx::new(model, setup, Phase::Prefill, step)?;
    let missing = TapeError::NotRecorded { code: setup.code, what: "experts alone" };
    let Some(moe) = cx.rank.moe.filter(|_| setup.code != Code::Vllm019) else {
        return Err(missing);
    };
    let mut rec = Recorder::default();
    moe::kernel(&cx, &moe::Widths::new(&cx, &moe), &mut rec, output);
    Ok(rec.finish())
}

pub use moe::Output as ExpertsOutput;
