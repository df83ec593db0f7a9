//! Vocabulary-parallel embedding.

use super::buffers::{
    EMBED, EMBED_IDS, EMBED_MASK, EMBED_OFFSET, EMBED_REDUCED, EMBED_TEST, ZERO_ALLOCATOR,
};
use super::collective::all_reduce;
use super::event::BufferId;
use super::recorder::Recorder;
use super::setup::{Code, Cx};

/// The residual stream of the first layer, `tokens × hidden`.
pub(super) fn embed(cx: &Cx<'_>, rec: &mut Recorder) -> BufferId {
    let masks = match cx.setup.code {
        Code::Sglang0508 | Code::Vllm019 if cx.setup.tp > 1 => Some(masked_ids(cx, rec)),
        _ => None,
    };
    let out = rec.alloc(EMBED, 2, &[cx.tokens(), cx.h()]);
    let reduced = all_reduce(cx, rec, EMBED_REDUCED);
    rec.release(masks.into_iter().flatten());
    match reduced {
        Some(reduced) => {
            rec.release([out]);
            reduced
        }
        None => out,
    }
}

/// Ids shifted into this rank's part and the mask of the others, made by plain tensor operators.
fn masked_ids(cx: &Cx<'_>, rec: &mut Recorder) -> [BufferId; 2] {
    let t = &[cx.tokens()];
    let inside = |rec: &mut Recorder| {
        let (low, high) = (rec.alloc(EMBED_TEST, 1, t), rec.alloc(EMBED_TEST, 1, t));
        let mask = rec.alloc(EMBED_MASK, 1, t);
        rec.release([low, high]);
        mask
    };
    let (own, added) = (inside(rec), inside(rec));
    let (first, second) = (rec.alloc(EMBED_OFFSET, 8, t), rec.alloc(EMBED_OFFSET, 8, t));
    let offset = rec.alloc(EMBED_OFFSET, 8, t);
    rec.release([first, second]);
    let either = rec.alloc(EMBED_MASK, 1, t);
    let shifted = rec.alloc(EMBED_OFFSET, 8, t);
    let ids = rec.alloc(EMBED_IDS, 8, t);
    rec.release([shifted]);
    let others = rec.alloc(EMBED_MASK, 1, t);
    rec.release([own, added, offset, either]);
    [ids, others]
}

/// DeepSeek's zeroed scratch of two floats a layer.
pub(super) fn zero_allocator(cx: &Cx<'_>, rec: &mut Recorder) -> BufferId {
    rec.alloc(ZERO_ALLOCATOR, 4, &[2, cx.model.layers.len() as u64])
}
