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
/// `k = max(kernel block, block_size)` (128 at least for latents), a block of
/// `k * cdiv(mamba page, k * bytes of a token)` tokens. `None` unless both kinds are present.
///
/// Source: vLLM 0.11+ `HybridAttentionMambaModelConfig.verify_and_update_config`.
#[must_use]
pub fn pages(settings: &Settings, layers: &[LayerSpec]) -> Option<HybridPages> {
    let mamba = layers.iter().filter(|l| l.kind == Kind::Mamba).map(|l| l.bytes).max()?;
    let attention = layers.iter().filter(|l| l.kind != Kind::Mamba && l.caches());
    let widest = attention.max_by_key(|l| l.bytes)?;
    let least = if widest.kind == Kind::Latent { 128 } else { 1 };
    let k = settings.kernel_block.max(settings.block_size).max(least);
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
