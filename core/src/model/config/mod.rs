//! A Hugging Face `config.json` becomes a model's geometry.
//!
//! Nested text configurations are followed, ranges are checked, and what is not known is said:
//! nothing is guessed for an architecture without a rule.

mod arch;
mod context;
mod decoder;
mod hybrid;
mod mla;
mod moe;
mod quant;
mod vision;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::units::{Bytes, Tokens};

use self::arch::{ARCHS, Arch, Shape, Windows};
use super::{
    detail::{DecayGate, Detail, KvSource, Model, OutputGate, PerLayerInput, QkNorm, QuantPlan},
    error::{CANNOT, ConfigError},
    fields::{Fields, LAYERS, LAYERS_OR_NONE, WIDTH, without_non_finite},
    geometry::{Attention, Dtype, Layer, Mlp, ModelGeometry},
    near,
};

/// Keys under which multimodal configurations keep the text model, in the order they are tried.
const NESTED: [&str; 5] =
    ["text_config", "llm_config", "language_config", "thinker_config", "text_model_config"];

/// What the user says about a model whose rules are not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// `--kv-bytes-per-token`: one rank's bytes for one token of all layers.
    pub kv_bytes_per_token: Bytes,
    /// `--weights`: one rank's bytes.
    pub weights: Option<Bytes>,
}

/// Geometry from the text of `config.json` and, where there is one, of `hf_quant_config.json`.
///
/// # Errors
/// `ConfigError` with the key's path, the value and what is allowed; `UnknownArchitecture` with the
/// nearest known name; `NotModelled` for architectures that are only recognised.
pub fn parse(name: &str, config: &str, quant: Option<&str>) -> Result<Model, ConfigError> {
    let config = object(config)?;
    let quant = quant.map(object).transpose()?;
    from_map(name, &config, quant.as_ref())
}

/// The same from a value already read, as the catalog's entries are.
///
/// # Errors
/// As `parse`.
pub fn from_value(name: &str, config: &Value) -> Result<Model, ConfigError> {
    match config {
        Value::Object(map) => from_map(name, map, None),
        other => Err(not_an_object(other)),
    }
}

/// A model whose architecture has no rule, by the user's own figures. Common keys are still read:
/// hidden size, layers, vocabulary, context, dtype.
///
/// # Errors
/// As `parse`, but never `UnknownArchitecture` or `NotModelled`.
pub fn with_fallback(name: &str, config: &str, given: Fallback) -> Result<Model, ConfigError> {
    let map = object(config)?;
    let root = Fields::root(&map);
    let text = text_of(&root)?;
    let architecture = architecture(&root, &text)?;
    let unknown = Arch { shape: Shape::NotModelled(""), ..ARCHS[0] };
    let count = text.first(&["num_hidden_layers", "n_layer", "num_layers"], LAYERS)?.unwrap_or(1);
    let layers = vec![Layer { attention: Attention::None, mlp: Mlp::None }; count as usize];
    let hidden = text.first(&["hidden_size", "n_embd", "d_model"], WIDTH)?.unwrap_or(1);
    let mut model = assemble(name, &root, &text, &unknown, (hidden, layers), None)?;
    model.geometry.architecture = architecture;
    model.kv = KvSource::Given(given.kv_bytes_per_token);
    model.given_weights = given.weights;
    model.notes.push(format!(
        "no rule for architecture `{}`: KV bytes per token are as given, layers are only counted",
        model.geometry.architecture
    ));
    Ok(model)
}

/// Names of all architectures with a rule, sorted.
#[must_use]
pub fn known_architectures() -> Vec<&'static str> {
    let modelled = ARCHS.iter().filter(|a| !matches!(a.shape, Shape::NotModelled(_)));
    let mut names: Vec<&str> = modelled.map(|a| a.name).collect();
    names.sort_unstable();
    names
}

fn object(text: &str) -> Result<Map<String, Value>, ConfigError> {
    let value: Value = serde_json::from_str(&without_non_finite(text)).map_err(|e| {
        ConfigError::Json { line: e.line(), column: e.column(), message: e.to_string() }
    })?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(not_an_object(&other)),
    }
}

fn not_an_object(value: &Value) -> ConfigError {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    ConfigError::Value {
        path: "(the whole file)".to_owned(),
        value: kind.to_owned(),
        allowed: "an object".to_owned(),
    }
}

/// The text model's own object; the whole file when it is not nested. `thinker_config` nests again.
fn text_of<'a>(root: &Fields<'a>) -> Result<Fields<'a>, ConfigError> {
    let mut text = root.clone();
    for _ in 0..2 {
        let mut inner = None;
        for key in NESTED {
            if text.get(key).is_some_and(Value::is_object) {
                inner = text.object(key)?;
                break;
            }
        }
        match inner {
            Some(inner) => text = inner,
            None => break,
        }
    }
    Ok(text)
}

/// `architectures[0]` of the file, else of the text model.
fn architecture(root: &Fields<'_>, text: &Fields<'_>) -> Result<String, ConfigError> {
    for fields in [root, text] {
        if let Some(names) = fields.texts("architectures")?
            && let Some(first) = names.first()
        {
            return Ok((*first).to_owned());
        }
    }
    match root.text("model_type")? {
        Some(kind) => Ok(kind.to_owned()),
        None => Err(root.missing("architectures")),
    }
}

fn from_map(
    name: &str,
    config: &Map<String, Value>,
    quant: Option<&Map<String, Value>>,
) -> Result<Model, ConfigError> {
    let root = Fields::root(config);
    let text = text_of(&root)?;
    let architecture = architecture(&root, &text)?;
    let Some(arch) = arch::find(&architecture) else {
        let names = ARCHS.iter().map(|a| a.name);
        let nearest = near::nearest(&architecture, names, 40);
        return Err(ConfigError::UnknownArchitecture { architecture, nearest, cannot: CANNOT });
    };
    if let Shape::NotModelled(what) = arch.shape {
        return Err(ConfigError::NotModelled { architecture, what });
    }
    let hidden = text.need(&["hidden_size", "n_embd", "d_model"], WIDTH)?;
    let layers = layers(&text, arch, hidden)?;
    let mut model = assemble(name, &root, &text, arch, (hidden, layers), quant.map(Fields::root))?;
    model.geometry.architecture = architecture;
    Ok(model)
}

fn layers(text: &Fields<'_>, arch: &Arch, hidden: u64) -> Result<Vec<Layer>, ConfigError> {
    if arch.shape == Shape::NemotronH {
        return hybrid::nemotron(text, arch, hidden);
    }
    let count = text.need(&["num_hidden_layers", "n_layer", "num_layers"], LAYERS)?;
    match arch.shape {
        Shape::Decoder => decoder::layers(text, arch, hidden, count),
        Shape::Deci => decoder::deci(text, arch, hidden, count),
        Shape::Mla => mla::layers(text, arch, hidden, count),
        Shape::QwenHybrid => hybrid::qwen(text, arch, hidden, count),
        Shape::GraniteHybrid => hybrid::granite(text, arch, hidden, count),
        Shape::FalconH1 => hybrid::falcon(text, arch, hidden, count),
        Shape::KimiLinear => hybrid::kimi_linear(text, arch, hidden, count),
        Shape::Lightning => hybrid::lightning(text, arch, hidden, count),
        Shape::NemotronH | Shape::NotModelled(_) => Ok(Vec::new()),
    }
}

fn assemble(
    name: &str,
    root: &Fields<'_>,
    text: &Fields<'_>,
    arch: &Arch,
    (hidden, layers): (u64, Vec<Layer>),
    quant: Option<Fields<'_>>,
) -> Result<Model, ConfigError> {
    let mut notes = Vec::new();
    let model_type = match text.text("model_type")? {
        Some(kind) => kind.to_owned(),
        None => root.text("model_type")?.unwrap_or("").to_owned(),
    };
    let own = text.object("quantization_config")?.or(root.object("quantization_config")?);
    let quant = quant::read(own, quant)?;
    if let Some(method) = &quant.plan.unknown {
        notes.push(format!("storage of quantisation `{method}` is not modelled"));
    }
    let vision = vision::read(root, hidden)?;
    let context = context::lengths(text, &model_type)?;
    let nextn = nextn(text, arch, hidden, &layers)?;
    let tied = match text.flag("tie_word_embeddings")? {
        Some(tied) => tied,
        None => root.flag("tie_word_embeddings")?.unwrap_or(arch.tied),
    };
    let geometry = ModelGeometry {
        name: name.to_owned(),
        architecture: String::new(),
        model_type,
        dtype: dtype(root, text, &mut notes)?,
        hidden_size: hidden,
        vocab_size: match arch.shape {
            Shape::NotModelled(_) => text.number("vocab_size", WIDTH)?.unwrap_or(0),
            _ => text.need(&["vocab_size"], WIDTH)?,
        },
        context_len: Tokens(context.sglang),
        tie_word_embeddings: tied,
        nextn_layers: nextn.len() as u64,
        quantization: quant.summary,
        kv_cache_fp8: quant.kv_fp8,
        state_dtype: named_ssm_dtype(text)?,
        multimodal: arch.multimodal || vision.is_some(),
        vision: vision.map(|v| v.0),
        layers,
    };
    let mut detail = detail(text, arch, &geometry, quant.plan)?;
    detail.nextn = nextn;
    detail.vision = vision.map(|v| v.1);
    detail.vision_factor = vision.map(|v| v.2);
    detail.vllm_context_len = Tokens(context.vllm);
    detail.rope = context::rope(text, rotated_width(&geometry))?;
    Ok(Model { geometry, detail, kv: KvSource::Layers, given_weights: None, notes })
}

/// Width that rotation acts on: the head's, or MLA's rotated part.
fn rotated_width(geometry: &ModelGeometry) -> u64 {
    let widths = geometry.layers.iter().map(|layer| match layer.attention {
        Attention::Gqa { head_dim, .. } => head_dim,
        Attention::Mla { qk_rope_head_dim, .. } => qk_rope_head_dim,
        Attention::Linear(_) | Attention::None => 0,
    });
    widths.max().unwrap_or(0)
}

fn detail(
    text: &Fields<'_>,
    arch: &Arch,
    geometry: &ModelGeometry,
    quant: QuantPlan,
) -> Result<Detail, ConfigError> {
    let bias = text.first_flag(&["attention_bias", "qkv_bias", "use_qkv_bias"])?;
    let qk = text.first_flag(&["use_qk_norm"])?;
    let linear = text.object("linear_attn_config")?;
    let full_rank = match &linear {
        Some(linear) => linear.flag("use_full_rank_gate")?.unwrap_or(false),
        None => false,
    };
    let positions = match text.get("rope_theta").or(text.get("rope_parameters")) {
        None if arch.name.starts_with("OPT") || arch.name.starts_with("GPT2") => {
            text.first(&["max_position_embeddings", "n_positions"], WIDTH)?.unwrap_or(0)
        }
        _ => 0,
    };
    let gated = text.flag("attn_output_gate")? != Some(false);
    let per_layer = text.number("hidden_size_per_layer_input", (0, WIDTH.1))?.filter(|w| *w > 0);
    Ok(Detail {
        qkv_bias: bias.unwrap_or(arch.qkv_bias),
        o_bias: arch.o_bias
            || (bias == Some(true) && !arch.qkv_bias && arch.windows == Windows::All),
        mlp_bias: text.flag("mlp_bias")?.unwrap_or(arch.mlp_bias),
        qk_norm: match (arch.qk_norm, qk) {
            (_, Some(false)) => QkNorm::None,
            (QkNorm::None, Some(true)) => QkNorm::Head,
            (norm, _) => norm,
        },
        output_gate: match text.flag("use_head_wise_attn_gate")? {
            Some(true) => OutputGate::Head,
            _ if gated => arch.output_gate,
            _ => OutputGate::None,
        },
        k_is_v: text.flag("attention_k_eq_v")? == Some(true),
        norms: arch.norms,
        learned_positions: positions,
        per_layer_input: per_layer
            .map(|width| {
                let vocab = text.number("vocab_size_per_layer_input", WIDTH)?;
                Ok(PerLayerInput { width, vocab: vocab.unwrap_or(geometry.vocab_size) })
            })
            .transpose()?,
        kv_shared_layers: text.number("num_kv_shared_layers", LAYERS_OR_NONE)?.unwrap_or(0),
        moe_latent: moe::latent(text, arch)?,
        shared_gate: arch.shared_gate,
        decay_gate: if full_rank { DecayGate::FullRank } else { DecayGate::LowRank },
        mla_gate: text.flag("mla_use_output_gate")? == Some(true),
        layers_a_block: if arch.shape == Shape::FalconH1 { 2 } else { 1 },
        nextn: Vec::new(),
        vision: None,
        vision_factor: None,
        rope: None,
        names: arch.names,
        quant,
        ssm_dtype: named_ssm_dtype(text)?.unwrap_or(Dtype::F32),
        vllm_context_len: geometry.context_len,
    })
}

/// Draft layers: as many as the configuration says, each like the last layer with full attention.
fn nextn(
    text: &Fields<'_>,
    arch: &Arch,
    hidden: u64,
    layers: &[Layer],
) -> Result<Vec<Layer>, ConfigError> {
    let keys = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
    let count = text.first(&keys, (0, 64))?.unwrap_or(0);
    if arch.shape == Shape::NemotronH {
        let one = hybrid::nemotron_nextn(text, arch, hidden)?;
        return Ok(if count == 0 { Vec::new() } else { one });
    }
    let full = |l: &&Layer| matches!(l.attention, Attention::Gqa { .. } | Attention::Mla { .. });
    let like = layers.iter().rev().find(full);
    Ok(like.map_or_else(Vec::new, |layer| vec![*layer; count as usize]))
}

fn dtype_named(name: &str) -> Option<Dtype> {
    Some(match name {
        "float32" | "float" | "torch.float32" => Dtype::F32,
        "float16" | "half" | "torch.float16" => Dtype::F16,
        "bfloat16" | "torch.bfloat16" => Dtype::Bf16,
        "float8_e4m3fn" | "float8_e4m3" => Dtype::Fp8E4m3,
        "float8_e5m2" => Dtype::Fp8E5m2,
        "int8" => Dtype::I8,
        _ => return None,
    })
}

const DTYPES: &str = "float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or int8";

fn dtype(
    root: &Fields<'_>,
    text: &Fields<'_>,
    notes: &mut Vec<String>,
) -> Result<Dtype, ConfigError> {
    for fields in [text, root] {
        for key in ["torch_dtype", "dtype"] {
            if let Some(name) = fields.text(key)?.filter(|n| *n != "auto") {
                let value = Value::from(name);
                return dtype_named(name).ok_or_else(|| fields.wrong(key, &value, DTYPES));
            }
        }
    }
    notes.push("the configuration names no dtype: bfloat16 is assumed".to_owned());
    Ok(Dtype::Bf16)
}

fn named_ssm_dtype(text: &Fields<'_>) -> Result<Option<Dtype>, ConfigError> {
    for key in ["mamba_ssm_dtype", "mamba_ssm_cache_dtype"] {
        if let Some(name) = text.text(key)?.filter(|n| *n != "auto") {
            let value = Value::from(name);
            let named = dtype_named(name).ok_or_else(|| text.wrong(key, &value, DTYPES))?;
            return Ok(Some(named));
        }
    }
    Ok(None)
}
