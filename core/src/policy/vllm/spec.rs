//! KV cache specs: what one block of one layer takes, and how many blocks a request needs of it.

use super::settings::{MambaMode, Settings};
use crate::units::Bytes;

/// Bytes of one token of the packed latent cache `fp8_ds_mla` (512 fp8 + 16 of scales + 128 of
/// rotated part). Source: vLLM 0.11+ `MLAAttentionSpec.page_size_bytes`.
pub const FP8_DS_MLA_TOKEN: u64 = 656;
/// Bytes of one token of `nvfp4_ds_mla`. Source: vLLM 0.33 `MLAAttentionSpec.page_size_bytes`.
pub const NVFP4_DS_MLA_TOKEN: u64 = 352;

/// Which tokens of a request a layer keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// All of them, keys and values by head.
    Full,
    /// All of them, as one latent that every rank holds.
    Latent,
    /// The last `window` tokens.
    SlidingWindow {
        /// Window, tokens.
        window: u64,
    },
    /// The current chunk of `chunk` tokens.
    ChunkedLocal {
        /// Chunk, tokens.
        chunk: u64,
    },
    /// None: a state of fixed size.
    Mamba,
    /// None at all: encoder-only attention.
    EncoderOnly,
    /// The tokens of an encoder.
    CrossAttention {
        /// Longest encoder input, tokens.
        encoder_len: u64,
    },
}

impl Kind {
    /// Name as the engine's classes have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full attention",
            Self::Latent => "latent attention",
            Self::SlidingWindow { .. } => "sliding window",
            Self::ChunkedLocal { .. } => "chunked local attention",
            Self::Mamba => "mamba",
            Self::EncoderOnly => "encoder only",
            Self::CrossAttention { .. } => "cross attention",
        }
    }
}

/// What one layer of one rank caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSpec {
    /// Tokens kept.
    pub kind: Kind,
    /// Bytes of one token; for [`Kind::Mamba`] the bytes of all states of one request.
    pub bytes: u64,
    /// Tokens a block. For mamba it only matters where states are cached by block.
    pub block_size: u64,
    /// Page after padding, where it is padded to its neighbours' size.
    pub page_size_padded: Option<Bytes>,
}

/// One head-wise attention layer of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// KV heads of this rank: `max(1, total / tp)`.
    pub kv_heads: u64,
    /// Width of a key head.
    pub head_size: u64,
    /// Width of a value head.
    pub head_size_v: u64,
    /// Bytes of one element of the KV dtype.
    pub element: u64,
}

impl LayerSpec {
    const fn new(kind: Kind, bytes: u64, block_size: u64) -> Self {
        Self { kind, bytes, block_size, page_size_padded: None }
    }

    /// Keys and values by head: `kv_heads * (head_size + head_size_v) * element` bytes a token.
    /// Source: vLLM `AttentionSpec.page_size_bytes`.
    #[must_use]
    pub const fn heads(kind: Kind, heads: Heads, block_size: u64) -> Self {
        let width = heads.head_size.saturating_add(heads.head_size_v);
        let bytes = heads.kv_heads.saturating_mul(width).saturating_mul(heads.element);
        Self::new(kind, bytes, block_size)
    }

    /// One latent of `width` elements a token (`kv_lora_rank + rope`), no value part.
    #[must_use]
    pub const fn latent(width: u64, element: u64, block_size: u64) -> Self {
        Self::new(Kind::Latent, width.saturating_mul(element), block_size)
    }

    /// A packed latent of `bytes` a token ([`FP8_DS_MLA_TOKEN`], [`NVFP4_DS_MLA_TOKEN`]).
    #[must_use]
    pub const fn packed_latent(bytes: u64, block_size: u64) -> Self {
        Self::new(Kind::Latent, bytes, block_size)
    }

    /// The sparse index of DeepSeek V3.2: one byte an element and a float32 scale for each 128,
    /// 132 B a token at `head_dim` 128. Source: vLLM 0.11+ `DeepseekV32IndexerCache`.
    #[must_use]
    pub const fn indexer(head_dim: u64, block_size: u64) -> Self {
        let bytes = head_dim.saturating_add(head_dim.div_ceil(128).saturating_mul(4));
        Self::new(Kind::Latent, bytes, block_size)
    }

    /// A recurrent state of `bytes` for each request.
    #[must_use]
    pub const fn mamba(bytes: u64, block_size: u64) -> Self {
        Self::new(Kind::Mamba, bytes, block_size)
    }

    /// Bytes of one block of this layer, padding included.
    #[must_use]
    pub fn page_size(&self) -> Bytes {
        let own = match self.kind {
            Kind::Mamba => self.bytes,
            Kind::EncoderOnly => 0,
            _ => self.bytes.saturating_mul(self.block_size),
        };
        self.page_size_padded.map_or(Bytes(own), |padded| padded.max(Bytes(own)))
    }

    /// Whether the layer takes any memory.
    #[must_use]
    pub fn caches(&self) -> bool {
        self.page_size() > Bytes::ZERO
    }

    /// Blocks that one request of `len` tokens needs of this layer.
    ///
    /// Full and latent: `cdiv(len, n)` of the tokens of one decode-context-parallel rank; window w:
    /// `cdiv(min(w - 1 + in flight, len), n) + 1`; chunk c: `cdiv(min(c + in flight, len), n)`;
    /// mamba: 1 + draft tokens, with aligned prefix caching 2 + draft tokens.
    /// Source: vLLM `KVCacheSpec.max_memory_usage_bytes` by class.
    #[must_use]
    pub fn blocks(&self, settings: &Settings, len: u64) -> u64 {
        let n = self.block_size.max(1);
        let in_flight = settings.tokens_in_flight();
        let drafts = settings.num_speculative_tokens;
        match self.kind {
            Kind::Full | Kind::Latent => {
                len.div_ceil(settings.decode_context_parallel_size.max(1)).div_ceil(n)
            }
            Kind::SlidingWindow { window } => {
                window.saturating_sub(1).saturating_add(in_flight).min(len).div_ceil(n) + 1
            }
            Kind::ChunkedLocal { chunk } => chunk.saturating_add(in_flight).min(len).div_ceil(n),
            Kind::Mamba => match settings.mamba_mode {
                MambaMode::None => 1 + drafts,
                MambaMode::Align => 2 + drafts,
                MambaMode::All => len.div_ceil(n),
            },
            Kind::EncoderOnly => 0,
            Kind::CrossAttention { encoder_len } => encoder_len.div_ceil(n),
        }
    }
}

/// KV heads of one rank: `max(1, total / tp)`. Source: vLLM `ModelConfig.get_num_kv_heads`.
#[must_use]
pub const fn kv_heads_per_rank(total: u64, tensor_parallel_size: u64) -> u64 {
    let tp = if tensor_parallel_size == 0 { 1 } else { tensor_parallel_size };
    if total / tp == 0 { 1 } else { total / tp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_by_kind() {
        let heads = Heads { kv_heads: 2, head_size: 128, head_size_v: 128, element: 2 };
        assert_eq!(LayerSpec::heads(Kind::Full, heads, 16).page_size(), Bytes(16 * 1024));
        assert_eq!(LayerSpec::latent(576, 2, 64).page_size(), Bytes(64 * 1152));
        assert_eq!(LayerSpec::packed_latent(FP8_DS_MLA_TOKEN, 64).page_size(), Bytes(41_984));
        assert_eq!(LayerSpec::packed_latent(NVFP4_DS_MLA_TOKEN, 64).page_size(), Bytes(22_528));
        assert_eq!(LayerSpec::indexer(128, 64).page_size(), Bytes(64 * 132));
        assert_eq!(LayerSpec::mamba(1_603_584, 16).page_size(), Bytes(1_603_584));
        assert!(!LayerSpec::heads(Kind::EncoderOnly, heads, 16).caches());
        assert_eq!((kv_heads_per_rank(8, 4), kv_heads_per_rank(4, 8)), (2, 1));
    }
}
