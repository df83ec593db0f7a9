//! GGUF metadata as the configuration that it was converted from, read by the same rules.

use serde_json::{Map, Value, json};

use crate::model::{config, detail::Model, error::ConfigError, near};

use super::{Gguf, MetaValue};

/// Architectures of `general.architecture` that are read, and what they are called in a
/// configuration. Source: llama.cpp `llama-arch.cpp`.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("mistral3", "MistralForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen2moe", "Qwen2MoeForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "Qwen3MoeForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("gpt-oss", "GptOssForCausalLM"),
    ("glm4moe", "Glm4MoeForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("minimax-m2", "MiniMaxM2ForCausalLM"),
    ("deepseek2", "DeepseekV3ForCausalLM"),
];

/// Keys under the architecture's name, and the configuration's keys.
const KEYS: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("vocab_size", "vocab_size"),
    ("rope.dimension_count", "rotary_dim"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

/// The geometry of a GGUF file. Activations and KV are float16, as the engines load GGUF.
///
/// # Errors
/// `UnknownArchitecture` for one that is not read; otherwise as `config::parse`, key paths being
/// those of the configuration that the metadata stands for.
pub fn model(name: &str, file: &Gguf) -> Result<Model, ConfigError> {
    let Some(MetaValue::Text(kind)) = file.get("general.architecture") else {
        let path = "general.architecture".to_owned();
        return Err(ConfigError::Missing { path, near: None });
    };
    let Some((_, architecture)) = ARCHITECTURES.iter().find(|(k, _)| k == kind) else {
        return Err(ConfigError::UnknownArchitecture {
            architecture: kind.chars().take(100).collect(),
            nearest: near::nearest(kind, ARCHITECTURES.iter().map(|(k, _)| *k), 40),
            cannot: crate::model::error::CANNOT,
        });
    };
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([architecture]));
    config.insert("model_type".to_owned(), json!(kind));
    config.insert("torch_dtype".to_owned(), json!("float16"));
    for (from, to) in KEYS {
        if let Some(MetaValue::Unsigned(n)) = file.get(&format!("{kind}.{from}")) {
            config.insert((*to).to_owned(), json!(n));
        }
    }
    adjust(&mut config, kind, file);
    let mut model = config::from_value(name, &Value::Object(config))?;
    model.notes.push("geometry from GGUF metadata; float16 activations and KV".to_owned());
    Ok(model)
}

/// What is not one key for one key.
fn adjust(config: &mut Map<String, Value>, kind: &str, file: &Gguf) {
    let number = |key: &str| match file.get(&format!("{kind}.{key}")) {
        Some(MetaValue::Unsigned(n)) => Some(*n),
        _ => None,
    };
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    // Files without a list of experts are dense; llama.cpp calls Mixtral `llama`.
    if number("expert_count").unwrap_or(0) > 0 && kind == "llama" {
        set("architectures", json!(["MixtralForCausalLM"]));
    }
    match file.get(&format!("{kind}.attention.head_count_kv")) {
        Some(MetaValue::Unsigned(n)) => {
            set("num_key_value_heads", json!(n));
        }
        // One for each layer: those of llama.cpp's converters that differ are not told apart here.
        Some(MetaValue::Numbers(list)) => {
            if let Some(n) = list.iter().max() {
                set("num_key_value_heads", json!(n));
            }
        }
        _ => {}
    }
    if !file.tensors.is_empty() {
        let head = file.tensors.iter().any(|t| t.name == "output.weight");
        set("tie_word_embeddings", json!(!head));
        let rows = file.tensors.iter().find(|t| t.name == "token_embd.weight");
        if let Some(rows) = rows.and_then(|t| t.shape.first()) {
            set("vocab_size", json!(rows));
        }
    }
    let tokens = match file.get("tokenizer.ggml.tokens") {
        Some(MetaValue::List(n)) => Some(*n),
        _ => None,
    };
    if number("vocab_size").is_none() && file.tensors.is_empty() {
        tokens.map(|n| set("vocab_size", json!(n)));
    }
    if let Some(MetaValue::Text(kind_of)) = file.get(&format!("{kind}.rope.scaling.type")) {
        let factor = match file.get(&format!("{kind}.rope.scaling.factor")) {
            Some(MetaValue::Float(f)) if f.is_finite() => *f,
            _ => 1.0,
        };
        let original = number("rope.scaling.original_context_length");
        // The context length in the metadata is already the scaled one.
        if kind_of == "yarn" && original.is_some() {
            let scaling = json!({"type": "yarn", "factor": factor,
                "original_max_position_embeddings": original});
            set("rope_scaling", scaling);
        }
    }
    // The converter counts GLM's draft layers as blocks.
    if kind == "glm4moe"
        && let (Some(blocks), Some(draft)) = (number("block_count"), number("nextn_predict_layers"))
    {
        set("num_hidden_layers", json!(blocks.saturating_sub(draft)));
    }
    if kind == "deepseek2" {
        let rope = number("rope.dimension_count").unwrap_or(64);
        let key = number("attention.key_length_mla").or(number("attention.key_length"));
        let value = number("attention.value_length_mla").or(number("attention.value_length"));
        set("qk_rope_head_dim", json!(rope));
        key.map(|k| set("qk_nope_head_dim", json!(k.saturating_sub(rope))));
        value.map(|v| set("v_head_dim", json!(v)));
    }
}
