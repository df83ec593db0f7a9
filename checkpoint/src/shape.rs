//! The shape of a decoder from a configuration or a GGUF header. What would be computed otherwise than the
//! model's authors do is refused by name.

use std::path::Path;

use plimsoll_catalog::files::FindError;
use plimsoll_core::{
    model::{
        detail::{Model, OutputGate, QkNorm},
        geometry::{Attention, Mlp, Span},
        gguf::{self, Gguf, MetaValue},
        near,
    },
    tape::own::{DecoderShape, LayerShape},
};
use serde_json::Value;

use crate::{error::CheckpointError, tensors::TensorIndex};

/// Architectures that are executed.
const EXECUTED: [&str; 4] =
    ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

/// The shape by `config.json`.
pub(crate) fn of_config(
    path: &Path,
    text: &str,
    model: &Model,
) -> Result<DecoderShape, CheckpointError> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let config = Config { path, value: &value };
    if let Some(act) = value.get("hidden_act").and_then(Value::as_str)
        && !matches!(act, "silu" | "swish")
    {
        return Err(config.wrong("hidden_act", value.get("hidden_act"), "silu"));
    }
    if let Some(quant) = value.get("quantization_config").filter(|q| !q.is_null()) {
        let method = quant.get("quant_method").or(Some(quant));
        return Err(config.wrong("quantization_config", method, "none: F32, F16 or BF16 weights"));
    }
    let eps = config.real("rms_norm_eps", 1e-6)?;
    let mut shape = of_model(path, model, eps as f32)?;
    shape.rope = config.rope(shape.head_dim, shape.context)?;
    checked(path, shape)
}

/// The shape by a GGUF header; biases and factors of the rotation by its tensors.
pub(crate) fn of_gguf(
    path: &Path,
    header: &Gguf,
    tensors: &TensorIndex,
) -> Result<DecoderShape, CheckpointError> {
    let model = gguf::model(&path.display().to_string(), header)
        .map_err(|error| FindError::Config { path: path.to_owned(), error })?;
    let kind = match header.get("general.architecture") {
        Some(MetaValue::Text(kind)) => kind.as_str(),
        _ => "",
    };
    let meta = Meta { path, header, kind };
    let eps = meta.real("attention.layer_norm_rms_epsilon", 1e-5)?;
    let mut shape = of_model(path, &model, eps as f32)?;
    shape.qkv_bias = tensors.has("blk.0.attn_q.bias");
    shape.o_bias = tensors.has("blk.0.attn_output.bias");
    shape.mlp_bias = tensors.has("blk.0.ffn_down.bias");
    shape.qk_norm = tensors.has("blk.0.attn_q_norm.weight");
    shape.rope = meta.rope(shape.head_dim)?;
    if let Some(factors) = tensors.vector("rope_freqs.weight")? {
        if factors.len() != shape.rope.len() {
            let found = factors.len().to_string();
            let allowed = format!("{} values", shape.rope.len());
            return Err(meta.wrong("rope_freqs.weight", found, allowed));
        }
        for (turn, factor) in shape.rope.iter_mut().zip(factors) {
            *turn /= f64::from(factor);
        }
    }
    checked(path, shape)
}

fn checked(path: &Path, shape: DecoderShape) -> Result<DecoderShape, CheckpointError> {
    match shape.check() {
        Ok(()) => Ok(shape),
        Err(error) => Err(CheckpointError::Shape { path: path.to_owned(), error }),
    }
}

/// What geometry and detail say; rotation is filled in by the caller.
fn of_model(path: &Path, model: &Model, eps: f32) -> Result<DecoderShape, CheckpointError> {
    let (geometry, detail) = (&model.geometry, &model.detail);
    if !EXECUTED.contains(&geometry.architecture.as_str()) {
        return Err(CheckpointError::Architecture {
            path: path.to_owned(),
            architecture: geometry.architecture.clone(),
            nearest: near::nearest(&geometry.architecture, EXECUTED, 40),
            known: EXECUTED.join(", "),
        });
    }
    let wrong = |key: &str, value: String, allowed: &str| CheckpointError::Value {
        path: path.to_owned(),
        key: key.to_owned(),
        value,
        allowed: allowed.to_owned(),
    };
    if detail.output_gate != OutputGate::None || detail.qk_norm == QkNorm::AllHeads {
        let found = format!("{:?}, {:?}", detail.output_gate, detail.qk_norm);
        return Err(wrong("attention", found, "no output gate, norms of one head"));
    }
    let mut heads = None;
    let mut layers = Vec::new();
    for (index, layer) in geometry.layers.iter().enumerate() {
        let key = format!("layer {index}");
        let Attention::Gqa { q_heads, kv_heads, head_dim, v_head_dim, span } = layer.attention
        else {
            return Err(wrong(&key, format!("{:?}", layer.attention), "grouped-query attention"));
        };
        let Mlp::Dense { intermediate, matrices: 3 } = layer.mlp else {
            return Err(wrong(&key, format!("{:?}", layer.mlp), "a dense gated feed-forward part"));
        };
        let window = match span {
            Span::Full => None,
            Span::Sliding { window } => Some(window),
            Span::Chunked { .. } => {
                return Err(wrong(&key, format!("{span:?}"), "full or sliding"));
            }
        };
        let own = (q_heads, kv_heads, head_dim);
        if v_head_dim != head_dim || *heads.get_or_insert(own) != own {
            return Err(wrong(&key, format!("{own:?}"), "the heads of layer 0, values as wide"));
        }
        layers.push(LayerShape { intermediate, window });
    }
    let (q_heads, kv_heads, head_dim) = heads.unwrap_or_default();
    Ok(DecoderShape {
        vocab: geometry.vocab_size,
        hidden: geometry.hidden_size,
        layers,
        q_heads,
        kv_heads,
        head_dim,
        norm_eps: eps,
        rope: Vec::new(),
        tied: geometry.tie_word_embeddings,
        qkv_bias: detail.qkv_bias,
        o_bias: detail.o_bias,
        mlp_bias: detail.mlp_bias,
        qk_norm: detail.qk_norm == QkNorm::Head,
        context: geometry.context_len.0,
    })
}

/// Radians that each plane turns by a position: `theta^(-2i/d)`.
fn turns(theta: f64, head_dim: u64) -> Vec<f64> {
    let planes = head_dim / 2;
    (0..planes).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

struct Config<'a> {
    path: &'a Path,
    value: &'a Value,
}

impl Config<'_> {
    fn wrong(&self, key: &str, value: Option<&Value>, allowed: &str) -> CheckpointError {
        CheckpointError::Value {
            path: self.path.to_owned(),
            key: key.to_owned(),
            value: value.map_or_else(|| "missing".to_owned(), Value::to_string),
            allowed: allowed.to_owned(),
        }
    }

    fn real(&self, key: &str, missing: f64) -> Result<f64, CheckpointError> {
        match self.value.get(key).filter(|v| !v.is_null()) {
            None => Ok(missing),
            Some(value) => positive(value)
                .ok_or_else(|| self.wrong(key, Some(value), "a number above 0, up to 1e12")),
        }
    }

    /// Source: transformers `modeling_rope_utils.py`.
    fn rope(&self, head_dim: u64, context: u64) -> Result<Vec<f64>, CheckpointError> {
        let table = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| {
            self.value.get(key).filter(|v| v.is_object()).map(|value| (key, value))
        });
        let (key, table) = table.unwrap_or(("rope_scaling", &Value::Null));
        let theta = match table.get("rope_theta").and_then(positive) {
            Some(theta) => theta,
            None => self.real("rope_theta", 10000.0)?,
        };
        let partial =
            table.get("partial_rotary_factor").or(self.value.get("partial_rotary_factor"));
        if partial.and_then(Value::as_f64).is_some_and(|part| part != 1.0) {
            return Err(self.wrong("partial_rotary_factor", partial, "1"));
        }
        let mut turns = turns(theta, head_dim);
        let need = |name: &str| {
            let value = table.get(name).and_then(positive);
            let path = format!("{key}.{name}");
            value.ok_or_else(|| self.wrong(&path, table.get(name), "a number above 0, up to 1e12"))
        };
        let kind = table.get("rope_type").or(table.get("type"));
        match kind.and_then(Value::as_str).unwrap_or("default") {
            "default" => {}
            "linear" => {
                let factor = need("factor")?;
                turns.iter_mut().for_each(|turn| *turn /= factor);
            }
            "llama3" => {
                let original = match table.get("original_max_position_embeddings") {
                    Some(_) => need("original_max_position_embeddings")?,
                    None => context as f64,
                };
                let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
                llama3(&mut turns, need("factor")?, low, high, original);
            }
            _ => {
                let allowed =
                    "default, linear or llama3 (yarn, dynamic and longrope are not executed)";
                return Err(self.wrong(&format!("{key}.rope_type"), kind, allowed));
            }
        }
        Ok(turns)
    }
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|f| *f > 0.0 && *f <= 1e12)
}

/// Source: transformers `_compute_llama3_parameters`.
fn llama3(turns: &mut [f64], factor: f64, low: f64, high: f64, original: f64) {
    for turn in turns {
        let wave = std::f64::consts::TAU / *turn;
        if wave > original / low {
            *turn /= factor;
        } else if wave >= original / high {
            let smooth = (original / wave - low) / (high - low);
            *turn = (1.0 - smooth) * *turn / factor + smooth * *turn;
        }
    }
}

struct Meta<'a> {
    path: &'a Path,
    header: &'a Gguf,
    kind: &'a str,
}

impl Meta<'_> {
    fn wrong(&self, key: &str, value: String, allowed: String) -> CheckpointError {
        CheckpointError::Value { path: self.path.to_owned(), key: key.to_owned(), value, allowed }
    }

    fn get(&self, key: &str) -> Option<&MetaValue> {
        self.header.get(&format!("{}.{key}", self.kind))
    }

    fn real(&self, key: &str, missing: f64) -> Result<f64, CheckpointError> {
        let value = match self.get(key) {
            None => return Ok(missing),
            Some(MetaValue::Float(f)) => *f,
            Some(MetaValue::Unsigned(n)) => *n as f64,
            Some(_) => f64::NAN,
        };
        if value > 0.0 && value <= 1e12 {
            return Ok(value);
        }
        let allowed = "a number above 0, up to 1e12".to_owned();
        Err(self.wrong(&format!("{}.{key}", self.kind), value.to_string(), allowed))
    }

    fn rope(&self, head_dim: u64) -> Result<Vec<f64>, CheckpointError> {
        if let Some(MetaValue::Unsigned(n)) = self.get("rope.dimension_count")
            && *n != head_dim
        {
            let key = format!("{}.rope.dimension_count", self.kind);
            return Err(self.wrong(&key, n.to_string(), format!("the head width, {head_dim}")));
        }
        let mut turns = turns(self.real("rope.freq_base", 10000.0)?, head_dim);
        match self.get("rope.scaling.type") {
            None => {}
            Some(MetaValue::Text(kind)) if kind == "none" => {}
            Some(MetaValue::Text(kind)) if kind == "linear" => {
                let factor = self.real("rope.scaling.factor", 1.0)?;
                turns.iter_mut().for_each(|turn| *turn /= factor);
            }
            Some(other) => {
                let key = format!("{}.rope.scaling.type", self.kind);
                let allowed = "none or linear (yarn and longrope are not executed)".to_owned();
                return Err(self.wrong(&key, format!("{other:?}"), allowed));
            }
        }
        Ok(turns)
    }
}
