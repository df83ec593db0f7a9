//! Attention beside recurrent states: one block size at which both pages are equal.

use super::{
    settings::Settings,
    spec::{Kind, LayerSpec},
};
use crate::{
    figure::{Tag, Why},
    units::Bytes,
};

/// The block size and padding of a hybrid model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HybridPages {
    /// Tokens of an attention block.
    pub block_size: u64,
    /// Bytes of an attention page, and of a padded mamba page.
    pub page_size: Bytes,
    /// Mamba page before padding.
    pub mamba_page: Bytes,
    /// Derivation.
    pub why: Why,
}

impl HybridPages {
    /// Padding in percent of the mamba page, as the engine prints it.
    #[must_use]
    pub fn padding_percent(&self) -> f64 {
        let (page, mamba) = (self.page_size.0 as f64, self.mamba_page.0 as f64);
        if mamba > 0.0 { 100.0 * (page - mamba) / mamba } else { 0.0 }
    }
}

/// The common page of attention layers (the largest token of them) and recurrent states: with
/// `k = max(kernel block, block_size)`, for latents with a floor, a block of
/// `k * cdiv(mamba page, k * bytes of a token)` tokens. `None` unless both kinds are present.
///
/// Source: vLLM 0.11+ `HybridAttentionMambaModelConfig.verify_and_update_config`, 0.18+
/// `Platform.update_block_size_for_backend`.
#[must_use]
pub fn pages(settings: &Settings, layers: &[LayerSpec]) -> Option<HybridPages> {
    let mamba = layers.iter().filter(|l| l.kind == Kind::Mamba).map(|l| l.bytes).max()?;
    let attention = layers.iter().filter(|l| l.kind != Kind::Mamba && l.caches());
    let widest = attention.max_by_key(|l| l.bytes)?;
    let k = settings.kernel_block.max(settings.block_size).max(floor(settings, widest.kind));
    let chunk = k.saturating_mul(widest.bytes).max(1);
    let block_size = k.saturating_mul(mamba.div_ceil(chunk).max(1));
    let page_size = Bytes(block_size.saturating_mul(widest.bytes));
    let why = Why::new(
        Tag::Computed,
        "k * cdiv(mamba page, k * bytes of a token), k = max(kernel block, block_size)",
        format!("{} HybridAttentionMambaModelConfig", settings.rules.release()),
    )
    .with("k", k)
    .with("mamba page", format!("{mamba} B"))
    .with("bytes of a token", widest.bytes);
    Some(HybridPages { block_size, page_size, mamba_page: Bytes(mamba), why })
}

/// Least alignment of a hybrid's block, tokens. Latents: 64 while the configuration class decides
/// (a public 0.11.1rc start of Kimi-Linear on two ranks, vllm issue 28228, has blocks of 960 = 15 x 64);
/// none where the backend's own blocks decide (0.18); 128 in late releases, whose decode kernels want
/// physical blocks in groups of 128 tokens. The first of those lies between 0.25 and 0.33; 0.27 is taken.
fn floor(settings: &Settings, kind: Kind) -> u64 {
    let version = settings.rules.version;
    if kind != Kind::Latent {
        1
    } else if (version.major, version.minor) < (0, 18) {
        64
    } else if (version.major, version.minor) >= (0, 27) {
        128
    } else {
        1
    }
}

/// Layers with the hybrid block size and padded mamba pages; unchanged when nothing is hybrid.
#[must_use]
pub fn apply(settings: &Settings, layers: &[LayerSpec]) -> (Vec<LayerSpec>, Option<HybridPages>) {
    let Some(pages) = pages(settings, layers) else {
        return (layers.to_vec(), None);
    };
    let adapted = layers
        .iter()
        .map(|layer| match layer.kind {
            Kind::Mamba => LayerSpec {
                page_size_padded: Some(pages.page_size),
                block_size: mamba_block(settings, pages.block_size),
                ..*layer
            },
            _ => LayerSpec { block_size: pages.block_size, ..*layer },
        })
        .collect();
    (adapted, Some(pages))
}

/// Without prefix caching one state serves a request of any length.
fn mamba_block(settings: &Settings, attention_block: u64) -> u64 {
    match settings.mamba_mode {
        super::settings::MambaMode::None => settings.max_model_len.ceiling(),
        _ => attention_block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::vllm::testing::settings;

    /// Kimi-Linear on two ranks: 16 heads of 128 x 128 in float32 and three taps of 6,144 channels.
    fn kimi(minor: u16, backend: Option<&str>) -> u64 {
        let settings = settings(minor, 131_072, |a| {
            a.attention_backend = backend.map(str::to_owned);
        });
        let mamba = LayerSpec::mamba(16 * 128 * 128 * 4 + 3 * 6_144 * 2, settings.block_size);
        let latent = LayerSpec::latent(576, 2, settings.block_size);
        pages(&settings, &[mamba, latent]).unwrap().block_size
    }

    #[test]
    fn blocks_of_latents_beside_states_by_release() {
        assert_eq!(kimi(11, None), 960);
        assert_eq!(kimi(11, Some("CUTLASS_MLA")), 1024);
        assert_eq!(kimi(20, Some("TRITON_MLA")), 944);
        assert_eq!(kimi(20, Some("FLASHMLA")), 960);
        assert_eq!(kimi(33, Some("TRITON_MLA")), 1024);
    }
}
