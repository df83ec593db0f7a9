//! Layers of decoders with keys and values: plain, windowed, chunked, with per-kind heads.

use crate::model::{
    error::ConfigError,
    fields::{Fields, HEADS, LAYERS_OR_NONE, POSITIONS, WIDTH},
    geometry::{Attention, Layer, Mlp, Span},
};

use super::{
    arch::{Arch, Windows},
    moe,
};

const HEAD_KEYS: [&str; 2] = ["num_attention_heads", "n_head"];
const KV_HEAD_KEYS: [&str; 3] = ["num_key_value_heads", "num_kv_heads", "num_attention_groups"];

/// Heads and widths of one kind of attention layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) q: u64,
    pub(super) kv: u64,
    pub(super) dim: u64,
    pub(super) v_dim: u64,
}

impl Heads {
    pub(super) fn layer(self, span: Span) -> Attention {
        Attention::Gqa {
            q_heads: self.q,
            kv_heads: self.kv,
            head_dim: self.dim,
            v_head_dim: self.v_dim,
            span,
        }
    }
}

/// The usual keys. The head's width falls back to hidden size over heads, rounded down.
pub(super) fn heads(text: &Fields<'_>, hidden: u64) -> Result<Heads, ConfigError> {
    let q = text.need(&HEAD_KEYS, HEADS)?;
    let kv = text.first(&KV_HEAD_KEYS, HEADS)?.unwrap_or(q);
    if kv > q {
        let value = serde_json::Value::from(kv);
        return Err(text.wrong("num_key_value_heads", &value, &format!("at most {q} heads")));
    }
    let dim = match text.first(&["head_dim", "attention_head_dim", "kv_channels"], WIDTH)? {
        Some(dim) => dim,
        None => (hidden / q).max(1),
    };
    let v_dim = text.number("v_head_dim", WIDTH)?.unwrap_or(dim);
    Ok(Heads { q, kv, dim, v_dim })
}

/// Which positions each layer keeps.
pub(super) fn spans(text: &Fields<'_>, arch: &Arch, count: u64) -> Result<Vec<Span>, ConfigError> {
    let window_keys = ["sliding_window", "sliding_window_size"];
    let window = text.first(&window_keys, (0, POSITIONS.1))?.filter(|w| *w > 0);
    let chunk = text.number("attention_chunk_size", POSITIONS)?;
    let sliding = || {
        let window = window.ok_or_else(|| text.missing("sliding_window"))?;
        Ok(Span::Sliding { window })
    };
    if let Some(types) = text.texts("layer_types")? {
        one_each(text, "layer_types", types.len(), count)?;
        let read = |(i, kind): (usize, &&str)| match *kind {
            "sliding_attention" => sliding(),
            "chunked_attention" => {
                let chunk = chunk.ok_or_else(|| text.missing("attention_chunk_size"))?;
                Ok(Span::Chunked { chunk })
            }
            "full_attention" | "attention" | "global_attention" => Ok(Span::Full),
            other => {
                let value = serde_json::Value::from(other);
                let allowed = "full_attention, sliding_attention or chunked_attention";
                Err(text.wrong(&format!("layer_types[{i}]"), &value, allowed))
            }
        };
        return types.iter().enumerate().map(read).collect();
    }
    if let Some(pattern) = text.numbers("hybrid_layer_pattern", (0, 1))? {
        one_each(text, "hybrid_layer_pattern", pattern.len(), count)?;
        return pattern.iter().map(|p| if *p == 1 { sliding() } else { Ok(Span::Full) }).collect();
    }
    by_rule(text, arch, count, window, chunk)
}

/// The rule of the architecture, where the configuration has no list.
fn by_rule(
    text: &Fields<'_>,
    arch: &Arch,
    count: u64,
    window: Option<u64>,
    chunk: Option<u64>,
) -> Result<Vec<Span>, ConfigError> {
    let full = vec![Span::Full; count as usize];
    if let Windows::ChunkedFullEvery(default) = arch.windows {
        let Some(chunk) = chunk else { return Ok(full) };
        let every = text.number("no_rope_layer_interval", (1, 1024))?.unwrap_or(default);
        let rope = text.numbers("no_rope_layers", (0, 1))?.filter(|l| !l.is_empty());
        if let Some(list) = &rope {
            one_each(text, "no_rope_layers", list.len(), count)?;
        }
        let local = |i: u64| match &rope {
            Some(list) => list.get(i as usize) == Some(&1),
            None => !(i + 1).is_multiple_of(every),
        };
        let span = |i| if local(i) { Span::Chunked { chunk } } else { Span::Full };
        return Ok((0..count).map(span).collect());
    }
    let Some(window) = window else { return Ok(full) };
    let limit = text.number("max_position_embeddings", POSITIONS)?;
    if limit.is_some_and(|limit| window >= limit) {
        return Ok(full);
    }
    let sliding = Span::Sliding { window };
    let allowed = text.flag("use_sliding_window")?;
    let slides: Box<dyn Fn(u64) -> bool> = match arch.windows {
        _ if allowed == Some(false) => Box::new(|_| false),
        Windows::Flagged if allowed.is_none() => Box::new(|_| false),
        Windows::Flagged => {
            let from = text.number("max_window_layers", LAYERS_OR_NONE)?.unwrap_or(0);
            Box::new(move |i| i >= from)
        }
        Windows::FullEvery(default) => {
            let every = match text.get("sliding_window_pattern") {
                // EXAONE 4 writes `LLLG`.
                Some(serde_json::Value::String(letters)) => letters.len().clamp(1, 1024) as u64,
                _ => text
                    .first(&["sliding_window_pattern", "_sliding_window_pattern"], (1, 1024))?
                    .unwrap_or(default),
            };
            Box::new(move |i| !(i + 1).is_multiple_of(every))
        }
        Windows::All | Windows::ChunkedFullEvery(_) => Box::new(|_| true),
    };
    Ok((0..count).map(|i| if slides(i) { sliding } else { Span::Full }).collect())
}

/// An error when a list does not have one entry a layer.
pub(super) fn one_each(
    text: &Fields<'_>,
    key: &str,
    found: usize,
    count: u64,
) -> Result<(), ConfigError> {
    if found as u64 == count {
        return Ok(());
    }
    let value = serde_json::Value::from(format!("{found} entries"));
    Err(text.wrong(key, &value, &format!("one entry for each of {count} layers")))
}

/// Layers of a plain or windowed decoder.
pub(super) fn layers(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    count: u64,
) -> Result<Vec<Layer>, ConfigError> {
    let base = heads(text, hidden)?;
    let (full, sliding) = by_kind(text, base)?;
    let spans = spans(text, arch, count)?;
    let shared = text.number("num_kv_shared_layers", LAYERS_OR_NONE)?.unwrap_or(0);
    let doubled = text.flag("use_double_wide_mlp")? == Some(true);
    let mlps = moe::layers(text, arch, hidden, count)?;
    let layer = |(i, (span, mlp)): (u64, (Span, Mlp))| {
        let heads = if span == Span::Full { full } else { sliding };
        let mlp = match mlp {
            Mlp::Dense { intermediate, matrices } if doubled && i + shared >= count => {
                Mlp::Dense { intermediate: intermediate * 2, matrices }
            }
            other => other,
        };
        Layer { attention: heads.layer(span), mlp }
    };
    Ok((0..count).zip(spans.into_iter().zip(mlps)).map(layer).collect())
}

/// Heads of full and of sliding layers: Gemma 4 has `global_*`, MiMo-V2 `swa_*`, Step-3.5
/// `attention_other_setting` for its sliding layers.
fn by_kind(text: &Fields<'_>, base: Heads) -> Result<(Heads, Heads), ConfigError> {
    let full_dim = text.number("global_head_dim", WIDTH)?;
    let full = Heads {
        kv: text.number("num_global_key_value_heads", HEADS)?.unwrap_or(base.kv),
        dim: full_dim.unwrap_or(base.dim),
        v_dim: full_dim.unwrap_or(base.v_dim),
        ..base
    };
    let sliding_dim = text.number("swa_head_dim", WIDTH)?;
    let mut sliding = Heads {
        q: text.number("swa_num_attention_heads", HEADS)?.unwrap_or(base.q),
        kv: text.number("swa_num_key_value_heads", HEADS)?.unwrap_or(base.kv),
        dim: sliding_dim.unwrap_or(base.dim),
        v_dim: text.number("swa_v_head_dim", WIDTH)?.or(sliding_dim).unwrap_or(base.v_dim),
    };
    if let Some(other) = text.object("attention_other_setting")? {
        sliding.q = other.first(&HEAD_KEYS, HEADS)?.unwrap_or(sliding.q);
        sliding.kv = other.first(&KV_HEAD_KEYS, HEADS)?.unwrap_or(sliding.kv);
        sliding.dim = other.number("head_dim", WIDTH)?.unwrap_or(sliding.dim);
        sliding.v_dim = sliding.dim;
    }
    Ok((full, sliding))
}

/// Layers of DeciLM (Nemotron NAS), block by block. Source: the model's configuration class:
/// width = 2/3 of multiplier times hidden size, rounded up to a multiple of 256.
pub(super) fn deci(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    count: u64,
) -> Result<Vec<Layer>, ConfigError> {
    let Some(blocks) = text.list("block_configs")? else {
        return layers(text, arch, hidden, count);
    };
    one_each(text, "block_configs", blocks.len(), count)?;
    let q = text.need(&HEAD_KEYS, HEADS)?;
    let dim = text.number("head_dim", WIDTH)?.unwrap_or((hidden / q).max(1));
    let block = |(i, value): (usize, &serde_json::Value)| {
        let path = format!("block_configs[{i}]");
        let at = |rest: &[&str]| rest.iter().try_fold(value, |v, k| v.get(k));
        let is_true = |rest: &[&str]| at(rest) == Some(&serde_json::Value::Bool(true));
        let bad = |what: &str, found: Option<&serde_json::Value>, allowed: &str| {
            let null = serde_json::Value::Null;
            text.wrong(&format!("{path}.{what}"), found.unwrap_or(&null), allowed)
        };
        for part in ["attention", "ffn"] {
            if is_true(&[part, "replace_with_linear"]) {
                let place = format!("{part}.replace_with_linear");
                let found = at(&[part, "replace_with_linear"]);
                return Err(bad(&place, found, "false (linear replacements are not modelled)"));
            }
        }
        let attention = if is_true(&["attention", "no_op"]) {
            Attention::None
        } else {
            let group = at(&["attention", "n_heads_in_group"]);
            let sized = group.and_then(serde_json::Value::as_u64).filter(|g| (1..=q).contains(g));
            let allowed = format!("a whole number from 1 to {q}");
            let size = sized.ok_or_else(|| bad("attention.n_heads_in_group", group, &allowed))?;
            Heads { q, kv: (q / size).max(1), dim, v_dim: dim }.layer(Span::Full)
        };
        let mlp = if is_true(&["ffn", "no_op"]) {
            Mlp::None
        } else {
            let found = at(&["ffn", "ffn_mult"]);
            let mult =
                found.and_then(serde_json::Value::as_f64).filter(|m| (0.0..=64.0).contains(m));
            let mult = mult.ok_or_else(|| bad("ffn.ffn_mult", found, "a number from 0 to 64"))?;
            let width = (2.0 * mult * hidden as f64 / 3.0) as u64;
            Mlp::Dense { intermediate: width.next_multiple_of(256), matrices: arch.matrices }
        };
        Ok(Layer { attention, mlp })
    };
    blocks.iter().enumerate().map(block).collect()
}
