//! Grouped-query attention of SGLang: Llama, Qwen2, Qwen3, Mixtral, Qwen3-MoE.

use super::buffers::{ATTN, ATTN_REDUCED, O_PROJ, QKV};
use super::collective::all_reduce;
use super::event::BufferId;
use super::recorder::Recorder;
use super::setup::{Cx, Family};
use crate::estimate::shape::narrow;

/// From the normed input to the output projection, which becomes the input of the MLP.
///
/// `normed` is layer 0's own norm output; later layers norm in place. Rope and per-head norms work
/// in place. In 0.5.8 Llama, Qwen2 and Mixtral all-reduce inside the linear, while its inputs are
/// still referenced; the communicator (Qwen3, all of 0.5.23) after they are gone.
pub(super) fn attention(cx: &Cx<'_>, rec: &mut Recorder, normed: Option<BufferId>) -> BufferId {
    let t = cx.tokens();
    let (q, kv) = (narrow(cx.rank.q), narrow(cx.rank.kv));
    let qkv = rec.alloc(QKV, 2, &[t, q + 2 * kv]);
    let attn = rec.alloc(ATTN, 2, &[t, q]);
    let out = rec.alloc(O_PROJ, 2, &[t, cx.h()]);
    let inputs = normed.into_iter().chain([qkv, attn]);
    let in_linear =
        cx.is_0508() && matches!(cx.model.family, Family::Llama | Family::Qwen2 | Family::Mixtral);
    if in_linear {
        let reduced = all_reduce(cx, rec, ATTN_REDUCED);
        rec.release(inputs);
        rec.release(reduced.map(|_| out));
        return reduced.unwrap_or(out);
    }
    rec.release(inputs);
    reduce_by_communicator(cx, rec, out)
}

/// All-reduce of the attention output by the layer's communicator.
pub(super) fn reduce_by_communicator(cx: &Cx<'_>, rec: &mut Recorder, out: BufferId) -> BufferId {
    let reduced = all_reduce(cx, rec, ATTN_REDUCED);
    rec.release(reduced.map(|_| out));
    reduced.unwrap_or(out)
}
