//! What one rank keeps per token and per request, as the pool rules ask for it.

use super::{
    facts::KvDtype,
    refusal::{Refusal, in_range},
    version::Version,
};

/// Heads of an MHA or GQA layer, before tensor parallelism.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// KV heads of the model.
    pub kv_heads: u64,
    /// Width of a key head.
    pub head_dim: u64,
    /// Width of a value head.
    pub v_head_dim: u64,
}

impl Heads {
    /// KV heads of one rank: replicated when there are fewer heads than ranks, floored otherwise.
    /// Source: SGLang `ModelConfig.get_num_kv_heads`.
    #[must_use]
    pub fn per_rank(&self, attn_tp_size: u64) -> u64 {
        (self.kv_heads / attn_tp_size.max(1)).max(1)
    }
}

/// How sparse attention stores an FP8 latent row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LatentRow {
    /// Latent, scales and 16-bit rope part in one row (656 bytes for 512 + 64).
    #[default]
    Packed,
    /// The plain layout of TRT-LLM, TileLang and ROCm raw backends (576 bytes).
    Raw,
}

/// A latent-attention layer; every rank keeps all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latent {
    /// Width of the latent.
    pub kv_lora_rank: u64,
    /// Width of the rotated part.
    pub qk_rope_head_dim: u64,
    /// Width of an index key; `None` without sparse attention.
    pub index_head_dim: Option<u64>,
    /// Layers that own an index (0.5.18 and later count only these); usually all.
    pub indexer_layers: u64,
    /// Storage of an FP8 row under sparse attention.
    pub row: LatentRow,
}

/// What a layer stores for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CellShape {
    /// Keys and values by head.
    Heads(Heads),
    /// One latent row.
    Latent(Latent),
}

/// Layers of a sliding-window hybrid as a list says them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerLists {
    /// All layers.
    pub total: u64,
    /// Full-attention layers.
    pub full: u64,
    /// Sliding-window layers.
    pub swa: u64,
}

/// A sliding-window hybrid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwaHybrid {
    /// Layers of this rank.
    pub layers: LayerLists,
    /// Layer lists that the uniform split to 0.5.8 divides by. The engine slices them per pipeline
    /// stage; a caller that keeps whole-model lists (as a stubbed run does) passes those.
    pub split_by: LayerLists,
    /// Heads of the sliding-window layers.
    pub swa_heads: Heads,
    /// Window in tokens, when known.
    pub window: Option<u64>,
    /// `swa_full_tokens_ratio`; 0.8 by default.
    pub ratio: f64,
}

/// How linear-attention state slots are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MambaStrategy {
    /// `no_buffer`.
    #[default]
    NoBuffer,
    /// `extra_buffer`: one or two more slots a request.
    ExtraBuffer,
    /// Lazy extra buffer: one more slot a request.
    Lazy,
}

/// A linear-attention or state-space hybrid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MambaHybrid {
    /// Full-attention layers of the whole model (counted on every stage to 0.5.7).
    pub whole_model_full_layers: u64,
    /// State bytes of one request as the sizing counts them on this rank.
    pub state_bytes_per_request: u64,
    /// `mamba_full_memory_ratio`; 0.9 by default.
    pub ratio: f64,
    /// `max_mamba_cache_size`, slots, when given.
    pub max_mamba_cache_size: Option<u64>,
    /// Strategy.
    pub strategy: MambaStrategy,
}

/// What differs from one uniform pool.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Hybrid {
    /// Nothing.
    None,
    /// Two pools, full and sliding-window.
    Swa(SwaHybrid),
    /// A pool for the full-attention layers and state slots.
    Mamba(MambaHybrid),
}

/// One rank's KV geometry.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KvGeometry {
    /// What a (full-attention) layer stores.
    pub shape: CellShape,
    /// Layers of this pipeline stage with KV; for a Mamba hybrid its full-attention layers.
    pub layers: u64,
    /// Ranks that share the KV heads.
    pub attn_tp_size: u64,
    /// Elements.
    pub dtype: KvDtype,
    /// Hybrids.
    pub hybrid: Hybrid,
    /// KV bytes of one token on this rank where the shape is not known (`--kv-bytes-per-token`);
    /// replaces the computed cell of a uniform pool.
    pub cell_override: Option<u64>,
}

impl KvGeometry {
    /// A uniform pool.
    #[must_use]
    pub const fn uniform(shape: CellShape, layers: u64, attn_tp_size: u64, dtype: KvDtype) -> Self {
        Self { shape, layers, attn_tp_size, dtype, hybrid: Hybrid::None, cell_override: None }
    }

    /// Sliding-window part, where the release gives it a pool of its own: from 0.4.10
    /// (0.4.9.post3); a model of sliding-window layers only is not special before 0.5.9.
    #[must_use]
    pub const fn swa(&self, v: Version) -> Option<&SwaHybrid> {
        match &self.hybrid {
            Hybrid::Swa(swa) if swa.layers.full == 0 && !v.since(5, 9) => None,
            Hybrid::Swa(swa) if v.since_post(4, 9, 3) => Some(swa),
            _ => None,
        }
    }

    /// Linear-attention part.
    #[must_use]
    pub const fn mamba(&self) -> Option<&MambaHybrid> {
        match &self.hybrid {
            Hybrid::Mamba(mamba) => Some(mamba),
            _ => None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Refusal> {
        const DIM: u64 = 1 << 20;
        in_range("layers", self.layers, 0, 10_000)?;
        in_range("attention tp size", self.attn_tp_size, 1, 1 << 16)?;
        let heads = |h: &Heads| -> Result<(), Refusal> {
            in_range("num_key_value_heads", h.kv_heads, 1, 1 << 16)?;
            in_range("head_dim", h.head_dim, 1, DIM)?;
            in_range("v_head_dim", h.v_head_dim, 1, DIM)
        };
        match &self.shape {
            CellShape::Heads(h) => heads(h)?,
            CellShape::Latent(l) => {
                in_range("kv_lora_rank", l.kv_lora_rank, 1, DIM)?;
                in_range("qk_rope_head_dim", l.qk_rope_head_dim, 0, DIM)?;
                in_range("index_head_dim", l.index_head_dim.unwrap_or(1), 1, DIM)?;
                in_range("layers with an index", l.indexer_layers, 0, 10_000)?;
            }
        }
        in_range("KV bytes of a token", self.cell_override.unwrap_or(1), 1, 1 << 40)?;
        match &self.hybrid {
            Hybrid::None => Ok(()),
            Hybrid::Swa(_) if matches!(self.shape, CellShape::Latent(_)) => {
                Err(Refusal::NotModelled {
                    what: "latent attention with sliding-window layers".to_owned(),
                    why: "its per-layer widths are not known",
                })
            }
            Hybrid::Swa(s) => {
                heads(&s.swa_heads)?;
                for list in [s.layers, s.split_by] {
                    in_range("layers", list.total.max(list.full).max(list.swa), 1, 10_000)?;
                }
                in_range("sliding_window", s.window.unwrap_or(1), 1, 1 << 40)?;
                in_range("swa_full_tokens_ratio", s.ratio, 1e-6, 1e6)
            }
            Hybrid::Mamba(m) => {
                in_range("full-attention layers", m.whole_model_full_layers, 0, 10_000)?;
                in_range("state bytes of a request", m.state_bytes_per_request, 1, 1 << 44)?;
                in_range("mamba_full_memory_ratio", m.ratio, 1e-6, 1e6)?;
                in_range("max_mamba_cache_size", m.max_mamba_cache_size.unwrap_or(1), 1, 1 << 32)
            }
        }
    }
}

/// The KV that a draft model keeps beside the target's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DraftKv {
    /// Draft KV layers; 0 when the engine cannot tell (a path-less head before 0.5.20).
    pub layers: u64,
    /// Bytes of one token in the draft's own pool, when its geometry is known; otherwise the
    /// target's width per layer is taken.
    pub cell_bytes: Option<u64>,
}
