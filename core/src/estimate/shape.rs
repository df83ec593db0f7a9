//! The numbers of a model that decide what a forward pass allocates, and their reading from the geometry.

use crate::model::geometry::{Attention, Mlp, ModelGeometry};

/// The widest attention of the model, before tensor parallelism.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionShape {
    /// Multi-head or grouped-query attention.
    Gqa {
        /// Query heads.
        q_heads: u64,
        /// Key-value heads.
        kv_heads: u64,
        /// Width of a head.
        head_dim: u64,
    },
    /// Multi-head latent attention.
    Mla {
        /// Query heads.
        q_heads: u64,
        /// Rank of the query projection; 0 when it is one matrix.
        q_lora_rank: u64,
        /// Width of the latent.
        kv_lora_rank: u64,
        /// Width of a head's unrotated part.
        qk_nope_head_dim: u64,
        /// Width of the rotated part.
        qk_rope_head_dim: u64,
        /// Width of a value head.
        v_head_dim: u64,
    },
}

/// Mixture-of-experts numbers, before tensor parallelism.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoeShape {
    /// Routed experts.
    pub experts: u64,
    /// Experts a token visits.
    pub top_k: u64,
    /// Intermediate width of one expert.
    pub intermediate: u64,
    /// Total intermediate width of the shared experts; 0 for none.
    pub shared_intermediate: u64,
}

/// What the layer code of vLLM does with its intermediate tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MlpNames {
    /// `gate_up` lives until the end of the MLP (Qwen2, Qwen3, …).
    Kept,
    /// The name is used again, so `gate_up` dies before `down_proj` (Llama, Mistral).
    Reused,
}

/// Whether queries and keys are normed per head (a copy of each in vLLM's Qwen3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QkNorm {
    /// No.
    Absent,
    /// Yes, by a copy.
    Copied,
}

/// Numbers of one model, whole (before tensor parallelism). Activations are 16-bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShapeInputs {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Widest attention.
    pub attention: AttentionShape,
    /// Widest dense MLP; 0 when every layer is a mixture of experts.
    pub dense_intermediate: u64,
    /// Mixture of experts, when there is one.
    pub moe: Option<MoeShape>,
    /// Rows of the vocabulary.
    pub vocab: u64,
    /// Layers.
    pub layers: u64,
    /// vLLM's treatment of `gate_up`.
    pub mlp_names: MlpNames,
    /// Per-head norms.
    pub qk_norm: QkNorm,
}

/// Bytes of one activation element (bfloat16 or float16).
pub(crate) const U: u128 = 2;

impl ShapeInputs {
    /// Reads the numbers from a geometry: the widest layer of each kind. Layers without key-value
    /// heads (state spaces) count by their heads, as attention of the same width.
    #[must_use]
    pub fn from_geometry(model: &ModelGeometry) -> Self {
        let mut attention = AttentionShape::Gqa { q_heads: 0, kv_heads: 0, head_dim: 0 };
        let mut dense_intermediate = 0;
        let mut moe = None;
        for layer in &model.layers {
            if let Some(shape) = attention_shape(&layer.attention)
                && shape.width() > attention.width()
            {
                attention = shape;
            }
            match layer.mlp {
                Mlp::Dense { intermediate, .. } => {
                    dense_intermediate = dense_intermediate.max(intermediate);
                }
                Mlp::Moe { experts, top_k, intermediate, shared_intermediate, .. } => {
                    moe = Some(MoeShape { experts, top_k, intermediate, shared_intermediate });
                }
                Mlp::None => {}
            }
        }
        let reused = ["llama", "mistral"].contains(&model.model_type.as_str());
        let qk_norm = model.model_type.starts_with("qwen3");
        Self {
            hidden: model.hidden_size,
            attention,
            dense_intermediate,
            moe,
            vocab: model.vocab_size,
            layers: model.layers.len() as u64,
            mlp_names: if reused { MlpNames::Reused } else { MlpNames::Kept },
            qk_norm: if qk_norm { QkNorm::Copied } else { QkNorm::Absent },
        }
    }
}

fn attention_shape(attention: &Attention) -> Option<AttentionShape> {
    match *attention {
        Attention::Gqa { q_heads, kv_heads, head_dim, .. } => {
            Some(AttentionShape::Gqa { q_heads, kv_heads, head_dim })
        }
        Attention::Mla {
            q_heads,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            ..
        } => Some(AttentionShape::Mla {
            q_heads,
            q_lora_rank: q_lora_rank.unwrap_or(0),
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
        }),
        Attention::Linear(state) => Some(AttentionShape::Gqa {
            q_heads: state.heads,
            kv_heads: state.groups,
            head_dim: state.head_dim,
        }),
        Attention::None => None,
    }
}

impl AttentionShape {
    /// Elements a token takes in the projections, for choosing the widest layer.
    fn width(self) -> u64 {
        match self {
            Self::Gqa { q_heads, kv_heads, head_dim } => {
                q_heads.saturating_mul(head_dim).saturating_add(kv_heads.saturating_mul(head_dim))
            }
            Self::Mla { q_heads, qk_nope_head_dim, v_head_dim, .. } => {
                q_heads.saturating_mul(qk_nope_head_dim.saturating_add(v_head_dim))
            }
        }
    }
}

/// The shape as one tensor-parallel rank sees it; names as in the formulas. The numbers are capped at
/// 2^32 and wide, so that no formula overflows on a malformed configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// Hidden width, not divided.
    pub(crate) h: u128,
    /// Dense intermediate / tp.
    pub(crate) i: u128,
    /// Query width / tp.
    pub(crate) q: u128,
    /// Key or value width / tp, at least one head.
    pub(crate) kv: u128,
    /// MLA numbers.
    pub(crate) mla: Option<MlaRank>,
    /// MoE numbers.
    pub(crate) moe: Option<MoeRank>,
    /// Vocabulary, whole.
    pub(crate) v: u128,
    /// Ranks.
    pub(crate) tp: u128,
}

/// MLA on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlaRank {
    /// Heads / tp.
    pub(crate) heads: u128,
    /// `q_lora + kv_lora + rope`.
    pub(crate) lat: u128,
    /// `kv_lora_rank`.
    pub(crate) kv_lora: u128,
    /// `qk_nope_head_dim`.
    pub(crate) nope: u128,
    /// `qk_rope_head_dim`.
    pub(crate) rope: u128,
    /// `v_head_dim`.
    pub(crate) v: u128,
}

/// MoE on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeRank {
    /// Experts.
    pub(crate) e: u128,
    /// `top_k`.
    pub(crate) k: u128,
    /// Intermediate / tp.
    pub(crate) m: u128,
    /// Shared intermediate / tp; 0 for none.
    pub(crate) shared: u128,
}

/// A count for the formulas: capped at 2^32.
pub(crate) fn wide(n: u64) -> u128 {
    u128::from(n.min(1 << 32))
}

/// A result of the formulas: saturates.
pub(crate) fn narrow(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl ShapeInputs {
    /// Divides by `tp` (at least 1).
    pub(crate) fn rank(&self, tp: u64) -> Rank {
        let tp = wide(tp.max(1));
        let (q, kv, mla) = match self.attention {
            AttentionShape::Gqa { q_heads, kv_heads, head_dim } => {
                let kv_heads = wide(kv_heads);
                let kv_heads = (kv_heads / tp).max(kv_heads.min(1));
                (wide(q_heads) * wide(head_dim) / tp, kv_heads * wide(head_dim), None)
            }
            AttentionShape::Mla {
                q_heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim,
                qk_rope_head_dim,
                v_head_dim,
            } => {
                let mla = MlaRank {
                    heads: (wide(q_heads) / tp).max(1),
                    lat: wide(q_lora_rank) + wide(kv_lora_rank) + wide(qk_rope_head_dim),
                    kv_lora: wide(kv_lora_rank),
                    nope: wide(qk_nope_head_dim),
                    rope: wide(qk_rope_head_dim),
                    v: wide(v_head_dim),
                };
                (0, 0, Some(mla))
            }
        };
        let moe = self.moe.map(|moe| MoeRank {
            e: wide(moe.experts),
            k: wide(moe.top_k),
            m: (wide(moe.intermediate) / tp).max(1),
            shared: wide(moe.shared_intermediate) / tp,
        });
        let (h, i, v) = (wide(self.hidden), wide(self.dense_intermediate) / tp, wide(self.vocab));
        Rank { h, i, q, kv, mla, moe, v, tp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_divide_and_never_overflow() {
        let gqa = AttentionShape::Gqa { q_heads: 64, kv_heads: 4, head_dim: 128 };
        let shape = ShapeInputs {
            hidden: u64::MAX,
            attention: gqa,
            dense_intermediate: 6144,
            moe: None,
            vocab: 151_936,
            layers: 94,
            mlp_names: MlpNames::Kept,
            qk_norm: QkNorm::Copied,
        };
        let rank = shape.rank(8);
        assert_eq!((rank.q, rank.kv, rank.i), (1024, 128, 768));
        assert_eq!(narrow(rank.h * rank.h * rank.h), u64::MAX);
        assert_eq!(shape.rank(0).tp, 1);
    }
}
