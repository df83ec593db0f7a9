//! SGLang's laptop backend (MLX on Metal): an assumed model of what one forward pass takes outside
//! the slots. Nothing of it was recorded.
//!
//! MLX evaluates a whole pass at once and lets a buffer go when the commands that read it are done,
//! so more than one layer is in flight. What the engine's own code says is kept: every request has
//! copies of its keys and values outside the slots; a batch pads and joins them for each layer; the
//! head sees every token of a prompt before the last row is taken.

use super::buffers::{
    MLX_ATTENTION, MLX_HIDDEN, MLX_JOINED_KV, MLX_LAST_LOGITS, MLX_LOGITS, MLX_MLP, MLX_REQUEST_KV,
};
use super::event::Tape;
use super::recorder::Recorder;
use crate::estimate::shape::{MlaRank, MoeRank, Rank, ShapeInputs, narrow};
use crate::units::{Bytes, Tokens};

/// Layers whose buffers are held at a time, assumed: one that runs and one that is encoded.
const IN_FLIGHT: u64 = 2;

/// Copies of a batch's keys and values in one layer: padded to the longest, then joined.
/// Source: SGLang `hardware_backend/mlx`, attention wrapper, batched decode.
const COPIES: u64 = 2;

/// Shortest copy that a request keeps of its keys and values, tokens; doubled until it holds them.
/// Source: SGLang `hardware_backend/mlx`, contiguous cache (default length, growth).
const REQUEST_KV_TOKENS: u64 = 4096;

/// One forward pass of MLX over `tokens` new tokens of `requests` requests, which together attend to
/// `context_tokens` tokens, the new ones included. 16-bit elements; sizes saturate, zeros count as one.
///
/// **Assumed throughout**, as few buffers: the requests' own keys and values as far as they are used
/// (live through the pass), then the layers in flight, then the logits of all new tokens and the
/// float32 rows that are sampled from.
#[must_use]
pub fn mlx_pass(shape: &ShapeInputs, tokens: u64, requests: u64, context_tokens: u64) -> Tape {
    let rank = shape.rank(1);
    let (tokens, requests) = (tokens.max(1), requests.max(1));
    let context = context_tokens.max(tokens);
    let (q, kv) = widths(&rank);
    let mut rec = Recorder::default();
    let own = rec.alloc(MLX_REQUEST_KV, 2, &[shape.layers.max(1), context, kv]);
    let hidden = rec.alloc(MLX_HIDDEN, 2, &[tokens, narrow(rank.h)]);
    let projected = q.saturating_mul(2).saturating_add(kv);
    let layer = [
        rec.alloc(MLX_ATTENTION, 2, &[IN_FLIGHT, tokens, projected]),
        rec.alloc(MLX_JOINED_KV, 2, &[IN_FLIGHT, COPIES, context, kv]),
        rec.alloc(MLX_MLP, 2, &[IN_FLIGHT, tokens, mlp_width(&rank)]),
    ];
    rec.release(layer);
    let vocab = narrow(rank.v);
    let logits = rec.alloc(MLX_LOGITS, 2, &[tokens, vocab]);
    rec.release([hidden]);
    let rows = rec.alloc(MLX_LAST_LOGITS, 4, &[requests, vocab]);
    rec.release([logits, rows, own]);
    rec.finish()
}

/// What a request's own copies of its keys and values take when their unused part counts too: a
/// power of two times 4096 tokens, all layers. Not in [`mlx_pass`], which counts what is used.
#[must_use]
pub fn mlx_request_kv(shape: &ShapeInputs, tokens: Tokens) -> Bytes {
    let mut length = REQUEST_KV_TOKENS;
    while length < tokens.0 {
        length = length.saturating_mul(2);
    }
    let (_, kv) = widths(&shape.rank(1));
    Bytes(2_u64.saturating_mul(kv).saturating_mul(length).saturating_mul(shape.layers.max(1)))
}

/// Elements a token has as queries, and as keys and values together, in one layer.
fn widths(rank: &Rank) -> (u64, u64) {
    match rank.mla {
        None => (narrow(rank.q), narrow(2 * rank.kv)),
        Some(MlaRank { heads, kv_lora, nope, rope, .. }) => {
            (narrow(heads * (nope + rope)), narrow(kv_lora + rope))
        }
    }
}

/// Elements a token has in the widest MLP: gate, up and their product, and its output.
fn mlp_width(rank: &Rank) -> u64 {
    let experts =
        rank.moe.map_or(0, |MoeRank { k, m, shared, .. }| k * (3 * m + rank.h) + 3 * shared);
    narrow((3 * rank.i).max(experts) + rank.h)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::shape::{AttentionShape, MlpNames, QkNorm};
    use proptest::prelude::*;

    /// Qwen3-0.6B, the model of the empty pool.
    const SMALL: ShapeInputs = ShapeInputs {
        hidden: 1024,
        attention: AttentionShape::Gqa { q_heads: 16, kv_heads: 8, head_dim: 128 },
        dense_intermediate: 3072,
        moe: None,
        vocab: 151_936,
        layers: 28,
        mlp_names: MlpNames::Kept,
        qk_norm: QkNorm::Copied,
    };

    #[test]
    fn thirty_two_requests_need_two_gib_outside_a_pool_that_they_hardly_fill() {
        let tape = mlx_pass(&SMALL, 32, 32, 16_095);
        let own = tape.find("mlx.request_kv").unwrap().bytes;
        assert_eq!(own, Bytes(16_095 * 114_688));
        let peak = tape.peak().bytes.as_gib_f64();
        assert!((1.9..2.1).contains(&peak), "{peak}");
    }

    #[test]
    fn a_prompt_has_logits_for_all_of_its_tokens() {
        let tape = mlx_pass(&SMALL, 4096, 1, 4096);
        assert_eq!(tape.largest().unwrap().name.buffer.name, "mlx.logits");
        assert_eq!(tape.largest().unwrap().bytes, Bytes(4096 * 151_936 * 2));
    }

    #[test]
    fn a_requests_own_copy_doubles_from_4096_tokens() {
        let sizes = [1, 4096, 4097, 10_000].map(|n| mlx_request_kv(&SMALL, Tokens(n)).0 / 114_688);
        assert_eq!(sizes, [4096, 4096, 8192, 16_384]);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_needs_less(
            tokens in 1..9000_u64, requests in 1..300_u64, context in 1..2_000_000_u64,
        ) {
            let peak = |t, r, c| mlx_pass(&SMALL, t, r, c).peak().bytes;
            let base = peak(tokens, requests, context);
            prop_assert!(peak(tokens + 1, requests, context) >= base);
            prop_assert!(peak(tokens, requests + 1, context) >= base);
            prop_assert!(peak(tokens, requests, context + 1) >= base);
            let all = mlx_pass(&SMALL, tokens, requests, context);
            prop_assert!(all.live_after(all.events().len()).is_empty());
        }
    }
}
