//! The model loop of SGLang: embedding, layers, final norm.

use super::buffers::INPUT_NORM;
use super::dense;
use super::embedding::{embed, zero_allocator};
use super::event::BufferId;
use super::gqa;
use super::mla::{self, InputKind, LayerInput};
use super::moe;
use super::recorder::Recorder;
use super::series::Series;
use super::setup::{Cx, LayerMlp};

/// Embedding and layers; the final hidden states.
///
/// The loop holds the previous layer's output until the layer returns. Residual and output are added
/// and normed in place, except that layer 0 norms the embedding into a new tensor.
pub(super) fn layers(cx: &Cx<'_>, rec: &mut Recorder) -> BufferId {
    let latent = cx.rank.mla;
    // DeepSeek: made before the embedding in 0.5.8, after it in 0.5.23.
    let early = (latent.is_some() && cx.is_0508()).then(|| zero_allocator(cx, rec));
    let stream = embed(cx, rec);
    let late = (latent.is_some() && !cx.is_0508()).then(|| zero_allocator(cx, rec));
    let mut held = Vec::new();
    let mut hidden: Option<BufferId> = None;
    let (mut series, mut layer) = (Series::default(), 0);
    loop {
        if held.is_empty() {
            layer += series.copy(rec, &cx.model.layers, layer, &mut hidden);
        } else {
            series.forget();
        }
        let Some(mlp) = cx.model.layers.get(layer) else { break };
        rec.in_layer(u32::try_from(layer).ok());
        rec.op();
        let input = match hidden {
            None => {
                let id = rec.alloc(INPUT_NORM, 2, &[cx.tokens(), cx.h()]);
                LayerInput { id, kind: InputKind::Normed }
            }
            Some(id) => LayerInput { id, kind: InputKind::Previous },
        };
        let attn = match &latent {
            Some(latent) => mla::attention(cx, latent, rec, input, &mut held),
            None => gqa::attention(cx, rec, input.normed()),
        };
        rec.op();
        let out = match (mlp, &cx.rank.moe) {
            (LayerMlp::Experts, Some(moe)) => moe::layer(cx, moe, rec, attn),
            _ => dense::mlp(cx, rec, attn),
        };
        if held.is_empty() {
            rec.release(hidden);
        }
        hidden = Some(out);
        layer += 1;
    }
    rec.in_layer(None);
    rec.op();
    rec.release(held.into_iter().chain(early).chain(late));
    rec.release(hidden.map(|_| stream));
    hidden.unwrap_or(stream)
}
