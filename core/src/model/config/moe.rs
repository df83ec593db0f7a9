//! The feed-forward part of each layer: dense, or a mixture of experts.

use crate::model::{
    error::ConfigError,
    fields::{EXPERTS, Fields, HEADS, LAYERS, LAYERS_OR_NONE, WIDTH, WIDTH_OR_NONE},
    geometry::Mlp,
};

use super::arch::{Arch, Shape};

const EXPERT_KEYS: [&str; 4] =
    ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
const TOP_K_KEYS: [&str; 6] = [
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "experts_per_token",
    "moe_top_k",
    "moe_k",
];
const SHARED_WIDTH_KEYS: [&str; 4] = [
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
    "shared_intermediate_size",
];
const SHARED_COUNT_KEYS: [&str; 3] =
    ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];

/// Width of a dense part; GPT-2's default of four times the model's width.
pub(super) fn dense_width(text: &Fields<'_>, hidden: u64) -> Result<u64, ConfigError> {
    let keys = ["dense_intermediate_size", "intermediate_size", "ffn_dim", "ffn_hidden_size"];
    if let Some(width) = text.first(&keys, WIDTH)? {
        return Ok(width);
    }
    if text.get("n_embd").is_some() {
        return Ok(text.number("n_inner", WIDTH)?.unwrap_or(4 * hidden));
    }
    Err(text.missing("intermediate_size"))
}

/// The mixture of one layer; `None` when the model has none.
pub(super) fn mixture(text: &Fields<'_>, arch: &Arch) -> Result<Option<Mlp>, ConfigError> {
    let experts = text.first(&EXPERT_KEYS, EXPERTS)?.unwrap_or(0);
    if experts == 0 || text.flag("enable_moe_block")? == Some(false) {
        return Ok(None);
    }
    let width_keys = ["moe_intermediate_size", "expert_intermediate_size", "intermediate_size"];
    let intermediate = text.need(&width_keys, WIDTH)?;
    let shared_intermediate = if arch.name.starts_with("Llama4") {
        intermediate
    } else if text.flag("enable_moe_block")? == Some(true) {
        // Gemma 4: the dense part runs beside the experts.
        text.need(&["intermediate_size"], WIDTH)?
    } else if let Some(width) = text.first(&SHARED_WIDTH_KEYS, WIDTH_OR_NONE)? {
        width
    } else {
        text.first(&SHARED_COUNT_KEYS, EXPERTS)?.unwrap_or(0) * intermediate
    };
    Ok(Some(Mlp::Moe {
        experts,
        top_k: text.need(&TOP_K_KEYS, HEADS)?,
        intermediate,
        shared_intermediate,
        matrices: arch.matrices,
    }))
}

/// The feed-forward part of each of `count` layers.
pub(super) fn layers(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    count: u64,
) -> Result<Vec<Mlp>, ConfigError> {
    let Some(moe) = mixture(text, arch)? else {
        let dense =
            Mlp::Dense { intermediate: dense_width(text, hidden)?, matrices: arch.matrices };
        return Ok(vec![dense; count as usize]);
    };
    let sparse = sparse_layers(text, count)?;
    if sparse.iter().all(|s| *s) {
        return Ok(vec![moe; count as usize]);
    }
    let width = match text.number("intermediate_size_mlp", WIDTH)? {
        Some(width) => width,
        None => dense_width(text, hidden)?,
    };
    let dense = Mlp::Dense { intermediate: width, matrices: arch.matrices };
    Ok(sparse.into_iter().map(|s| if s { moe } else { dense }).collect())
}

/// Which layers have experts.
fn sparse_layers(text: &Fields<'_>, count: u64) -> Result<Vec<bool>, ConfigError> {
    let length = |key: &str, found: usize| {
        if found as u64 == count {
            return Ok(());
        }
        let value = serde_json::Value::from(format!("{found} entries"));
        Err(text.wrong(key, &value, &format!("one entry for each of {count} layers")))
    };
    if let Some(types) = text.texts("mlp_layer_types")? {
        length("mlp_layer_types", types.len())?;
        return Ok(types.iter().map(|t| *t != "dense").collect());
    }
    let first = text.first(&["first_k_dense_replace"], LAYERS_OR_NONE)?.unwrap_or(0);
    if text.get("moe_layer_freq").is_some_and(serde_json::Value::is_array) {
        let list = text.numbers("moe_layer_freq", (0, 1))?.unwrap_or_default();
        length("moe_layer_freq", list.len())?;
        return Ok(list.into_iter().map(|n| n == 1).collect());
    }
    if let Some(list) = text.text("moe_layers_enum")? {
        let named = |i: u64| list.split(',').any(|t| t.trim().parse() == Ok(i));
        return Ok((0..count).map(named).collect());
    }
    if let Some(list) = text.numbers("moe_layers", LAYERS_OR_NONE)? {
        return Ok((0..count).map(|i| list.contains(&i)).collect());
    }
    let every = text.number("moe_layer_freq", LAYERS)?.unwrap_or(1);
    let step_keys = ["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"];
    let step = text.first(&step_keys, LAYERS)?.unwrap_or(1);
    let start = text.number("moe_layer_start_index", LAYERS_OR_NONE)?.unwrap_or(0);
    let dense_only = text.numbers("mlp_only_layers", LAYERS_OR_NONE)?.unwrap_or_default();
    Ok((0..count)
        .map(|i| {
            i >= first
                && i >= start
                && i % every == 0
                && (i + 1) % step == 0
                && !dense_only.contains(&i)
        })
        .collect())
}

/// The narrower space in which routed experts work.
pub(super) fn latent(text: &Fields<'_>, arch: &Arch) -> Result<Option<u64>, ConfigError> {
    match arch.shape {
        Shape::NemotronH | Shape::KimiLinear => {
            text.first(&["moe_latent_size", "routed_expert_hidden_size"], WIDTH)
        }
        _ => Ok(None),
    }
}
