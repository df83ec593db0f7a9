//! Tests of the configuration reader: families by hand, errors, hostile input, real files.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::{
    geometry::{Indexer, LinearKind, Span},
    kv,
    parallel::Loader,
    weights::{self, WeightOptions},
};

fn llama() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": false,
        "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})
}

fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn read(config: &Value) -> Model {
    from_value("m", config).unwrap_or_else(|e| panic!("{e}"))
}

fn error(changes: Value) -> String {
    from_value("m", &with(llama(), changes)).unwrap_err().to_string()
}

/// KV bytes of one token of the whole model in bfloat16 on one rank.
fn cell(model: &Model) -> u64 {
    let all = 0..model.geometry.layers.len();
    kv::cell(model, all, Dtype::Bf16, 1).total().0
}

#[test]
fn a_dense_decoder() {
    let model = read(&llama());
    assert_eq!(cell(&model), 131_072);
    assert_eq!(model.geometry.context_len, Tokens(131_072));
    assert_eq!(model.detail.vllm_context_len, Tokens(131_072));
    assert!(model.notes.is_empty(), "{:?}", model.notes);
}

#[test]
fn context_length_follows_each_engine() {
    let yarn = json!({"rope_scaling": {"type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 32768}, "max_position_embeddings": 32768});
    let model = read(&with(llama(), yarn));
    assert_eq!(model.geometry.context_len, Tokens(32_768));
    assert_eq!(model.detail.vllm_context_len, Tokens(131_072));
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2.0},
        "max_position_embeddings": 4096});
    let model = read(&with(llama(), linear));
    assert_eq!((model.geometry.context_len.0, model.detail.vllm_context_len.0), (8192, 8192));
    let none = read(&with(llama(), json!({"max_position_embeddings": null, "rope_scaling": null})));
    assert_eq!(none.geometry.context_len, Tokens(2048));
}

#[test]
fn windows_by_list_by_rule_and_by_flag() {
    let sliding = |model: &Model| {
        let is =
            |l: &&Layer| matches!(l.attention, Attention::Gqa { span: Span::Sliding { .. }, .. });
        model.geometry.layers.iter().filter(is).count()
    };
    let of = |arch: &str, changes: Value| {
        let named = with(llama(), json!({"architectures": [arch]}));
        sliding(&read(&with(named, changes)))
    };
    assert_eq!(of("MistralForCausalLM", json!({"sliding_window": 4096})), 32);
    assert_eq!(of("MistralForCausalLM", json!({"sliding_window": 262_144})), 0);
    assert_eq!(of("Gemma2ForCausalLM", json!({"sliding_window": 4096})), 16);
    assert_eq!(of("Gemma3ForCausalLM", json!({"sliding_window": 1024})), 27);
    assert_eq!(of("Qwen2ForCausalLM", json!({"sliding_window": 4096})), 0);
    let flagged =
        json!({"sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 28});
    assert_eq!(of("Qwen2ForCausalLM", flagged), 4);
    let types: Vec<&str> =
        (0..32).map(|i| if i % 2 == 0 { "sliding_attention" } else { "full_attention" }).collect();
    assert_eq!(of("LlamaForCausalLM", json!({"sliding_window": 128, "layer_types": types})), 16);
}

#[test]
fn latent_attention_with_shared_indexes() {
    let config = with(
        llama(),
        json!({"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 78,
            "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64, "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32,
            "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "n_shared_experts": 1, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1}),
    );
    let model = read(&config);
    let kinds = kv::count(&model, 0..78);
    // Layers 0, 1, 2 and every fourth after: as the lists of GLM 5.2 and 5.3 have it.
    assert_eq!((kinds.latent, kinds.indexed), (78, 21));
    assert_eq!(cell(&model), 576 * 2 * 78 + 132 * 21);
    assert!(matches!(model.geometry.layers[2].mlp, Mlp::Dense { .. }));
    assert!(matches!(model.geometry.layers[3].mlp, Mlp::Moe { .. }));
    assert_eq!(model.geometry.nextn_layers, 1);
    let index = Indexer { heads: 32, head_dim: 128, topk: 2048 };
    let Attention::Mla { indexer, .. } = model.geometry.layers[6].attention else { panic!() };
    assert_eq!(indexer, Some(index));
}

#[test]
fn hybrids_by_pattern_and_by_interval() {
    let nemotron = with(
        llama(),
        json!({"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "ME*-",
            "num_hidden_layers": 4, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
            "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    );
    let model = read(&nemotron);
    let kinds = kv::count(&model, 0..4);
    assert_eq!((kinds.linear, kinds.full, kinds.none), (1, 1, 2));
    let Attention::Linear(state) = model.geometry.layers[0].attention else { panic!() };
    assert_eq!((state.kind, state.conv_channels), (LinearKind::Mamba2, 4096 + 2 * 8 * 128));
    let qwen = with(
        llama(),
        json!({"architectures": ["Qwen3NextForCausalLM"], "linear_num_value_heads": 32,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
            "linear_conv_kernel_dim": 4, "full_attention_interval": 4}),
    );
    let model = read(&qwen);
    assert_eq!(kv::count(&model, 0..32).full, 8);
    assert!(matches!(model.geometry.layers[3].attention, Attention::Gqa { .. }));
    // A public vLLM log of a model with these layers: 2,146,304 B of state a layer at tp 1.
    assert_eq!(kv::request_state(&model, 0..1, 1).total(), Bytes(2_146_304));
}

#[test]
fn errors_name_the_path_the_value_and_the_range() {
    assert_eq!(
        error(json!({"num_hidden_layers": 0})),
        "`num_hidden_layers` is 0; allowed: a whole number from 1 to 1024"
    );
    assert_eq!(
        error(json!({"hidden_size": "big"})),
        "`hidden_size` is \"big\"; allowed: a whole number from 1 to 16777216"
    );
    assert_eq!(
        error(json!({"vocab_size": null, "vocabsize": 7})),
        "`vocab_size` is missing; `vocabsize` is there, is it meant?"
    );
    assert_eq!(
        error(json!({"num_key_value_heads": 64})),
        "`num_key_value_heads` is 64; allowed: at most 32 heads"
    );
    assert_eq!(
        error(json!({"layer_types": ["full_attention"]})),
        "`layer_types` is \"1 entries\"; allowed: one entry for each of 32 layers"
    );
    assert!(
        error(json!({"torch_dtype": "bf17"})).starts_with("`torch_dtype` is \"bf17\"; allowed")
    );
    assert_eq!(
        error(json!({"quantization_config": {"bits": 4}})),
        "`quantization_config.quant_method` is missing"
    );
    let nested = json!({"architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": {"hidden_size": -1}});
    let text = from_value("m", &nested).unwrap_err().to_string();
    assert!(text.starts_with("`text_config.hidden_size` is -1"), "{text}");
    let bad = parse("m", "{\n \"a\": ]", None).unwrap_err();
    assert!(matches!(bad, ConfigError::Json { line: 2, .. }), "{bad}");
    assert!(matches!(parse("m", "[]", None), Err(ConfigError::Value { .. })));
}

#[test]
fn what_is_not_known_is_said_and_can_be_given() {
    let text = error(json!({"architectures": ["LamaForCausalLM"]}));
    assert!(text.contains("`LamaForCausalLM` is not known (nearest known: LlamaForCausalLM)"));
    assert!(text.contains("--kv-bytes-per-token"));
    let v4 = error(json!({"architectures": ["DeepseekV4ForCausalLM"]}));
    assert!(v4.contains("recognised but not modelled") && v4.contains("KV cell"), "{v4}");
    let config = with(llama(), json!({"architectures": ["DeepseekV4ForCausalLM"]})).to_string();
    let given = Fallback { kv_bytes_per_token: Bytes(5000), weights: Some(Bytes::gib(9)) };
    let model = with_fallback("m", &config, given).unwrap();
    assert_eq!(model.kv, KvSource::Given(Bytes(5000)));
    assert_eq!((model.geometry.layers.len(), model.geometry.vocab_size), (32, 128_256));
    assert_eq!(model.notes.len(), 1);
    let bill = weights::bill(&model, &WeightOptions::new(Loader::Sglang)).unwrap();
    assert_eq!(bill.per_rank.mid, Bytes::gib(9));
}

#[test]
fn quantisation_settings_reach_the_modules() {
    let fp8 = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.0.mlp"]}});
    let model = read(&with(llama(), fp8));
    let summary = model.geometry.quantization.as_ref().unwrap();
    assert_eq!((summary.weight_bits, summary.group_size, summary.scale_bytes), (8, 16_384, 4));
    let plain = weights::bill(&read(&llama()), &WeightOptions::new(Loader::Vllm)).unwrap();
    let small = weights::bill(&model, &WeightOptions::new(Loader::Vllm)).unwrap();
    // 32 layers of 218,103,808 parameters, of which one feed-forward part stays.
    let quantised = 32 * 218_103_808_u64 - 3 * 4096 * 14_336;
    assert_eq!(small.whole.0, plain.whole.0 - quantised + quantised / 16_384 * 4);
    let text = json!({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
        "group_size": 16, "exclude_modules": ["lm_head", "*self_attn*"]}});
    let model = parse("m", &llama().to_string(), Some(&text.to_string())).unwrap();
    assert!(model.geometry.kv_cache_fp8);
    let small = weights::bill(&model, &WeightOptions::new(Loader::Vllm)).unwrap();
    let quantised = 32 * 3 * 4096 * 14_336_u64;
    assert_eq!(small.whole.0, plain.whole.0 - quantised * 2 + quantised / 16 * 9);
    let strange = json!({"quantization_config": {"quant_method": "exl9"}});
    let model = read(&with(llama(), strange));
    assert_eq!(model.notes, ["storage of quantisation `exl9` is not modelled"]);
    let wide = weights::bill(&model, &WeightOptions::new(Loader::Vllm)).unwrap();
    assert!(wide.per_rank.width() > Bytes::gib(9), "an unknown storage needs a wide interval");
}

/// The folder of public configurations, when this checkout has it.
fn shared_configs() -> Option<Vec<std::path::PathBuf>> {
    let root = match std::env::var_os("PLIMSOLL_SHARED") {
        Some(root) => root.into(),
        None => std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
    };
    let folder = root.join("data/model-configs");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no folder {}; set PLIMSOLL_SHARED", folder.display());
        return None;
    };
    let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    Some(paths)
}

#[test]
fn public_configurations_parse_or_are_named_as_not_modelled() {
    let Some(paths) = shared_configs() else { return };
    let (mut parsed, mut refused) = (0, 0);
    for path in &paths {
        let name = path.file_name().unwrap().to_string_lossy();
        let Some(stem) = name.strip_suffix("_config.json") else { continue };
        if stem.ends_with("_hf_quant") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let second = path.with_file_name(format!("{stem}_hf_quant_config.json"));
        let second = std::fs::read_to_string(second).ok();
        match parse(stem, &text, second.as_deref()) {
            Ok(model) => {
                parsed += 1;
                assert!(cell(&model) > 0, "{stem}");
                weights::bill(&model, &WeightOptions::new(Loader::Sglang)).unwrap();
                let wants = second.is_some() || text.contains("quant_method");
                let plan = &model.detail.quant;
                assert_eq!(wants, plan.base.is_some() || !plan.rules.is_empty(), "{stem}");
                assert!(plan.unknown.is_none(), "{stem}");
            }
            Err(ConfigError::NotModelled { architecture, .. }) => {
                refused += 1;
                let known = ["DeepseekV4", "MiniMaxM3"];
                assert!(known.iter().any(|k| architecture.starts_with(k)), "{architecture}");
            }
            Err(other) => panic!("{stem}: {other}"),
        }
    }
    println!("{parsed} parsed, {refused} named as not modelled");
    assert!(parsed > 0);
}

/// Any JSON value, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![Just(1_u64 << 24), Just(1 << 16), Just(1024), Just(0)].prop_map(Value::from),
        "[a-zA-Z*:.()-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_]{1,12}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every key that the readers ask for, so that mutations meet them.
const KEYS: &[&str] = &[
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "v_head_dim",
    "vocab_size",
    "intermediate_size",
    "max_position_embeddings",
    "rope_scaling",
    "rope_parameters",
    "torch_dtype",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "moe_layer_freq",
    "mlp_layer_types",
    "mlp_only_layers",
    "decoder_sparse_step",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    "indexer_types",
    "index_topk_freq",
    "index_skip_topk_offset",
    "num_nextn_predict_layers",
    "hybrid_override_pattern",
    "layers_block_type",
    "mamba_num_heads",
    "mamba_head_dim",
    "n_groups",
    "ssm_state_size",
    "conv_kernel",
    "moe_latent_size",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_conv_kernel_dim",
    "block_configs",
    "linear_attn_config",
    "attn_type_list",
    "quantization_config",
    "vision_config",
    "text_config",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "use_double_wide_mlp",
    "attention_other_setting",
    "swa_head_dim",
    "global_head_dim",
    "attention_chunk_size",
    "no_rope_layers",
    "no_rope_layer_interval",
    "partial_rotary_factor",
    "rotary_dim",
    "sliding_window_pattern",
    "max_window_layers",
    "mamba_d_ssm",
    "mamba_d_state",
    "mamba_d_conv",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_text_panics(text in "[{}\\[\\]\",:a-zNIfinity0-9.\\\\ -]{0,80}") {
        let _ = parse("m", &text, Some(&text));
    }

    #[test]
    fn no_mutation_panics(
        arch in 0..ARCHS.len(),
        changes in proptest::collection::vec((0..KEYS.len(), any_json()), 0..6),
        large in proptest::collection::vec((0..KEYS.len(), 0_u64..5), 0..40),
    ) {
        let mut config = with(llama(), json!({"architectures": [ARCHS[arch].name]}));
        let sizes = [1, 2, 1024, 1 << 16, 1 << 24];
        for (key, size) in large {
            config[KEYS[key]] = json!(sizes[size as usize]);
        }
        for (key, value) in changes {
            config[KEYS[key]] = value;
        }
        if let Ok(model) = from_value("m", &config) {
            let all = 0..model.geometry.layers.len();
            let _ = kv::cell(&model, all.clone(), Dtype::F32, 3);
            let _ = kv::request_state(&model, all, 3);
            let _ = weights::bill(&model, &WeightOptions::new(Loader::Sglang));
            let _ = weights::bill(&model, &WeightOptions::new(Loader::Vllm));
        }
    }
}

#[test]
fn kimi_gives_the_factor_its_own_names() {
    let latent = json!({"architectures": null, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128});
    let config = json!({"architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": with(llama(), latent),
        "vision_config": {"vt_num_hidden_layers": 27, "vt_hidden_size": 1152}});
    let model = read(&config);
    assert!(model.geometry.vision.unwrap().sized);
    let factor = model.detail.vision_factor.unwrap();
    assert_eq!((factor.layers, factor.hidden), (27, 1152));
}

#[test]
fn a_vision_tower_as_the_factor_sees_it() {
    let config = json!({"architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": with(llama(), json!({"architectures": null})),
        "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}});
    let model = read(&config);
    let tower = model.geometry.vision.unwrap();
    assert_eq!((tower.layers, tower.hidden, tower.sized), (27, 1152, false));
    let factor = model.detail.vision_factor.unwrap();
    assert_eq!((factor.layers, factor.hidden), (24, 1152));
    assert!(model.geometry.multimodal);
}

#[test]
fn a_state_dtype_is_carried_where_it_is_named() {
    let mut config = json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "torch_dtype": "bfloat16",
        "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151_936, "max_position_embeddings": 262_144,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1
    });
    let read = |config: &serde_json::Value| from_value("m", config).map(|m| m.geometry.state_dtype);
    assert_eq!(read(&config).unwrap(), None);
    config["mamba_ssm_dtype"] = json!("float32");
    assert_eq!(read(&config).unwrap(), Some(Dtype::F32));
    config["mamba_ssm_dtype"] = json!("float12");
    assert!(read(&config).is_err());
}
