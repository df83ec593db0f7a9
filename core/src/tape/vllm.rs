//! vLLM 0.19 run eagerly: the same layers, every all-reduce out of place, one static workspace for
//! all experts, norms of queries and keys by copies.

use super::blocks::{self, Fp8};
use super::buffers::{
    ACT, ATTN, ATTN_REDUCED, DOWN, EXPERT_IDS, EXPERTS_OUT, GATE_UP, INPUT_NORM, K_NORM,
    MLP_REDUCED, O_PROJ, PADDED_COUNT, Q_NORM, QKV, ROUTER, SORTED_IDS, TOPK_IDS, TOPK_SOURCE,
    TOPK_WEIGHTS, VLLM_WORKSPACE,
};
use super::collective::all_reduce;
use super::embedding::embed;
use super::event::BufferId;
use super::recorder::Recorder;
use super::series::Series;
use super::setup::{Cx, Family, LayerMlp, Once};
use crate::estimate::shape::{MlpNames, MoeRank, QkNorm, narrow};

/// Embedding and layers; the final hidden states.
pub(super) fn layers(cx: &Cx<'_>, rec: &mut Recorder) -> BufferId {
    let stream = embed(cx, rec);
    let mut hidden = None;
    let mut workspace = cx.setup.workspace;
    let (mut series, mut layer) = (Series::default(), 0);
    loop {
        layer += series.copy(rec, &cx.model.layers, layer, &mut hidden);
        let Some(mlp) = cx.model.layers.get(layer) else { break };
        rec.in_layer(u32::try_from(layer).ok());
        rec.op();
        let normed = match hidden {
            None => Some(rec.alloc(INPUT_NORM, 2, &[cx.tokens(), cx.h()])),
            Some(_) => None,
        };
        let attn = attention(cx, rec, normed);
        rec.op();
        let out = match (mlp, cx.rank.moe) {
            (LayerMlp::Experts, Some(moe)) => experts(cx, &moe, rec, attn, &mut workspace),
            _ => dense(cx, rec, attn),
        };
        rec.release(hidden);
        hidden = Some(out);
        layer += 1;
    }
    rec.in_layer(None);
    rec.op();
    rec.release(hidden.map(|_| stream));
    hidden.unwrap_or(stream)
}

fn attention(cx: &Cx<'_>, rec: &mut Recorder, normed: Option<BufferId>) -> BufferId {
    let t = cx.tokens();
    let (q, kv) = (narrow(cx.rank.q), narrow(cx.rank.kv));
    let mut locals = vec![rec.alloc(QKV, 2, &[t, q + 2 * kv])];
    if cx.model.shape.qk_norm == QkNorm::Copied {
        locals.push(rec.alloc(Q_NORM, 2, &[t, q]));
        locals.push(rec.alloc(K_NORM, 2, &[t, kv]));
    }
    locals.push(rec.alloc(ATTN, 2, &[t, q]));
    let out = rec.alloc(O_PROJ, 2, &[t, cx.h()]);
    let reduced = all_reduce(cx, rec, ATTN_REDUCED);
    rec.release(locals.into_iter().chain(normed).chain(reduced.map(|_| out)));
    reduced.unwrap_or(out)
}

/// The MLP; where the code uses one name for `gate_up` and the activation (Llama), `gate_up` dies
/// before `down_proj`.
fn dense(cx: &Cx<'_>, rec: &mut Recorder, input: BufferId) -> BufferId {
    let (t, i) = (cx.tokens(), narrow(cx.rank.i));
    let gate_up = rec.alloc(GATE_UP, 2, &[t, 2 * i]);
    let act = rec.alloc(ACT, 2, &[t, i]);
    let early = cx.model.shape.mlp_names == MlpNames::Reused;
    rec.release(early.then_some(gate_up));
    let down = rec.alloc(DOWN, 2, &[t, cx.h()]);
    let reduced = all_reduce(cx, rec, MLP_REDUCED);
    rec.release((!early).then_some(gate_up));
    rec.release([input, act]);
    rec.release(reduced.map(|_| down));
    reduced.unwrap_or(down)
}

/// Routed experts through the modular kernel.
fn experts(
    cx: &Cx<'_>,
    moe: &MoeRank,
    rec: &mut Recorder,
    input: BufferId,
    workspace: &mut Once,
) -> BufferId {
    let (t, h) = (cx.tokens(), cx.h());
    let (e, k, m) = (narrow(moe.e), narrow(moe.k), narrow(moe.m));
    let router = rec.alloc(ROUTER, 2, &[t, e]);
    let chosen = [rec.alloc(TOPK_WEIGHTS, 4, &[t, k]), rec.alloc(TOPK_IDS, 4, &[t, k])];
    let source = rec.alloc(TOPK_SOURCE, 4, &[t, k]);
    rec.release([source]);
    let out = rec.alloc(EXPERTS_OUT, 2, &[t, h]);
    if *workspace == Once::Made {
        // Both GEMM caches, in bytes; grown to the largest step, that is in the profile run.
        let elements = m.max(h).saturating_add((2 * m).max(h));
        rec.alloc(VLLM_WORKSPACE, 2, &[t, k, elements]);
        *workspace = Once::Exists;
    }
    let lists = sort_tokens(cx, rec, (e, k, m));
    rec.release(lists);
    rec.op();
    rec.release(chosen);
    rec.op();
    let reduced = all_reduce(cx, rec, MLP_REDUCED);
    rec.release(reduced.map(|_| out));
    if cx.model.family == Family::Mixtral {
        // The expert layer itself reduces, and returns before the model's locals die.
        rec.op();
    }
    rec.release([input, router]);
    reduced.unwrap_or(out)
}

/// Token lists by expert, padded to whole blocks. Source: vLLM `moe_align_block_size`.
fn sort_tokens(cx: &Cx<'_>, rec: &mut Recorder, (e, k, m): (u64, u64, u64)) -> [BufferId; 3] {
    let block = blocks::triton(cx.setup.blocks, cx.setup.code, Fp8::No, (e, m), cx.tokens()).rows;
    let pairs = cx.tokens().saturating_mul(k);
    let padded = pairs.saturating_add(e.saturating_mul(block - 1));
    let ids = if pairs < e { padded.min(pairs.saturating_mul(block)) } else { padded };
    [
        rec.alloc(SORTED_IDS, 4, &[ids]),
        rec.alloc(EXPERT_IDS, 4, &[ids.div_ceil(block)]),
        rec.alloc(PADDED_COUNT, 4, &[1]),
    ]
}
