//! Layers of models with linear attention or state-space layers.

use crate::model::{
    error::ConfigError,
    fields::{Fields, HEADS, LAYERS, LAYERS_OR_NONE, WIDTH},
    geometry::{Attention, Layer, LinearKind, LinearState, Mlp, Span},
};

use super::{
    arch::Arch,
    decoder::{self, one_each},
    mla, moe,
};

type Built = Result<Vec<Layer>, ConfigError>;

/// Gated DeltaNet of Qwen3-Next and Qwen3.5.
fn gdn(text: &Fields<'_>) -> Result<LinearState, ConfigError> {
    let heads = text.need(&["linear_num_value_heads"], HEADS)?;
    let head_dim = text.need(&["linear_value_head_dim"], WIDTH)?;
    let groups = text.need(&["linear_num_key_heads"], HEADS)?;
    let state_dim = text.need(&["linear_key_head_dim"], WIDTH)?;
    Ok(LinearState {
        kind: LinearKind::Gdn,
        heads,
        head_dim,
        state_dim,
        conv_channels: 2 * groups * state_dim + heads * head_dim,
        conv_kernel: text.need(&["linear_conv_kernel_dim"], LAYERS)?,
        groups,
    })
}

/// Mamba-2 by the names that Nemotron-H, Granite 4 and Falcon-H1 use.
fn mamba2(text: &Fields<'_>) -> Result<LinearState, ConfigError> {
    let heads = text.need(&["mamba_num_heads", "mamba_n_heads"], HEADS)?;
    let inner = text.number("mamba_d_ssm", WIDTH)?;
    let head_dim = match text.first(&["mamba_head_dim", "mamba_d_head"], WIDTH) {
        Ok(Some(dim)) => dim,
        // Granite writes `auto`.
        Ok(None) | Err(_) if text.get("mamba_d_head").is_none_or(|v| v == "auto") => {
            let hidden = text.need(&["hidden_size"], WIDTH)?;
            let expand = text.first(&["mamba_expand", "expand"], LAYERS)?.unwrap_or(2);
            (inner.unwrap_or(hidden * expand) / heads).max(1)
        }
        Ok(None) => return Err(text.missing("mamba_head_dim")),
        Err(error) => return Err(error),
    };
    let groups = text.first(&["n_groups", "mamba_n_groups"], HEADS)?.unwrap_or(1);
    let state_dim = text.need(&["ssm_state_size", "mamba_d_state"], WIDTH)?;
    Ok(LinearState {
        kind: LinearKind::Mamba2,
        heads,
        head_dim,
        state_dim,
        conv_channels: heads * head_dim + 2 * groups * state_dim,
        conv_kernel: text.need(&["conv_kernel", "mamba_d_conv"], LAYERS)?,
        groups,
    })
}

/// `true` for each layer of linear attention: `layer_types`, else all but every n-th.
fn linear_layers(text: &Fields<'_>, count: u64) -> Result<Vec<bool>, ConfigError> {
    let key = ["layer_types", "layers_block_type"].into_iter().find(|k| text.get(k).is_some());
    if let Some(key) = key {
        let types = text.texts(key)?.unwrap_or_default();
        one_each(text, key, types.len(), count)?;
        let read = |(i, kind): (usize, &&str)| match *kind {
            "linear_attention" | "mamba" => Ok(true),
            "full_attention" | "attention" => Ok(false),
            other => {
                let value = serde_json::Value::from(other);
                let allowed = "linear_attention, mamba, full_attention or attention";
                Err(text.wrong(&format!("{key}[{i}]"), &value, allowed))
            }
        };
        return types.iter().enumerate().map(read).collect();
    }
    let every = text.number("full_attention_interval", LAYERS)?.unwrap_or(4);
    Ok((0..count).map(|i| !(i + 1).is_multiple_of(every)).collect())
}

/// Qwen3-Next, Qwen3.5.
pub(super) fn qwen(text: &Fields<'_>, arch: &Arch, hidden: u64, count: u64) -> Built {
    let full = decoder::heads(text, hidden)?.layer(Span::Full);
    let linear = Attention::Linear(gdn(text)?);
    let mlps = moe::layers(text, arch, hidden, count)?;
    let kinds = linear_layers(text, count)?;
    let layer = |(is_linear, mlp)| Layer { attention: if is_linear { linear } else { full }, mlp };
    Ok(kinds.into_iter().zip(mlps).map(layer).collect())
}

/// Granite 4: every layer has a feed-forward part; experts may be absent.
pub(super) fn granite(text: &Fields<'_>, arch: &Arch, hidden: u64, count: u64) -> Built {
    let full = decoder::heads(text, hidden)?.layer(Span::Full);
    let kinds = linear_layers(text, count)?;
    let linear = match kinds.iter().any(|k| *k) {
        true => Attention::Linear(mamba2(text)?),
        false => Attention::None,
    };
    let mlps = match moe::mixture(text, arch)? {
        Some(moe) => vec![moe; count as usize],
        None => {
            let shared = text.first(&["shared_intermediate_size", "intermediate_size"], WIDTH)?;
            let intermediate = shared.ok_or_else(|| text.missing("shared_intermediate_size"))?;
            vec![Mlp::Dense { intermediate, matrices: 3 }; count as usize]
        }
    };
    let layer = |(is_linear, mlp)| Layer { attention: if is_linear { linear } else { full }, mlp };
    Ok(kinds.into_iter().zip(mlps).map(layer).collect())
}

/// Falcon-H1: each block is entered as two layers, the state space first.
pub(super) fn falcon(text: &Fields<'_>, arch: &Arch, hidden: u64, count: u64) -> Built {
    let full = decoder::heads(text, hidden)?.layer(Span::Full);
    let linear = Attention::Linear(mamba2(text)?);
    let mlps = moe::layers(text, arch, hidden, count)?;
    let both = |mlp| {
        [Layer { attention: linear, mlp: Mlp::None }, Layer { attention: full, mlp }].into_iter()
    };
    Ok(mlps.into_iter().flat_map(both).collect())
}

/// The mixers of a Nemotron-H model, from its pattern text or its list of names.
fn mixers<'a>(text: &Fields<'a>, keys: (&str, &str)) -> Result<Option<Vec<&'a str>>, ConfigError> {
    if let Some(pattern) = text.text(keys.0)? {
        let read = |(i, c): (usize, char)| match c {
            'M' => Ok("mamba"),
            '*' => Ok("attention"),
            'E' => Ok("moe"),
            '-' => Ok("mlp"),
            other => {
                let value = serde_json::Value::from(other.to_string());
                Err(text.wrong(&format!("{}[{i}]", keys.0), &value, "M, *, E or -"))
            }
        };
        return pattern.chars().enumerate().map(read).collect::<Result<_, _>>().map(Some);
    }
    text.texts(keys.1)
}

fn mixer_layers(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    (key, kinds): (&str, &[&str]),
) -> Built {
    let build = |(i, kind): (usize, &&str)| {
        let none = Attention::None;
        Ok(match *kind {
            "mamba" => Layer { attention: Attention::Linear(mamba2(text)?), mlp: Mlp::None },
            "attention" => {
                Layer { attention: decoder::heads(text, hidden)?.layer(Span::Full), mlp: Mlp::None }
            }
            "moe" => {
                let moe = moe::mixture(text, arch)?;
                let mlp = moe.ok_or_else(|| text.missing("n_routed_experts"))?;
                Layer { attention: none, mlp }
            }
            "mlp" => {
                let intermediate = moe::dense_width(text, hidden)?;
                Layer { attention: none, mlp: Mlp::Dense { intermediate, matrices: arch.matrices } }
            }
            other => {
                let value = serde_json::Value::from(other);
                let allowed = "mamba, attention, moe or mlp";
                return Err(text.wrong(&format!("{key}[{i}]"), &value, allowed));
            }
        })
    };
    kinds.iter().enumerate().map(build).collect()
}

/// Nemotron-H: one mixer a layer.
pub(super) fn nemotron(text: &Fields<'_>, arch: &Arch, hidden: u64) -> Built {
    let keys = ("hybrid_override_pattern", "layers_block_type");
    let kinds = mixers(text, keys)?.ok_or_else(|| text.missing(keys.0))?;
    if kinds.is_empty() || kinds.len() as u64 > LAYERS.1 {
        let value = serde_json::Value::from(kinds.len());
        return Err(text.wrong(keys.0, &value, "1 to 1024 layers"));
    }
    if let Some(count) = text.number("num_hidden_layers", LAYERS)? {
        one_each(text, keys.0, kinds.len(), count)?;
    }
    mixer_layers(text, arch, hidden, (keys.0, &kinds))
}

/// The draft layers of a Nemotron-H model.
pub(super) fn nemotron_nextn(text: &Fields<'_>, arch: &Arch, hidden: u64) -> Built {
    let keys = ("mtp_hybrid_override_pattern", "mtp_layers_block_type");
    let kinds = mixers(text, keys)?.unwrap_or_default();
    let kinds = kinds.get(..kinds.len().min(64)).unwrap_or_default();
    mixer_layers(text, arch, hidden, (keys.1, kinds))
}

/// Kimi-Linear and Kimi K3: Kimi delta attention, MLA where `full_attn_layers` (from 1) says.
pub(super) fn kimi_linear(text: &Fields<'_>, arch: &Arch, hidden: u64, count: u64) -> Built {
    let config =
        text.object("linear_attn_config")?.ok_or_else(|| text.missing("linear_attn_config"))?;
    let heads = config.need(&["num_heads"], HEADS)?;
    let head_dim = config.need(&["head_dim"], WIDTH)?;
    let linear = Attention::Linear(LinearState {
        kind: LinearKind::Kda,
        heads,
        head_dim,
        state_dim: head_dim,
        conv_channels: 3 * heads * head_dim,
        conv_kernel: config.need(&["short_conv_kernel_size"], LAYERS)?,
        groups: heads,
    });
    let full = config
        .numbers("full_attn_layers", LAYERS_OR_NONE)?
        .ok_or_else(|| config.missing("full_attn_layers"))?;
    let latent = mla::attention(text)?;
    let mlps = moe::layers(text, arch, hidden, count)?;
    let layer =
        |(i, mlp)| Layer { attention: if full.contains(&(i + 1)) { latent } else { linear }, mlp };
    Ok((0..count).zip(mlps).map(layer).collect())
}

/// MiniMax-01: lightning attention where `attn_type_list` is 0.
pub(super) fn lightning(text: &Fields<'_>, arch: &Arch, hidden: u64, count: u64) -> Built {
    let heads = decoder::heads(text, hidden)?;
    let kinds =
        text.numbers("attn_type_list", (0, 1))?.ok_or_else(|| text.missing("attn_type_list"))?;
    one_each(text, "attn_type_list", kinds.len(), count)?;
    let linear = Attention::Linear(LinearState {
        kind: LinearKind::Lightning,
        heads: heads.q,
        head_dim: heads.dim,
        state_dim: heads.dim,
        conv_channels: 0,
        conv_kernel: 0,
        groups: heads.q,
    });
    let mlps = moe::layers(text, arch, hidden, count)?;
    let layer = |(kind, mlp)| Layer {
        attention: if kind == 0 { linear } else { heads.layer(Span::Full) },
        mlp,
    };
    Ok(kinds.into_iter().zip(mlps).map(layer).collect())
}
