//! The vision tower: its size as SGLang's multimodal factor sees it, and its parameters.

use crate::model::{
    detail::{FactorInputs, VisionBasis, VisionWeights},
    error::ConfigError,
    fields::{Fields, LAYERS},
    geometry::VisionTower,
};

/// Widths in a tower: 1 to 65,536, so that no product leaves 64 bits.
const WIDTH: (u64, u64) = (1, 1 << 16);
/// Positions along one side.
const SIDE: (u64, u64) = (1, 1 << 12);

/// A tower, its weights, and what SGLang's factor sees of it.
pub(super) type Vision = (VisionTower, VisionWeights, FactorInputs);

/// Reads `vision_config`. Source of the two names that SGLang asks for (`num_hidden_layers`,
/// `hidden_size`; 24 and 1,024 when missing): `server_args.py`, multimodal factor. Kimi's own
/// configuration class gives them for its `vt_` names: a public 0.5.8.post1 start of Kimi-K2.5 prints
/// the automatic fraction 0.8260405859375 = 0.908 · 0.95 · 0.9576171875, which is 27 layers of 1,152.
pub(super) fn read(root: &Fields<'_>, text_hidden: u64) -> Result<Option<Vision>, ConfigError> {
    let Some(config) = root.object("vision_config")? else { return Ok(None) };
    let layer_keys = ["num_hidden_layers", "depth", "vt_num_hidden_layers", "layers"];
    let hidden_keys = ["hidden_size", "vt_hidden_size", "embed_dim", "width"];
    let layers = config.first(&layer_keys, LAYERS)?;
    let hidden = config.first(&hidden_keys, WIDTH)?;
    let asked_layers = config.first(&["num_hidden_layers", "vt_num_hidden_layers"], LAYERS)?;
    let asked_hidden = config.first(&["hidden_size", "vt_hidden_size"], WIDTH)?;
    let sized = asked_layers.is_some() && asked_hidden.is_some();
    let factor =
        FactorInputs { layers: asked_layers.unwrap_or(24), hidden: asked_hidden.unwrap_or(1024) };
    let (Some(layers), Some(hidden)) = (layers, hidden) else {
        let tower = VisionTower { layers: 24, hidden: 1024, intermediate: 4096, sized };
        let basis = VisionBasis::Unknown;
        return Ok(Some((tower, VisionWeights { sharded: 0, replicated: 0, basis }, factor)));
    };
    let width_keys = ["intermediate_size", "vt_intermediate_size"];
    let intermediate = match config.first(&width_keys, WIDTH)? {
        Some(width) => width,
        None => {
            let ratio = config.real("mlp_ratio")?.unwrap_or(4.0).clamp(0.0, 64.0);
            (hidden as f64 * ratio) as u64
        }
    };
    let tower = VisionTower { layers, hidden, intermediate, sized };
    let mut weights = weights(&config, &tower, text_hidden)?;
    if config.text("model_type")? == Some("pixtral") {
        weights.replicated += pixtral_projector(root, hidden, text_hidden)?;
    }
    Ok(Some((tower, weights, factor)))
}

/// What Pixtral's projector has beside one matrix to the text's width: the merger of patches, whose side
/// stands outside the tower's configuration, and a square matrix of the text's width. Source: vLLM and
/// SGLang `Mistral3MultiModalProjector`.
fn pixtral_projector(root: &Fields<'_>, hidden: u64, text_hidden: u64) -> Result<u64, ConfigError> {
    let merge = root.number("spatial_merge_size", LAYERS)?.map_or(1, |m| m.min(64).pow(2));
    let merger = if merge > 1 { hidden * merge * hidden } else { 0 };
    Ok(merger + text_hidden * text_hidden)
}

/// Attention of four square matrices, an MLP of two (three when `hidden_act` is silu, as in
/// Qwen2.5-VL, and in the gated forms of Gemma 4 and Pixtral), patch and position embeddings, and the merger.
fn weights(
    config: &Fields<'_>,
    tower: &VisionTower,
    text_hidden: u64,
) -> Result<VisionWeights, ConfigError> {
    let h = tower.hidden;
    let kind = config.text("model_type")?.unwrap_or("");
    let gated =
        config.text("hidden_act")? == Some("silu") || matches!(kind, "gemma4_vision" | "pixtral");
    let qkv = config.number("qkv_hidden_size", WIDTH)?.unwrap_or(h);
    let matrices = if gated { 3 } else { 2 };
    let attention = 4 * h * qkv + 4 * h;
    let mlp = matrices * h * tower.intermediate + tower.intermediate + h;
    let sharded = tower.layers * (attention + mlp + 4 * h);

    let channels = config.first(&["in_channels", "num_channels", "in_chans"], LAYERS)?.unwrap_or(3);
    let patch = config.first(&["patch_size", "spatial_patch_size"], LAYERS)?.unwrap_or(14);
    let frames = config.number("temporal_patch_size", LAYERS)?.unwrap_or(1);
    let position_keys = ["num_position_embeddings", "position_embedding_size"];
    let mut positions = config.first(&position_keys, WIDTH)?.unwrap_or(0);
    if kind == "gemma4_vision" {
        positions *= 2;
    }
    if let Some(side) = config.number("init_pos_emb_height", SIDE)? {
        positions = side * config.number("init_pos_emb_width", SIDE)?.unwrap_or(side);
    }
    let merge = match config.numbers("merge_kernel_size", LAYERS)? {
        Some(sides) => sides.iter().take(2).fold(1, |a, b| a * b.min(&64)),
        None => config.number("spatial_merge_size", LAYERS)?.map_or(1, |m| m.min(64).pow(2)),
    };
    let out = config.first(&["out_hidden_size", "text_hidden_size", "projection_dim"], WIDTH)?;
    let out = out.unwrap_or(text_hidden);
    let wide = h * merge;
    let merger = if merge > 1 { wide * wide + wide * out } else { wide * out };
    let deep = config.list("deepstack_visual_indexes")?.map_or(0, <[_]>::len).min(64) as u64;
    let named = ["qwen", "kimi", "gemma4", "pixtral"].iter().any(|f| kind.starts_with(f))
        || config.get("vt_hidden_size").is_some();
    Ok(VisionWeights {
        sharded,
        replicated: channels * patch * patch * frames * h + positions * h + merger * (1 + deep),
        basis: if named { VisionBasis::Modules } else { VisionBasis::Generic },
    })
}
