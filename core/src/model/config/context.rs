//! Context length as each engine derives it, and the rotary table's size.

use crate::model::{
    detail::RopeTable,
    error::ConfigError,
    fields::{Fields, POSITIONS, WIDTH},
};

/// Context lengths of the two engines.
pub(super) struct ContextLengths {
    pub(super) sglang: u64,
    pub(super) vllm: u64,
}

/// What `rope_scaling` (or `rope_parameters`) says.
struct Scaling {
    kind: String,
    factor: f64,
    original: Option<u64>,
}

fn scaling(text: &Fields<'_>) -> Result<Option<Scaling>, ConfigError> {
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = text.object(key)? else { continue };
        let kind = match rope.text("rope_type")? {
            Some(kind) => kind,
            None => rope.text("type")?.unwrap_or("default"),
        };
        if kind == "default" {
            continue;
        }
        let factor = rope.real("factor")?.unwrap_or(1.0);
        if !(0.0..=1e6).contains(&factor) {
            let value = rope.get("factor").cloned().unwrap_or_default();
            return Err(rope.wrong("factor", &value, "a number from 0 to 1e6"));
        }
        let original = rope.number("original_max_position_embeddings", POSITIONS)?;
        return Ok(Some(Scaling { kind: kind.to_owned(), factor, original }));
    }
    Ok(None)
}

/// Sources: SGLang `utils/hf_transformers_utils.py` `get_context_length` (first key found, times
/// the factor unless an original length is given or the type is llama3); vLLM `config`
/// `_get_and_verify_max_len` (smallest key, yarn from the original length; su, longrope, llama3 and
/// Gemma 3 not scaled). Both fall back to 2,048.
pub(super) fn lengths(text: &Fields<'_>, model_type: &str) -> Result<ContextLengths, ConfigError> {
    let scaling = scaling(text)?;
    let keys = ["max_sequence_length", "seq_length", "max_seq_len", "model_max_length"].into_iter();
    let keys: Vec<&str> = keys.chain(["max_position_embeddings", "n_positions"]).collect();
    let first = text.first(&keys, POSITIONS)?.unwrap_or(2048);
    let factor = match &scaling {
        Some(s) if s.original.is_none() && s.kind != "llama3" => s.factor,
        _ => 1.0,
    };
    let sglang = (first as f64 * factor) as u64;

    let mut smallest: Option<u64> = None;
    for key in keys.into_iter().chain(["max_seq_length", "seq_len"]) {
        if let Some(n) = text.number(key, POSITIONS)? {
            smallest = Some(smallest.map_or(n, |s| s.min(n)));
        }
    }
    let smallest = smallest.unwrap_or(2048);
    let vllm = match &scaling {
        Some(s) if !matches!(s.kind.as_str(), "su" | "longrope" | "llama3" | "mrope") => {
            if model_type.starts_with("gemma3") {
                smallest
            } else {
                let from = if s.kind == "yarn" { s.original.unwrap_or(smallest) } else { smallest };
                (from as f64 * s.factor) as u64
            }
        }
        _ => smallest,
    };
    Ok(ContextLengths { sglang: sglang.max(1), vllm: vllm.max(1) })
}

/// The rotary table: `max_position_embeddings` rows (yarn: original length times factor) of the
/// rotated width. Source: vLLM and SGLang `rotary_embedding`, `cos_sin_cache`.
pub(super) fn rope(text: &Fields<'_>, head_dim: u64) -> Result<Option<RopeTable>, ConfigError> {
    let Some(limit) = text.number("max_position_embeddings", POSITIONS)? else { return Ok(None) };
    let positions = match scaling(text)? {
        Some(Scaling { kind, factor, original: Some(original) }) if kind == "yarn" => {
            (original as f64 * factor) as u64
        }
        Some(Scaling { kind, factor, .. }) if kind == "linear" || kind == "dynamic" => {
            (limit as f64 * factor) as u64
        }
        _ => limit,
    };
    let nested = match text.object("rope_parameters")? {
        Some(rope) => rope.real("partial_rotary_factor")?,
        None => None,
    };
    let part = text.real("partial_rotary_factor")?.or(nested).unwrap_or(1.0).clamp(0.0, 1.0);
    let width = match text.number("rotary_dim", WIDTH)? {
        Some(width) => width.min(head_dim),
        None => (head_dim as f64 * part) as u64,
    };
    Ok(Some(RopeTable { positions, width }))
}
