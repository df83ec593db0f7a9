//! Multi-head latent attention of SGLang (DeepSeek, Kimi): expanded without a prefix, over a prefix
//! at once or by chunks, and absorbed.

use super::buffers::{
    ATTN, KV_A_NORM, KV_B, LATENT, MERGED, MERGED_LSE, MHA_K, MHA_LSE, MLA_K, MLA_Q, MLA_V, O_PROJ,
    PREFIX_LATENT, PREFIX_ROPE, Q_A_NORM, Q_B, Q_NOPE_ABSORBED,
};
use super::event::BufferId;
use super::gqa::reduce_by_communicator;
use super::recorder::Recorder;
use super::setup::{Cx, Phase};
use crate::estimate::activation::MlaPrefix;
use crate::estimate::shape::{MlaRank, narrow};

/// Longest sequence that is expanded at once, and length of a chunk of prefix.
/// Source: SGLang `forward_batch.get_max_chunk_capacity`.
const ONE_SHOT_MAX: u64 = 131_072;
/// Shortest prefix for which the absorbed form is left.
/// Source: SGLang `chunked_prefix_cache_threshold`.
const EXPAND_FROM: u64 = 8192;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    NoPrefix,
    OneShot,
    Chunked,
    Absorbed,
}

/// Form of the attention in this step. Source: SGLang `attention_backend_handler`.
fn form(cx: &Cx<'_>) -> Form {
    let (prefix, setting) = (cx.step.prefix_tokens, cx.setup.mla_prefix);
    if cx.phase == Phase::Decode {
        Form::Absorbed
    } else if prefix == 0 {
        Form::NoPrefix
    } else if setting == MlaPrefix::Absorbed || prefix < EXPAND_FROM {
        Form::Absorbed
    } else if setting == MlaPrefix::Chunked || cx.tokens() + prefix > ONE_SHOT_MAX {
        Form::Chunked
    } else {
        Form::OneShot
    }
}

/// One rank's widths in elements.
struct Widths {
    t: u64,
    heads: u64,
    q_lora: u64,
    kv_lora: u64,
    rope: u64,
    qk: u64,
    kv: u64,
    v: u64,
    latent: u64,
}

impl Widths {
    fn new(cx: &Cx<'_>, mla: &MlaRank) -> Self {
        Self {
            t: cx.tokens(),
            heads: narrow(mla.heads),
            q_lora: narrow(mla.lat - mla.kv_lora - mla.rope),
            kv_lora: narrow(mla.kv_lora),
            rope: narrow(mla.rope),
            qk: narrow(mla.nope + mla.rope),
            kv: narrow(mla.nope + mla.v),
            v: narrow(mla.v),
            latent: narrow(mla.lat),
        }
    }
}

/// From the layer's input to the output projection.
///
/// `held` is what the attention context of 0.5.8 references: the input and the latent of the layer
/// before. They are let go when this layer enters, and this layer's take their place; 0.5.23 drops
/// the latent, and layer 0's norm output `normed`, with the other locals.
pub(super) fn attention(
    cx: &Cx<'_>,
    mla: &MlaRank,
    rec: &mut Recorder,
    input: LayerInput,
    held: &mut Vec<BufferId>,
) -> BufferId {
    let w = Widths::new(cx, mla);
    rec.release(held.drain(..));
    let latent = rec.alloc(LATENT, 2, &[w.t, w.latent]);
    let q_a = rec.alloc(Q_A_NORM, 2, &[w.t, w.q_lora]);
    let mut locals = match form(cx) {
        Form::Absorbed => absorbed(&w, rec, q_a),
        form => expanded(cx, &w, rec, q_a, form),
    };
    let out = rec.alloc(O_PROJ, 2, &[w.t, cx.h()]);
    if cx.is_0508() {
        held.extend([input.id, latent]);
    } else {
        locals.push(latent);
        locals.extend(input.normed());
    }
    rec.release(locals);
    reduce_by_communicator(cx, rec, out)
}

/// What a layer reads.
#[derive(Clone, Copy)]
pub(super) struct LayerInput {
    /// The tensor.
    pub(super) id: BufferId,
    /// Whether it is layer 0's own norm output.
    pub(super) kind: InputKind,
}

/// Where a layer's input comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputKind {
    /// Layer 0: a norm that made a tensor.
    Normed,
    /// The previous layer's output, normed in place.
    Previous,
}

impl LayerInput {
    /// The norm's own tensor, which dies with the attention.
    pub(super) fn normed(self) -> Option<BufferId> {
        (self.kind == InputKind::Normed).then_some(self.id)
    }
}

/// Multi-head form: keys and values of the new tokens, or of prefix and new tokens, expanded.
fn expanded(
    cx: &Cx<'_>,
    w: &Widths,
    rec: &mut Recorder,
    q_a: BufferId,
    form: Form,
) -> Vec<BufferId> {
    let query = rec.alloc(Q_B, 2, &[w.t, w.heads, w.qk]);
    rec.release([q_a]);
    let kv_a = rec.alloc(KV_A_NORM, 2, &[w.t, w.kv_lora]);
    let total = w.t.saturating_add(cx.step.prefix_tokens);
    if form == Form::OneShot {
        let gathered = gather(w, rec, total);
        rec.release([kv_a]);
        let mut locals = keys_and_values(w, rec, total);
        rec.release(gathered);
        locals.extend([query, rec.alloc(ATTN, 2, &[w.t, w.heads, w.v])]);
        return locals;
    }
    let mut locals = keys_and_values(w, rec, w.t);
    rec.release([kv_a]);
    let own = rec.alloc(ATTN, 2, &[w.t, w.heads, w.v]);
    locals.push(query);
    if form == Form::Chunked {
        let lse = rec.alloc(MHA_LSE, 4, &[w.t, w.heads]);
        locals.extend(prefix_chunks(cx, w, rec, [own, lse]));
    } else {
        locals.push(own);
    }
    locals
}

/// Latents of `rows` tokens read from the pool.
fn gather(w: &Widths, rec: &mut Recorder, rows: u64) -> [BufferId; 2] {
    [rec.alloc(PREFIX_LATENT, 2, &[rows, w.kv_lora]), rec.alloc(PREFIX_ROPE, 2, &[rows, w.rope])]
}

/// Expanded keys and values of `rows` tokens.
fn keys_and_values(w: &Widths, rec: &mut Recorder, rows: u64) -> Vec<BufferId> {
    vec![rec.alloc(KV_B, 2, &[rows, w.heads, w.kv]), rec.alloc(MHA_K, 2, &[rows, w.heads, w.qk])]
}

/// The prefix by chunks, each merged into the result so far. Read in the source, not recorded.
fn prefix_chunks(
    cx: &Cx<'_>,
    w: &Widths,
    rec: &mut Recorder,
    mut result: [BufferId; 2],
) -> [BufferId; 2] {
    let mut left = cx.step.prefix_tokens;
    while left > 0 {
        let rows = left.min(ONE_SHOT_MAX);
        left -= rows;
        let gathered = gather(w, rec, rows);
        let expanded = keys_and_values(w, rec, rows);
        rec.release(gathered);
        let out = rec.alloc(ATTN, 2, &[w.t, w.heads, w.v]);
        let lse = rec.alloc(MHA_LSE, 4, &[w.t, w.heads]);
        let merged =
            [rec.alloc(MERGED, 2, &[w.t, w.heads, w.v]), rec.alloc(MERGED_LSE, 4, &[w.t, w.heads])];
        rec.release(result.into_iter().chain(expanded).chain([out, lse]));
        result = merged;
    }
    result
}

/// Absorbed form: queries go through the key matrix, values are projected after the attention.
fn absorbed(w: &Widths, rec: &mut Recorder, q_a: BufferId) -> Vec<BufferId> {
    let kv_a = rec.alloc(KV_A_NORM, 2, &[w.t, w.kv_lora]);
    let query = rec.alloc(Q_B, 2, &[w.t, w.heads, w.qk]);
    rec.release([q_a]);
    let cached = w.kv_lora + w.rope;
    vec![
        kv_a,
        query,
        rec.alloc(Q_NOPE_ABSORBED, 2, &[w.heads, w.t, w.kv_lora]),
        rec.alloc(MLA_Q, 2, &[w.t, w.heads, cached]),
        rec.alloc(MLA_K, 2, &[w.t, cached]),
        rec.alloc(ATTN, 2, &[w.t, w.heads, w.kv_lora]),
        rec.alloc(MLA_V, 2, &[w.t, w.heads, w.v]),
    ]
}
